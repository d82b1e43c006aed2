"""RandAugment's operations: geometric ones as affine maps, color ones with Pillow's arithmetic."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment.image_batch import FloatArray

RANGES: dict[str, tuple[float, float]] = {
    "AutoContrast": (0, 1),  # takes no magnitude
    "Brightness": (0.05, 0.95),
    "Color": (0.05, 0.95),
    "Contrast": (0.05, 0.95),
    "Equalize": (0, 1),  # takes no magnitude
    "Identity": (0, 1),  # takes no magnitude
    "Posterize": (4, 8),  # bits, of which the fraction is dropped: 4 to 7
    "Rotate": (-30, 30),  # degrees
    "Sharpness": (0.05, 0.95),
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "Solarize": (0, 256),
    "TranslateX": (-0.3, 0.3),  # of the width
    "TranslateY": (-0.3, 0.3),  # of the height
}
"""The operations with the smallest and the largest magnitude."""
OPERATIONS = tuple(RANGES)
"""The names of the operations; an operation's code is its place here."""
CODE = {name: code for code, name in enumerate(OPERATIONS)}

Geometry = Callable[[FloatArray, FloatArray, FloatArray], FloatArray]


def identity(count: int) -> FloatArray:
    """(count, 2, 3) maps that move nothing."""
    maps = np.zeros((count, 2, 3))
    maps[:, 0, 0] = maps[:, 1, 1] = 1
    return maps


def shear_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v y, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 1] = magnitude
    return maps


def shear_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v x)."""
    maps = identity(len(magnitude))
    maps[:, 1, 0] = magnitude
    return maps


def translate_x(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x + v width, y)."""
    maps = identity(len(magnitude))
    maps[:, 0, 2] = magnitude * width
    return maps


