"""Color jitter and blur as Triton kernels: each program belongs to one picture and does what its own row says.

Every operation of the jitter changes a pixel by itself, but for contrast, which asks for the picture's mean gray at
that moment. One kernel takes that mean, a second one goes through all slots. Pictures are (N, 3, H, H) float32 in
0..255, channels last.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from semifine.augment.blur import RADIUS, kernels
from semifine.augment.color_jitter import BRIGHTNESS, CONTRAST, GRAY, HUE, SATURATION, Jitter
from semifine.augment.image_batch import CHANNELS, FloatArray, upload

_BLOCK = 1024
_NOTHING = 4
"""The operation of an empty slot."""
_BRIGHTNESS, _CONTRAST, _SATURATION, _HUE = (tl.constexpr(code) for code in (BRIGHTNESS, CONTRAST, SATURATION, HUE))
_RED_SHARE, _GREEN_SHARE, _BLUE_SHARE = (tl.constexpr(float(share)) for share in GRAY)
_BEFORE, _AMOUNTS, _IS_GRAY, _ROW = tl.constexpr(4), tl.constexpr(8), tl.constexpr(12), tl.constexpr(13)
_RADIUS = tl.constexpr(RADIUS)
_CHANNELS = tl.constexpr(CHANNELS)


def jitter(pictures: Tensor, plan: Jitter) -> Tensor:
    """See ``jitter.render_jitter``."""
    if not len(pictures):
        return pictures
    rows = upload({"rows": jitter_rows(plan)}, pictures.device)["rows"]
    pixels, grid = pictures.shape[-1] ** 2, _grid(pictures)
    sums, out = torch.empty(grid, device=pictures.device), torch.empty_like(pictures)
    _sum_gray[grid](pictures, rows, sums, pixels, BLOCK=_BLOCK)
    _jitter[grid](pictures, rows, sums, out, pixels, PARTS=1 << (grid[1] - 1).bit_length(), BLOCK=_BLOCK)
    return out


def blur(pictures: Tensor, sigma: FloatArray) -> Tensor:
    """See ``blur.blur``."""
    bells = np.zeros((len(sigma), 2 * RADIUS + 1))
    bells[:, RADIUS] = 1
    bells[sigma > 0] = kernels(sigma[sigma > 0])
    sent = upload({"bells": bells}, pictures.device)["bells"]
    for down in (True, False):
        out = torch.empty_like(pictures)
        _blur[_grid(pictures)](pictures, sent, out, pictures.shape[-1], DOWN=down, BLOCK=_BLOCK)
        pictures = out
    return pictures


def jitter_rows(plan: Jitter) -> FloatArray:
    """(N, 13): the slots' operations, those of them that come before contrast, the slots' amounts, whether gray."""
    order = np.where(plan.is_on[:, None], plan.order, _NOTHING)
    before = np.where(np.logical_or.accumulate(order == CONTRAST, axis=1), _NOTHING, order)
    amount = np.take_along_axis(plan.amount, plan.order, axis=1)
    return np.concatenate([order, before, amount, plan.is_gray[:, None]], axis=1)


def _grid(pictures: Tensor) -> tuple[int, int]:
    assert pictures.is_contiguous(memory_format=torch.channels_last)
    return len(pictures), -(-(pictures.shape[-1] ** 2) // _BLOCK)


@triton.jit
def _sum_gray(pictures, rows, sums, pixels, BLOCK: tl.constexpr):
    """(N, blocks) sums of the gray that a picture's contrast meets."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row = rows + image * _ROW
    red, green, blue = _read(pictures + (image * pixels + cell) * _CHANNELS, exists)
    red, green, blue = _go_through(row + _BEFORE, row + _AMOUNTS, red, green, blue, 0.0)
    total = tl.sum(tl.where(exists, _gray(red, green, blue), 0.0), axis=0)
    tl.store(sums + image * tl.num_programs(1) + tl.program_id(1), total)


