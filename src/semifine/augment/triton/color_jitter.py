"""Color jitter and Gaussian blur as Triton kernels: each program processes a block of one image with its parameters.

All operations of the jitter are pointwise except contrast, which needs the mean luminance of the image at that point.
One kernel computes the mean, a second one applies all operations. Images are (N, 3, H, H) float32 in 0..255,
channels-last.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from semifine.augment.color_jitter import (
    BRIGHTNESS,
    CONTRAST,
    HUE,
    LUMINANCE,
    RADIUS,
    SATURATION,
    JitterParams,
    gaussian_kernels,
)
from semifine.augment.image_batch import CHANNELS, FloatArray, upload

_BLOCK = 1024
_NO_OPERATION = 4
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = (tl.constexpr(code) for code in (BRIGHTNESS, CONTRAST, SATURATION, HUE))
_RED_SHARE, _GREEN_SHARE, _BLUE_SHARE = (tl.constexpr(float(share)) for share in LUMINANCE)
# Columns of the parameters of an image, and their number.
_BEFORE_CONTRAST, _AMOUNTS, _IS_GRAY, _COLUMNS = tl.constexpr(4), tl.constexpr(8), tl.constexpr(12), tl.constexpr(13)
_RADIUS = tl.constexpr(RADIUS)
_CHANNELS = tl.constexpr(CHANNELS)


def apply_jitter(images: Tensor, params: JitterParams) -> Tensor:
    """Implements :func:`semifine.augment.color_jitter.apply_jitter`."""
    if not len(images):
        return images
    rows = upload({"rows": pack_params(params)}, images.device)["rows"]
    pixels, grid = images.shape[-1] ** 2, _grid(images)
    sums, out = torch.empty(grid, device=images.device), torch.empty_like(images)
    _sum_luminance[grid](images, rows, sums, pixels, BLOCK=_BLOCK)
    _jitter[grid](images, rows, sums, out, pixels, PARTS=1 << (grid[1] - 1).bit_length(), BLOCK=_BLOCK)
    return out


def gaussian_blur(images: Tensor, sigma: FloatArray) -> Tensor:
    """Implements :func:`semifine.augment.color_jitter.gaussian_blur`; images that are not blurred get the identity."""
    if not (sigma > 0).any():
        return images
    kernels = np.zeros((len(sigma), 2 * RADIUS + 1))
    kernels[:, RADIUS] = 1
    kernels[sigma > 0] = gaussian_kernels(sigma[sigma > 0])
    sent = upload({"kernels": kernels}, images.device)["kernels"]
    for down in (True, False):
        out = torch.empty_like(images)
        _blur[_grid(images)](images, sent, out, images.shape[-1], DOWN=down, BLOCK=_BLOCK)
        images = out
    return images


def pack_params(params: JitterParams) -> FloatArray:
    """Returns (N, 13): codes in order, codes before contrast only, amounts in order, grayscale."""
    order = np.where(params.is_on[:, None], params.order, _NO_OPERATION)
    before = np.where(np.logical_or.accumulate(order == CONTRAST, axis=1), _NO_OPERATION, order)
    amount = np.take_along_axis(params.amount, params.order, axis=1)
    return np.concatenate([order, before, amount, params.is_gray[:, None]], axis=1)


def _grid(images: Tensor) -> tuple[int, int]:
    assert images.is_contiguous(memory_format=torch.channels_last)
    return len(images), -(-(images.shape[-1] ** 2) // _BLOCK)


@triton.jit
def _sum_luminance(images, rows, sums, pixels, BLOCK: tl.constexpr):
    """Computes (N, blocks) sums of the luminance before contrast is applied."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row = rows + image * _COLUMNS
    red, green, blue = _read(images + (image * pixels + cell) * _CHANNELS, exists)
    red, green, blue = _apply_operations(row + _BEFORE_CONTRAST, row + _AMOUNTS, red, green, blue, 0.0)
    total = tl.sum(tl.where(exists, _luminance(red, green, blue), 0.0), axis=0)
    tl.store(sums + image * tl.num_programs(1) + tl.program_id(1), total)


