"""Small image stores, pictures and Pillow's own versions, for the tests of the views."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from semifine.augment.crops import Crop
from semifine.augment.image_batch import ImageBatch, ImageTable, image_batch
from semifine.augment.randaugment import Plan, cutout_edges
from semifine.augment.randaugment_ops import CODE, MIXING, PLAIN, STATISTICAL, look_up, plain_table

CPU = torch.device("cpu")
COLOR = (*STATISTICAL, *PLAIN, *MIXING)


def noise_picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(height, width, 3) uint8, every value independent."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth_picture(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(height, width, 3) uint8 with the soft blobs and the limited range of a photo."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    channels = []
    for _ in range(3):
        terms = rng.uniform(-2, 2, (4, 3))
        waves = sum(np.sin(2 * np.pi * (a * x + b * y + c)) for a, b, c in terms)
        low, high = rng.uniform(5, 60), rng.uniform(160, 250)
        channels.append(low + (high - low) * (waves - waves.min()) / (np.ptp(waves) + 1e-9))
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def make_store(pictures: Sequence[np.ndarray]) -> SimpleNamespace:
    """A store of pictures, as the data package lays it out."""
    lengths = np.array([picture.size for picture in pictures], dtype=np.int64)
    return SimpleNamespace(
        pixels=torch.from_numpy(np.concatenate([picture.ravel() for picture in pictures])),
        offset=torch.from_numpy(np.cumsum(lengths) - lengths),
        height=torch.tensor([picture.shape[0] for picture in pictures]),
        width=torch.tensor([picture.shape[1] for picture in pictures]),
    )


def make_batch(pictures: Sequence[np.ndarray], oversample: int = 1) -> ImageBatch:
    """All the pictures as one batch on the CPU."""
    store = make_store(pictures)
    return image_batch(store.pixels, ImageTable.of(store), CPU, oversample)


def stack(pictures: Sequence[np.ndarray]) -> torch.Tensor:
    """(N, 3, H, W) uint8 from pictures of one size."""
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()


def to_picture(view: torch.Tensor) -> np.ndarray:
    """(H, W, 3) float array from a (3, H, W) view."""
    return view.permute(1, 2, 0).float().numpy()


def change_colors(name: str, image: torch.Tensor, magnitude: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Any of our color operations, on all images."""
    if name in MIXING:
        return MIXING[name](image, magnitude)
    if name in PLAIN:
        table = torch.from_numpy(plain_table(name, magnitude.double().numpy()))
        return look_up(image, table.unsqueeze(1).expand(-1, 3, -1))
    return look_up(image, STATISTICAL[name](magnitude, reference).to(torch.uint8))


def pillow_operation(name: str, picture: Image.Image, magnitude: float) -> Image.Image:
    """RandAugment's operations with Pillow; geometry bilinear."""
    enhancers = {
        "Brightness": ImageEnhance.Brightness,
        "Color": ImageEnhance.Color,
        "Contrast": ImageEnhance.Contrast,
        "Sharpness": ImageEnhance.Sharpness,
    }
    width, height = picture.size
    affine = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, magnitude * width, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, magnitude * height),
    }
    if name in enhancers:
        return enhancers[name](picture).enhance(magnitude)
    if name in affine:
        return picture.transform(picture.size, Image.Transform.AFFINE, affine[name], resample=Image.Resampling.BILINEAR)
    if name == "Rotate":
        return picture.rotate(magnitude, resample=Image.Resampling.BILINEAR)
    if name == "AutoContrast":
        return ImageOps.autocontrast(picture)
    if name == "Equalize":
        return ImageOps.equalize(picture)
    if name == "Posterize":
        return ImageOps.posterize(picture, int(magnitude))
    if name == "Solarize":
        return ImageOps.solarize(picture, magnitude)
    assert name == "Identity"
    return picture


def pillow_cutout(picture: Image.Image, side: float, x: float, y: float) -> Image.Image:
    """The cutout of the released code; ``side``, ``x`` and ``y`` are its three unit draws."""
    width, height = picture.size
    length = side * 0.5 * width
    left, top = int(max(0, x * width - length / 2)), int(max(0, y * height - length / 2))
    corners = (left, top, min(width, left + length), min(height, top + length))
    result = picture.copy()
    ImageDraw.Draw(result).rectangle(corners, (125, 123, 114))
    return result


def make_plan(
    names: Sequence[Sequence[str]],
    magnitudes: Sequence[Sequence[float]],
    table: ImageTable,
    cutout: Sequence[Sequence[float]] | None = None,
) -> Plan:
    """A plan with given operations, (samples, slots), and unit draws of the cutout, (samples, 3)."""
    codes = np.array([[CODE[name] for name in row] for row in names], dtype=np.int64)
    draws = np.zeros((len(codes), 3)) if cutout is None else np.array(cutout, dtype=np.float64)
    edges = cutout_edges(table, *draws.T)
    if cutout is None:
        edges = np.zeros_like(edges)  # even a side of zero covers one pixel
    return Plan(codes, np.array(magnitudes, dtype=np.float64), edges)


def make_crop(boxes: Sequence[tuple[float, float, float, float]], flips: Sequence[bool] | None = None) -> Crop:
    """Crops from boxes (left, top, width, height)."""
    left, top, width, height = np.array(boxes, dtype=np.float64).T
    flip = np.zeros(len(boxes), dtype=np.bool_) if flips is None else np.array(flips)
    return Crop(left, top, width, height, flip)