@triton.jit
def _jitter(pictures, rows, sums, out, pixels, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    """All slots, and the gray at the end."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row = rows + image * _ROW
    parts, part = tl.num_programs(1), tl.arange(0, PARTS)
    mean = tl.sum(tl.load(sums + image * parts + part, mask=part < parts, other=0.0), axis=0) / pixels
    red, green, blue = _read(pictures + (image * pixels + cell) * _CHANNELS, exists)
    red, green, blue = _go_through(row, row + _AMOUNTS, red, green, blue, mean)
    if tl.load(row + _IS_GRAY) != 0:
        red = _clamp(_gray(red, green, blue))
        green = red
        blue = red
    _write(out + (image * pixels + cell) * _CHANNELS, red, green, blue, exists)


@triton.jit
def _go_through(operations, amounts, red, green, blue, mean):
    """A picture's four slots; ``mean`` is the gray of its contrast."""
    for slot in tl.static_range(4):
        operation = tl.load(operations + slot).to(tl.int32)
        amount = tl.load(amounts + slot)
        if operation == _BRIGHTNESS:
            red, green, blue = _clamp(red * amount), _clamp(green * amount), _clamp(blue * amount)
        elif operation == _CONTRAST:
            rest = mean * (1 - amount)
            red, green, blue = _clamp(red * amount + rest), _clamp(green * amount + rest), _clamp(blue * amount + rest)
        elif operation == _SATURATION:
            dull = _gray(red, green, blue) * (1 - amount)
            red, green, blue = _clamp(red * amount + dull), _clamp(green * amount + dull), _clamp(blue * amount + dull)
        elif operation == _HUE:
            red, green, blue = _turned(red, green, blue, amount)
    return red, green, blue


@triton.jit
def _turned(red, green, blue, amount):
    """See ``jitter.turn_hue``."""
    high = tl.maximum(tl.maximum(red, green), blue)
    chroma = high - tl.minimum(tl.minimum(red, green), blue)
    span = tl.where(chroma > 0, chroma, 1.0)
    from_green = tl.where(high == green, 2 + (blue - red) / span, 4 + (red - green) / span)
    sixth = tl.where(high == red, (green - blue) / span, from_green) + 6 * amount
    return high - chroma * _fall(sixth + 5), high - chroma * _fall(sixth + 3), high - chroma * _fall(sixth + 1)


@triton.jit
def _fall(place):
    """How far a channel lies below the largest one, by its place on the color circle in sixths."""
    k = place - 6 * tl.floor(place / 6)
    return tl.minimum(tl.maximum(tl.minimum(k, 4 - k), 0.0), 1.0)


@triton.jit
def _gray(red, green, blue):
    return red * _RED_SHARE + green * _GREEN_SHARE + blue * _BLUE_SHARE


@triton.jit
def _clamp(value):
    return tl.minimum(tl.maximum(value, 0.0), 255.0)


@triton.jit
def _blur(pictures, bells, out, size, DOWN: tl.constexpr, BLOCK: tl.constexpr):
    """Along the columns or along the rows; the border pixels go on outside."""
    image = tl.program_id(0).to(tl.int64)
    pixels = size * size
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row, column = cell // size, cell % size
    bell = bells + image * (2 * _RADIUS + 1)
    picture = pictures + image * pixels * _CHANNELS
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    for step in tl.static_range(-_RADIUS, _RADIUS + 1):
        if DOWN:
            source = tl.minimum(tl.maximum(row + step, 0), size - 1) * size + column
        else:
            source = row * size + tl.minimum(tl.maximum(column + step, 0), size - 1)
        weight = tl.load(bell + _RADIUS + step)
        red_there, green_there, blue_there = _read(picture + source * _CHANNELS, exists)
        red += weight * red_there
        green += weight * green_there
        blue += weight * blue_there
    _write(out + (image * pixels + cell) * _CHANNELS, red, green, blue, exists)


@triton.jit
def _read(at, exists):
    red = tl.load(at, mask=exists, other=0.0)
    return red, tl.load(at + 1, mask=exists, other=0.0), tl.load(at + 2, mask=exists, other=0.0)


@triton.jit
def _write(at, red, green, blue, exists):
    tl.store(at, red, mask=exists)
    tl.store(at + 1, green, mask=exists)
    tl.store(at + 2, blue, mask=exists)
