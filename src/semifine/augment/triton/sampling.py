"""Bilinear sampling as one Triton kernel: each pixel of a view is computed and written once.

PyTorch operations would need about twenty passes over tensors four times as large as the view.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from semifine.augment.image_batch import CHANNELS, ImageBatch

_BLOCK = 512


def sample(
    images: ImageBatch, x_axis: Tensor, y_axis: Tensor, maps: Tensor | None, size: int, dtype: torch.dtype
) -> Tensor:
    """Implements :func:`semifine.augment.sampling.sample_view`; float32 views are channels-last.

    Axes and maps may be columns of one tensor.
    """
    count = len(images)
    memory_format = torch.channels_last if dtype.is_floating_point else torch.contiguous_format
    shape = (count, CHANNELS, size, size)
    out = torch.empty(shape, dtype=dtype, device=images.device, memory_format=memory_format)
    if count:
        _sample[(count, -(-size * size // _BLOCK))](
            images.pixels,
            images.columns,
            images.columns.stride(0),
            x_axis,
            y_axis,
            x_axis.stride(0),
            x_axis if maps is None else maps,
            0 if maps is None else maps.stride(0),
            out,
            *out.stride(),
            size,
            HAS_MAPS=maps is not None,
            ROUND=not dtype.is_floating_point,
            OVERSAMPLE=images.oversample,
            BLOCK=_BLOCK,
        )
    return out


@triton.jit
def _sample(
    pixels,
    columns,
    column_stride,
    x_axis,
    y_axis,
    axis_stride,
    maps,
    map_stride,
    out,
    stride_image,
    stride_channel,
    stride_y,
    stride_x,
    size,
    HAS_MAPS: tl.constexpr,
    ROUND: tl.constexpr,
    OVERSAMPLE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < size * size
    row, column = cell // size, cell % size
    offset = tl.load(columns + image).to(tl.int64)
    width = tl.load(columns + 2 * column_stride + image).to(tl.int64)
    right = tl.load(columns + 3 * column_stride + image).to(tl.int64)
    down = tl.load(columns + 4 * column_stride + image).to(tl.int64)
    last_left = tl.load(columns + 5 * column_stride + image).to(tl.float32)
    last_top = tl.load(columns + 6 * column_stride + image).to(tl.float32)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    for part in tl.static_range(OVERSAMPLE * OVERSAMPLE):
        crop_x = position_on_axis(x_axis + image * axis_stride, column + (part % OVERSAMPLE + 0.5) / OVERSAMPLE)
        crop_y = position_on_axis(y_axis + image * axis_stride, row + (part // OVERSAMPLE + 0.5) / OVERSAMPLE)
        x, y = crop_x, crop_y
        if HAS_MAPS:
            image_map = maps + image * map_stride
            x = (tl.load(image_map) * crop_x + tl.load(image_map + 2)) + tl.load(image_map + 1) * crop_y
            y = (tl.load(image_map + 3) * crop_x + tl.load(image_map + 5)) + tl.load(image_map + 4) * crop_y
        left = tl.minimum(tl.maximum(tl.floor(x - 0.5), 0.0), last_left)
        top = tl.minimum(tl.maximum(tl.floor(y - 0.5), 0.0), last_top)
        x_weight = tl.minimum(tl.maximum(x - 0.5 - left, 0.0), 1.0)
        y_weight = tl.minimum(tl.maximum(y - 0.5 - top, 0.0), 1.0)
        corner = pixels + offset + (top.to(tl.int64) * width + left.to(tl.int64)) * 3
        red += _interpolate(corner, right, down, x_weight, y_weight, exists)
        green += _interpolate(corner + 1, right, down, x_weight, y_weight, exists)
        blue += _interpolate(corner + 2, right, down, x_weight, y_weight, exists)
    share = 1.0 / (OVERSAMPLE * OVERSAMPLE)
    address = out + image * stride_image + row * stride_y + column * stride_x
    _write(address, red * share, exists, ROUND)
    _write(address + stride_channel, green * share, exists, ROUND)
    _write(address + 2 * stride_channel, blue * share, exists, ROUND)


@triton.jit
def position_on_axis(axis, step):
    """Image coordinate of a step on an axis (start, step size, minimum, maximum)."""
    position = tl.load(axis) + tl.load(axis + 1) * step
    return tl.minimum(tl.maximum(position, tl.load(axis + 2)), tl.load(axis + 3))


@triton.jit
def _interpolate(corner, right, down, x_weight, y_weight, exists):
    """Interpolates one channel between four pixels."""
    upper_left = tl.load(corner, mask=exists, other=0).to(tl.float32)
    upper_right = tl.load(corner + right, mask=exists, other=0).to(tl.float32)
    lower_left = tl.load(corner + down, mask=exists, other=0).to(tl.float32)
    lower_right = tl.load(corner + down + right, mask=exists, other=0).to(tl.float32)
    upper = upper_left + x_weight * (upper_right - upper_left)
    lower = lower_left + x_weight * (lower_right - lower_left)
    return upper + y_weight * (lower - upper)


@triton.jit
def _write(address, value, exists, ROUND: tl.constexpr):
    if ROUND:
        tl.store(address, (value + 0.5).to(tl.uint8), mask=exists)
    else:
        tl.store(address, value, mask=exists)
