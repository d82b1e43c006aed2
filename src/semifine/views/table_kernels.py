"""The tables of RandAugment's colour operations as a Triton kernel: a program makes one channel's new levels."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from semifine.views import itinerary as columns
from semifine.views.colour import LEVELS, PLAIN, STATISTICAL
from semifine.views.images import CHANNELS
from semifine.views.randaugment import CODE
from semifine.views.route import TABLE_RUN

_BLOCK = 1024
_LEVELS = tl.constexpr(LEVELS)
_AUTO_CONTRAST, _CONTRAST, _EQUALIZE = (tl.constexpr(CODE[name]) for name in STATISTICAL)
_BRIGHTNESS, _POSTERIZE, _SOLARIZE = (tl.constexpr(CODE[name]) for name in PLAIN)
_BY_TABLE = tl.constexpr(TABLE_RUN)
_CODE, _RUN = tl.constexpr(columns.CODE), tl.constexpr(columns.RUN)
_MAGNITUDE, _STEP = tl.constexpr(columns.MAGNITUDE), tl.constexpr(columns.STEP)


def make_tables(thumbnails: Tensor, steps: Tensor, slot: int) -> Tensor:
    """(N, 3, 256) uint8 new levels of a slot; empty memory for images whose operation works otherwise."""
    tables = torch.empty((len(thumbnails), CHANNELS, LEVELS), dtype=torch.uint8, device=thumbnails.device)
    pixels = thumbnails.shape[-1] ** 2
    _make_tables[tables.shape[:2]](thumbnails, tables, steps, slot, pixels, BLOCK=_BLOCK, enable_fp_fusion=False)
    return tables


@triton.jit(do_not_specialize=["slot"])
def _make_tables(thumbnails, tables, steps, slot, pixels, BLOCK: tl.constexpr):
    """The new levels of one channel of one image, where its operation is one that works by table."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1)
    step = steps + (slot * tl.num_programs(0) + image) * _STEP
    if tl.load(step + _RUN) != _BY_TABLE:
        return
    code = tl.load(step + _CODE).to(tl.int32)
    magnitude = tl.load(step + _MAGNITUDE)
    level = tl.arange(0, _LEVELS)
    thumbnail = thumbnails + image * 3 * pixels
    new = level
    if code == _AUTO_CONTRAST:
        new = _auto_contrast(level, _histogram(thumbnail + channel * pixels, pixels, BLOCK))
    elif code == _EQUALIZE:
        new = _equalize(level, _histogram(thumbnail + channel * pixels, pixels, BLOCK))
    elif code == _CONTRAST:
        new = blend(_mean_grey(thumbnail, pixels, BLOCK), level, magnitude)
    elif code == _BRIGHTNESS:
        new = (magnitude * level).to(tl.int32)
    elif code == _POSTERIZE:
        dropped = 8 - magnitude.to(tl.int32)
        new = (level >> dropped) << dropped
    elif code == _SOLARIZE:
        new = tl.where(level < magnitude, level, 255 - level)
    tl.store(tables + (image * 3 + channel) * _LEVELS + level, new.to(tl.uint8))


@triton.jit
def _histogram(channel, pixels, BLOCK: tl.constexpr):
    """(256,) how often each level occurs."""
    counts = tl.zeros((_LEVELS,), tl.int32)
    for start in range(0, pixels, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(channel + cell, mask=cell < pixels, other=0).to(tl.int32), _LEVELS)
    missing = tl.cdiv(pixels, BLOCK) * BLOCK - pixels  # these were counted as zeros
    return counts - tl.where(tl.arange(0, _LEVELS) == 0, missing, 0)


@triton.jit
def _mean_grey(thumbnail, pixels, BLOCK: tl.constexpr):
    """The mean luminance, rounded."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pixels, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        exists = cell < pixels
        red = tl.load(thumbnail + cell, mask=exists, other=0).to(tl.int32)
        green = tl.load(thumbnail + pixels + cell, mask=exists, other=0).to(tl.int32)
        blue = tl.load(thumbnail + 2 * pixels + cell, mask=exists, other=0).to(tl.int32)
        total += grey(red, green, blue)
    return (tl.sum(total, axis=0) + pixels // 2) // pixels


@triton.jit
def _auto_contrast(level, counts):
    """See ``colour.auto_contrast``."""
    low = tl.min(tl.where(counts > 0, level, 255), axis=0)
    high = tl.max(tl.where(counts > 0, level, 0), axis=0)
    stretched = tl.minimum(tl.maximum(level - low, 0) * 255 // tl.maximum(high - low, 1), 255)
    return tl.where(high > low, stretched, level)


@triton.jit
def _equalize(level, counts):
    """See ``colour.equalize``."""
    running = tl.cumsum(counts, axis=0)
    total = tl.sum(counts, axis=0)
    step = tl.max(tl.where(running < total, running, 0), axis=0) // 255
    spread = tl.minimum((running - counts + step // 2) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, spread, level)


@triton.jit
def grey(red, green, blue):
    """See ``colour.grey``."""
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


@triton.jit
def blend(dull, value, factor):
    """See ``colour.blend``: whole levels from whole levels."""
    return ((value - dull).to(tl.float32) * factor.to(tl.float32) + dull.to(tl.float32)).to(tl.int32)
