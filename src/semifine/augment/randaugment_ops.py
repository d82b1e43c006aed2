"""The operations of RandAugment: geometric ones as affine maps, color operations with Pillow's arithmetic.

To add an operation, add its function and its range here and its branch in ``triton/randaugment.py``.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment.image_batch import FloatArray

RANGES: dict[str, tuple[float, float]] = {
    "AutoContrast": (0, 1),  # has no magnitude
    "Brightness": (0.05, 0.95),
    "Color": (0.05, 0.95),
    "Contrast": (0.05, 0.95),
    "Equalize": (0, 1),  # has no magnitude
    "Identity": (0, 1),  # has no magnitude
    "Posterize": (4, 8),  # bits, rounded down: 4 to 7
    "Rotate": (-30, 30),  # degrees
    "Sharpness": (0.05, 0.95),
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "Solarize": (0, 256),
    "TranslateX": (-0.3, 0.3),  # fraction of the width
    "TranslateY": (-0.3, 0.3),  # fraction of the height
}
"""Range of the magnitude of each operation."""
OPERATIONS = tuple(RANGES)
"""Names of the operations. The code of an operation is its index here."""
CODE = {name: code for code, name in enumerate(OPERATIONS)}

GeometricOp = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]
"""(magnitude, width, height), each (N,) -> (N, 2, 3) maps from output to input coordinates"""


def identity(count: int) -> FloatArray:
    """(count, 2, 3) identity maps."""
    maps = np.zeros((count, 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1
    return maps


def shear_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) -> (x + magnitude * y, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 1] = magnitude
    return maps


def shear_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) -> (x, y + magnitude * x)."""
    maps = identity(len(magnitude))
    maps[:, 1, 0] = magnitude
    return maps


def translate_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) -> (x + magnitude * width, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 2] = magnitude * width
    return maps


def translate_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) -> (x, y + magnitude * height)."""
    maps = identity(len(magnitude))
    maps[:, 1, 2] = magnitude * height
    return maps


def rotate(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:
    """Rotates by ``magnitude`` degrees counter-clockwise about the center of the image."""
    maps = identity(len(magnitude))
    cos, sin = np.cos(np.deg2rad(magnitude)), np.sin(np.deg2rad(magnitude))
    maps[:, 0, 0], maps[:, 0, 1] = cos, -sin
    maps[:, 1, 0], maps[:, 1, 1] = sin, cos
    center = np.stack([width, height], axis=1) / 2
    maps[:, :, 2] = center - (maps[:, :, :2] @ center[:, :, None])[:, :, 0]
    return maps


GEOMETRIC: dict[str, GeometricOp] = {
    "Rotate": rotate,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
}


def compose(outer: FloatArray, inner: FloatArray) -> FloatArray:
    """Returns maps that apply ``inner`` first and ``outer`` second. Shapes: (N, 2, 3)."""
    composed: FloatArray = outer[:, :, :2] @ inner
    composed[:, :, 2] += outer[:, :, 2]
    return composed


def rescale(maps: FloatArray, output_scale: FloatArray, input_scale: FloatArray) -> FloatArray:
    """Returns the same maps in other units.

    Args:
        maps: (..., N, 2, 3) affine maps.
        output_scale: (N, 2) factors of the mapped coordinates x and y.
        input_scale: (N, 2) factors of the coordinates to be mapped.
    """
    scaled: FloatArray = maps * output_scale[:, :, None]
    scaled[..., :2] *= (1 / input_scale)[:, None, :]
    return scaled


NUM_VALUES = 256
"""Number of values of a uint8 pixel."""
PointwiseOp = Callable[[FloatArray], FloatArray]
"""magnitude (N, 1) -> lookup table (N, 256) of all channels"""
StatisticalOp = Callable[[Tensor, Tensor], Tensor]
"""(magnitude (N,), reference (N, 3, H, W)) -> lookup table (N, 3, 256). Statistics are computed from the reference: the
image or a smaller copy."""
MixingOp = Callable[[Tensor, Tensor], Tensor]
"""(image (N, 3, H, W), magnitude (N,)) -> image"""


def apply_table(image: Tensor, table: Tensor) -> Tensor:
    """Replaces each value by its entry in the (N, 3, 256) uint8 lookup table of its channel."""
    return table.gather(2, image.flatten(2).long()).view(image.shape)


def pointwise_table(name: str, magnitude: FloatArray) -> NDArray[np.uint8]:
    """Returns the lookup tables (N, 256) of an operation of ``POINTWISE``."""
    return POINTWISE[name](magnitude[:, None]).astype(np.uint8)


def brightness(magnitude: FloatArray) -> FloatArray:
    """Blends with black."""
    return np.floor(magnitude * np.arange(NUM_VALUES))


def posterize(magnitude: FloatArray) -> FloatArray:
    """Keeps the highest ``magnitude`` bits of each value."""
    step: FloatArray = np.exp2(8 - np.floor(magnitude))
    kept: FloatArray = np.floor(np.arange(NUM_VALUES) / step) * step
    return kept


def solarize(magnitude: FloatArray) -> FloatArray:
    """Inverts the values that reach the threshold ``magnitude``."""
    values = np.arange(NUM_VALUES, dtype=np.float64)
    return np.where(values < magnitude, values, 255 - values)


def auto_contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Stretches each channel so that the smallest value of the reference becomes 0 and the largest 255."""
    low, high = (end.float() for end in torch.aminmax(reference.flatten(2), dim=2, keepdim=True))
    values = _all_values(magnitude)
    stretched = (values - low).mul_(255).div_(high - low).floor_().clamp_(0, 255)
    return torch.where(high > low, stretched, values)


def contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Blends with the mean luminance of the reference."""
    mean = luminance(reference.float()).flatten(2).mean(dim=2, keepdim=True).add_(0.5).floor_()
    return blend(mean, _all_values(magnitude), magnitude.view(-1, 1, 1)).expand(-1, 3, -1)


def equalize(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Equalizes the histogram of each channel of the reference, as Pillow does."""
    counts = histogram(reference)
    cumulative = counts.int().cumsum(dim=2).float()  # PyTorch's deterministic mode refuses cumsum of floats on a GPU
    below, total = cumulative - counts, cumulative[..., -1:]
    # Pillow's step: the number of pixels below the brightest value that occurs, divided by 255.
    step = torch.where(cumulative < total, cumulative, 0).amax(dim=2, keepdim=True).div_(NUM_VALUES - 1).floor_()
    equalized = below.add_((step / 2).floor_()).div_(step).floor_().clamp_(max=NUM_VALUES - 1)
    # With a step of zero (a single value, or too few pixels) Pillow does not change the channel.
    return torch.where(step > 0, equalized, _all_values(magnitude))


def color(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the grayscale image."""
    values = image.float()
    return blend(luminance(values), values, magnitude.view(-1, 1, 1, 1)).to(torch.uint8)


def sharpness(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the image smoothed by a 3 x 3 filter; border pixels are not filtered.

    The filter runs on the pixels of the view, not on the pixels of the original image.
    """
    if min(image.shape[-2:]) < 3:
        return image.clone()
    values = image.float()
    center = values[:, :, 1:-1, 1:-1]
    columns = (values[:, :, :-2] + values[:, :, 1:-1]).add_(values[:, :, 2:])
    square = (columns[..., :-2] + columns[..., 1:-1]).add_(columns[..., 2:])
    smooth = square.add_(center, alpha=4).div_(13).add_(0.5).floor_()
    result = image.clone()
    result[:, :, 1:-1, 1:-1] = blend(smooth, center, magnitude.view(-1, 1, 1, 1))
    return result


POINTWISE: dict[str, PointwiseOp] = {"Brightness": brightness, "Posterize": posterize, "Solarize": solarize}
"""Operations with a lookup table that does not depend on the image."""
STATISTICAL: dict[str, StatisticalOp] = {
    "AutoContrast": auto_contrast,
    "Contrast": contrast,
    "Equalize": equalize,
}
"""Operations with a lookup table that depends on statistics of the image."""
MIXING: dict[str, MixingOp] = {"Color": color, "Sharpness": sharpness}
"""Operations that combine channels or neighboring pixels."""


def luminance(image: Tensor) -> Tensor:
    """Returns (N, 1, H, W) luminance of float values, rounded like Pillow's ``convert("L")``.

    The result is exact, because all sums are integers below 2**24.
    """
    red, green, blue = image.unbind(1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768)
    return total.div_(65536).floor_().unsqueeze(1)


def blend(degenerate: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Interpolates from ``degenerate`` (factor 0) to ``image`` (factor 1), rounded down, like ``ImageEnhance``."""
    return (image - degenerate).mul_(factor).add_(degenerate).floor_()


def histogram(image: Tensor) -> Tensor:
    """Returns (N, 3, 256) counts. Sums of integers do not depend on the order in which a GPU adds."""
    rows = torch.arange(image.shape[0] * image.shape[1], device=image.device).mul_(NUM_VALUES)
    bins = (image.flatten(2).flatten(0, 1) + rows.unsqueeze(1)).flatten()
    counts = torch.zeros(len(rows) * NUM_VALUES, device=image.device)
    # One-dimensional, because PyTorch's deterministic mode refuses other shapes on a GPU.
    counts.scatter_add_(0, bins, torch.ones((), device=image.device).expand_as(bins))
    return counts.view(*image.shape[:2], NUM_VALUES)


def _all_values(like: Tensor) -> Tensor:
    return torch.arange(NUM_VALUES, dtype=like.dtype, device=like.device)
