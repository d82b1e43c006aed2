"""Small image stores, images and Pillow's own versions, for the tests of the views."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageEnhance, ImageOps

from semifine.augment.crops import Crop
from semifine.augment.image_batch import ImageBatch, ImageTable, create_image_batch
from semifine.augment.randaugment import RandAugmentParams, cutout_edges
from semifine.augment.randaugment_ops import CODE, MIXING, POINTWISE, STATISTICAL, apply_table, pointwise_table

CPU = torch.device("cpu")
COLOR = (*STATISTICAL, *POINTWISE, *MIXING)


def noise_image(height: int, width: int, seed: int = 0) -> np.ndarray:
    """(height, width, 3) uint8, every value independent."""
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


def smooth_image(height: int, width: int, seed: int = 0) -> np.ndarray:
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


def make_store(arrays: Sequence[np.ndarray]) -> SimpleNamespace:
    """A store of images, as the data package lays it out."""
    lengths = np.array([array.size for array in arrays], dtype=np.int64)
    return SimpleNamespace(
        pixels=torch.from_numpy(np.concatenate([array.ravel() for array in arrays])),
        offset=torch.from_numpy(np.cumsum(lengths) - lengths),
        height=torch.tensor([array.shape[0] for array in arrays]),
        width=torch.tensor([array.shape[1] for array in arrays]),
    )


def make_batch(arrays: Sequence[np.ndarray], oversample: int = 1) -> ImageBatch:
    """All the images as one batch on the CPU."""
    store = make_store(arrays)
    return create_image_batch(store.pixels, ImageTable.from_store(store), CPU, oversample)


def stack(arrays: Sequence[np.ndarray]) -> torch.Tensor:
    """(N, 3, H, W) uint8 from images of one size."""
    return torch.from_numpy(np.stack(arrays)).permute(0, 3, 1, 2).contiguous()


def to_array(view: torch.Tensor) -> np.ndarray:
    """(H, W, 3) float array from a (3, H, W) view."""
    return view.permute(1, 2, 0).float().numpy()


def change_colors(name: str, image: torch.Tensor, magnitude: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    """Any of our color operations, on all images."""
    if name in MIXING:
        return MIXING[name](image, magnitude)
    if name in POINTWISE:
        table = torch.from_numpy(pointwise_table(name, magnitude.double().numpy()))
        return apply_table(image, table.unsqueeze(1).expand(-1, 3, -1))
    return apply_table(image, STATISTICAL[name](magnitude, reference).to(torch.uint8))


def pillow_operation(name: str, array: Image.Image, magnitude: float) -> Image.Image:
    """RandAugment's operations with Pillow; geometry bilinear."""
    enhancers = {
        "Brightness": ImageEnhance.Brightness,
        "Color": ImageEnhance.Color,
        "Contrast": ImageEnhance.Contrast,
        "Sharpness": ImageEnhance.Sharpness,
    }
    width, height = array.size
    affine = {
        "ShearX": (1, magnitude, 0, 0, 1, 0),
        "ShearY": (1, 0, 0, magnitude, 1, 0),
        "TranslateX": (1, 0, magnitude * width, 0, 1, 0),
        "TranslateY": (1, 0, 0, 0, 1, magnitude * height),
    }
    if name in enhancers:
        return enhancers[name](array).enhance(magnitude)
    if name in affine:
        return array.transform(array.size, Image.Transform.AFFINE, affine[name], resample=Image.Resampling.BILINEAR)
    if name == "Rotate":
        return array.rotate(magnitude, resample=Image.Resampling.BILINEAR)
    if name == "AutoContrast":
        return ImageOps.autocontrast(array)
    if name == "Equalize":
        return ImageOps.equalize(array)
    if name == "Posterize":
        return ImageOps.posterize(array, int(magnitude))
    if name == "Solarize":
        return ImageOps.solarize(array, magnitude)
    assert name == "Identity"
    return array


def pillow_cutout(array: Image.Image, side: float, x: float, y: float) -> Image.Image:
    """The cutout of the released code; ``side``, ``x`` and ``y`` are its three unit draws."""
    width, height = array.size
    length = side * 0.5 * width
    left, top = int(max(0, x * width - length / 2)), int(max(0, y * height - length / 2))
    corners = (left, top, min(width, left + length), min(height, top + length))
    result = array.copy()
    ImageDraw.Draw(result).rectangle(corners, (125, 123, 114))
    return result


def make_params(
    names: Sequence[Sequence[str]],
    magnitudes: Sequence[Sequence[float]],
    table: ImageTable,
    cutout: Sequence[Sequence[float]] | None = None,
) -> RandAugmentParams:
    """A params with given operations, (samples, slots), and unit draws of the cutout, (samples, 3)."""
    codes = np.array([[CODE[name] for name in row] for row in names], dtype=np.int64)
    draws = np.zeros((len(codes), 3)) if cutout is None else np.array(cutout, dtype=np.float64)
    edges = cutout_edges(table, *draws.T)
    if cutout is None:
        edges = np.zeros_like(edges)  # even a side of zero covers one pixel
    return RandAugmentParams(codes, np.array(magnitudes, dtype=np.float64), edges)


def make_crop(boxes: Sequence[tuple[float, float, float, float]], flips: Sequence[bool] | None = None) -> Crop:
    """Crops from boxes (left, top, width, height)."""
    left, top, width, height = np.array(boxes, dtype=np.float64).T
    flip = np.zeros(len(boxes), dtype=np.bool_) if flips is None else np.array(flips)
    return Crop(left, top, width, height, flip)