def translate_y(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:  # noqa: ARG001
    """(x, y) shows (x, y + v height)."""
    maps = identity(len(magnitude))
    maps[:, 1, 2] = magnitude * height
    return maps


def rotate(magnitude: FloatArray, width: FloatArray, height: FloatArray) -> FloatArray:
    """Turns the picture by v degrees counter-clockwise about its center."""
    maps = identity(len(magnitude))
    cos, sin = np.cos(np.deg2rad(magnitude)), np.sin(np.deg2rad(magnitude))
    maps[:, 0, 0], maps[:, 0, 1] = cos, -sin
    maps[:, 1, 0], maps[:, 1, 1] = sin, cos
    center = np.stack([width, height], axis=1) / 2
    maps[:, :, 2] = center - (maps[:, :, :2] @ center[:, :, None])[:, :, 0]
    return maps


GEOMETRY: dict[str, Geometry] = {
    "Rotate": rotate,
    "ShearX": shear_x,
    "ShearY": shear_y,
    "TranslateX": translate_x,
    "TranslateY": translate_y,
}


def compose(outer: FloatArray, inner: FloatArray) -> FloatArray:
    """The map that applies ``inner`` first and ``outer`` to its result."""
    composed: FloatArray = outer[:, :, :2] @ inner
    composed[:, :, 2] += outer[:, :, 2]
    return composed


def rescale(maps: FloatArray, input_scale: FloatArray, output_scale: FloatArray) -> FloatArray:
    """The same maps in other units: lengths times a scale, (N, 2) for x and y, on each of their sides.

    Maps are (..., N, 2, 3).
    """
    scaled: FloatArray = maps * input_scale[:, :, None]
    scaled[..., :2] *= (1 / output_scale)[:, None, :]
    return scaled


LEVELS = 256
Plain = Callable[[FloatArray], FloatArray]
"""magnitude (N, 1) -> table (N, 256), the same for all channels"""
Statistical = Callable[[Tensor, Tensor], Tensor]
"""(magnitude, reference) -> table (N, 3, 256)"""
Mixing = Callable[[Tensor, Tensor], Tensor]
"""(image, magnitude) -> image"""


def look_up(image: Tensor, table: Tensor) -> Tensor:
    """Replaces every value by its entry in the (N, 3, 256) uint8 table of its channel."""
    return table.gather(2, image.flatten(2).long()).view(image.shape)


def plain_table(name: str, magnitude: FloatArray) -> NDArray[np.uint8]:
    """(N, 256) new levels of an operation of PLAIN."""
    return PLAIN[name](magnitude[:, None]).astype(np.uint8)


def brightness(magnitude: FloatArray) -> FloatArray:
    """Blends with black."""
    return np.floor(magnitude * np.arange(LEVELS))


def posterize(magnitude: FloatArray) -> FloatArray:
    """Keeps the highest ``magnitude`` bits of each value."""
    step: FloatArray = np.exp2(8 - np.floor(magnitude))
    kept: FloatArray = np.floor(np.arange(LEVELS) / step) * step
    return kept


def solarize(magnitude: FloatArray) -> FloatArray:
    """Inverts the values that reach the threshold."""
    levels = np.arange(LEVELS, dtype=np.float64)
    return np.where(levels < magnitude, levels, 255 - levels)


def auto_contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Stretches each channel so that the reference's darkest level becomes 0 and its brightest 255."""
    low, high = (end.float() for end in torch.aminmax(reference.flatten(2), dim=2, keepdim=True))
    levels = _levels(magnitude)
    stretched = (levels - low).mul_(255).div_(high - low).floor_().clamp_(0, 255)
    return torch.where(high > low, stretched, levels)


def contrast(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Blends with the mean gray of the reference."""
    mean = gray(reference.float()).flatten(2).mean(dim=2, keepdim=True).add_(0.5).floor_()
    return blend(mean, _levels(magnitude), magnitude.view(-1, 1, 1)).expand(-1, 3, -1)


def equalize(magnitude: Tensor, reference: Tensor) -> Tensor:
    """Spreads the levels of each channel by the reference's histogram, by Pillow's recipe."""
    counts = histogram(reference)
    running = counts.int().cumsum(dim=2).float()  # the deterministic mode refuses the sum of floats
    below, total = running - counts, running[..., -1:]
    # The number of pixels below the brightest level that occurs: the largest running count short of all.
    step = torch.where(running < total, running, 0).amax(dim=2, keepdim=True).div_(LEVELS - 1).floor_()
    spread = below.add_((step / 2).floor_()).div_(step).floor_().clamp_(max=LEVELS - 1)
    # A step of zero (a single level, or too few pixels) leaves the channel as it is.
    return torch.where(step > 0, spread, _levels(magnitude))


def color(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the gray image."""
    values = image.float()
    return blend(gray(values), values, magnitude.view(-1, 1, 1, 1)).to(torch.uint8)


def sharpness(image: Tensor, magnitude: Tensor) -> Tensor:
    """Blends with the image smoothed by a 3 x 3 filter, whose border stays unfiltered.

    The filter works on the pixels given: in a view, on those of the view and not of the original.
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


PLAIN: dict[str, Plain] = {"Brightness": brightness, "Posterize": posterize, "Solarize": solarize}
STATISTICAL: dict[str, Statistical] = {
    "AutoContrast": auto_contrast,
    "Contrast": contrast,
    "Equalize": equalize,
}
MIXING: dict[str, Mixing] = {"Color": color, "Sharpness": sharpness}
"""The operations that mix the values of channels or pixels."""


def gray(image: Tensor) -> Tensor:
    """(N, 1, H, W) luminance, from float values, as Pillow's ``convert("L")`` rounds it.

    It is exact, as all sums are whole numbers below 2**24.
    """
    red, green, blue = image.unbind(1)
    total = (red * 19595).add_(green, alpha=38470).add_(blue, alpha=7471).add_(32768)
    return total.div_(65536).floor_().unsqueeze(1)


def blend(dull: Tensor, image: Tensor, factor: Tensor) -> Tensor:
    """Pillow's enhancers: ``factor`` of the image, the rest from its dull form; fractions are cut off."""
    return (image - dull).mul_(factor).add_(dull).floor_()


def histogram(image: Tensor) -> Tensor:
    """(N, 3, 256) counts. They are whole numbers: the order in which a GPU adds them does not matter."""
    rows = torch.arange(image.shape[0] * image.shape[1], device=image.device).mul_(LEVELS)
    bins = (image.flatten(2).flatten(0, 1) + rows.unsqueeze(1)).flatten()
    counts = torch.zeros(len(rows) * LEVELS, device=image.device)
    # One-dimensional, because torch's deterministic mode refuses other shapes on the GPU.
    counts.scatter_add_(0, bins, torch.ones((), device=image.device).expand_as(bins))
    return counts.view(*image.shape[:2], LEVELS)


def _levels(like: Tensor) -> Tensor:
    """(256,) all levels."""
    return torch.arange(LEVELS, dtype=like.dtype, device=like.device)