@triton.jit
def _jitter(images, rows, sums, out, pixels, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """Applies all operations, and grayscale at the end."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row = rows + image * _COLUMNS
    parts, part = tl.num_programs(1), tl.arange(0, PARTS)
    mean = tl.sum(tl.load(sums + image * parts + part, mask=part < parts, other=0.0), axis=0) / pixels
    red, green, blue = _read(images + (image * pixels + cell) * _CHANNELS, exists)
    red, green, blue = _apply_operations(row, row + _AMOUNTS, red, green, blue, mean)
    if tl.load(row + _IS_GRAY) != 0:
        red = _clamp(_luminance(red, green, blue))
        green = red
        blue = red
    _write(out + (image * pixels + cell) * _CHANNELS, red, green, blue, exists)


@triton.jit
def _apply_operations(operations, amounts, red, green, blue, mean):
    """Applies the four operations of an image in order; ``mean`` is the mean luminance for contrast."""
    for step in tl.static_range(4):
        operation = tl.load(operations + step).to(tl.int32)
        amount = tl.load(amounts + step)
        if operation == _BRIGHTNESS:
            red, green, blue = _clamp(red * amount), _clamp(green * amount), _clamp(blue * amount)
        elif operation == _CONTRAST:
            degenerate = mean * (1 - amount)
            red, green, blue = (
                _clamp(red * amount + degenerate),
                _clamp(green * amount + degenerate),
                _clamp(blue * amount + degenerate),
            )
        elif operation == _SATURATION:
            degenerate = _luminance(red, green, blue) * (1 - amount)
            red, green, blue = (
                _clamp(red * amount + degenerate),
                _clamp(green * amount + degenerate),
                _clamp(blue * amount + degenerate),
            )
        elif operation == _HUE:
            red, green, blue = _shift_hue(red, green, blue, amount)
    return red, green, blue


@triton.jit
def _shift_hue(red, green, blue, amount):
    """See ``shift_hue``."""
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - tl.minimum(tl.minimum(red, green), blue)
    span = tl.where(chroma > 0, chroma, 1.0)
    from_green = tl.where(high == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    sixth = tl.where(high == red, (green - blue) / span, from_green) + 6 * amount
    red = high - chroma * _distance_to_max(sixth + 5)
    green = high - chroma * _distance_to_max(sixth + 3)
    return red, green, high - chroma * _distance_to_max(sixth + 1)


@triton.jit
def _distance_to_max(hue):
    """Distance of a channel to the largest channel, relative to the chroma; ``hue`` is in sixths of the circle."""
    k = hue - 6 * tl.floor(hue / 6)
    return tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit
def _luminance(red, green, blue):
    return red * _RED_SHARE + green * _GREEN_SHARE + blue * _BLUE_SHARE


@triton.jit
def _clamp(value):
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _blur(images, kernels, out, size, DOWN: tl.constexpr, BLOCK: tl.constexpr):
    """Convolves along the columns or along the rows; border pixels repeat outside."""
    image = tl.program_id(0).to(tl.int64)
    pixels = size * size
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row, column = cell // size, cell % size
    kernel = kernels + image * (2 * _RADIUS + 1)
    source = images + image * pixels * _CHANNELS
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    for step in tl.static_range(-_RADIUS, _RADIUS + 1):
        if DOWN:
            neighbor = tl.minimum(tl.maximum(row + step, 0), size - 1) * size + column
        else:
            neighbor = row * size + tl.minimum(tl.maximum(column + step, 0), size - 1)
        weight = tl.load(kernel + _RADIUS + step)
        next_red, next_green, next_blue = _read(source + neighbor * _CHANNELS, exists)
        red += weight * next_red
        green += weight * next_green
        blue += weight * next_blue
    _write(out + (image * pixels + cell) * _CHANNELS, red, green, blue, exists)


@triton.jit
def _read(address, exists):
    red = tl.load(address, mask=exists, other=0.0)
    return red, tl.load(address + 1, mask=exists, other=0.0), tl.load(address + 2, mask=exists, other=0.0)


@triton.jit
def _write(address, red, green, blue, exists):
    tl.store(address, red, mask=exists)
    tl.store(address + 1, green, mask=exists)
    tl.store(address + 2, blue, mask=exists)
