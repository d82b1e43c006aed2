"""RandAugment as Triton kernels: each program processes one image with the parameters of its row."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from semifine.augment.image_batch import CHANNELS, ImageBatch, upload
from semifine.augment.randaugment import (
    CUTOUT,
    CUTOUT_FILL,
    FRAME,
    GEOMETRY_RUN,
    HAS_THUMBNAIL,
    IS_ASKED,
    MAGNITUDE,
    OPERATION,
    RUN,
    RUNS,
    STEP,
    TABLE_RUN,
    THUMBNAIL_MAP,
    TO_SOURCE,
    VIEW_MAP,
    X_LINE,
    Y_LINE,
    KernelParams,
)
from semifine.augment.randaugment_ops import CODE, LEVELS, MIXING, PLAIN, STATISTICAL
from semifine.augment.triton.sampling import along, sample

_BLOCK = 1024
_LEVELS = tl.constexpr(LEVELS)
_AUTO_CONTRAST, _CONTRAST, _EQUALIZE = (tl.constexpr(CODE[name]) for name in STATISTICAL)
_BRIGHTNESS, _POSTERIZE, _SOLARIZE = (tl.constexpr(CODE[name]) for name in PLAIN)
_BY_TABLE = tl.constexpr(TABLE_RUN)
_OPERATION, _RUN = tl.constexpr(OPERATION), tl.constexpr(RUN)
_MAGNITUDE, _STEP = tl.constexpr(MAGNITUDE), tl.constexpr(STEP)


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
    code = tl.load(step + _OPERATION).to(tl.int32)
    magnitude = tl.load(step + _MAGNITUDE)
    level = tl.arange(0, _LEVELS)
    thumbnail = thumbnails + image * 3 * pixels
    new = level
    if code == _AUTO_CONTRAST:
        new = _auto_contrast(level, _histogram(thumbnail + channel * pixels, pixels, BLOCK))
    elif code == _EQUALIZE:
        new = _equalize(level, _histogram(thumbnail + channel * pixels, pixels, BLOCK))
    elif code == _CONTRAST:
        new = blend(_mean_gray(thumbnail, pixels, BLOCK), level, magnitude)
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
def _mean_gray(thumbnail, pixels, BLOCK: tl.constexpr):
    """The mean luminance, rounded."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pixels, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        exists = cell < pixels
        red = tl.load(thumbnail + cell, mask=exists, other=0).to(tl.int32)
        green = tl.load(thumbnail + pixels + cell, mask=exists, other=0).to(tl.int32)
        blue = tl.load(thumbnail + 2 * pixels + cell, mask=exists, other=0).to(tl.int32)
        total += gray(red, green, blue)
    return (tl.sum(total, axis=0) + pixels // 2) // pixels


@triton.jit
def _auto_contrast(level, counts):
    """See ``color.auto_contrast``."""
    low = tl.min(tl.where(counts > 0, level, 255), axis=0)
    high = tl.max(tl.where(counts > 0, level, 0), axis=0)
    stretched = tl.minimum(tl.maximum(level - low, 0) * 255 // tl.maximum(high - low, 1), 255)
    return tl.where(high > low, stretched, level)


@triton.jit
def _equalize(level, counts):
    """See ``color.equalize``."""
    running = tl.cumsum(counts, axis=0)
    total = tl.sum(counts, axis=0)
    step = tl.max(tl.where(running < total, running, 0), axis=0) // 255
    spread = tl.minimum((running - counts + step // 2) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, spread, level)


@triton.jit
def gray(red, green, blue):
    """See ``color.gray``."""
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


@triton.jit
def blend(dull, value, factor):
    """See ``color.blend``: whole levels from whole levels."""
    return ((value - dull).to(tl.float32) * factor.to(tl.float32) + dull.to(tl.float32)).to(tl.int32)


_EXACT = {"enable_fp_fusion": False}
"""Rounds after every operation, as torch does."""
_COLOR, _SHARPNESS = (tl.constexpr(RUNS.index((name,))) for name in MIXING)
_MOVED = tl.constexpr(GEOMETRY_RUN)
_RED_FILL, _GREEN_FILL, _BLUE_FILL = (tl.constexpr(level) for level in CUTOUT_FILL)

_X_LINE, _Y_LINE, _CUTOUT = (tl.constexpr(place) for place in (X_LINE, Y_LINE, CUTOUT))
_HAS_THUMBNAIL, _FRAME = tl.constexpr(HAS_THUMBNAIL), tl.constexpr(FRAME)
_IS_ASKED = tl.constexpr(IS_ASKED)
_VIEW_MAP, _THUMBNAIL_MAP = tl.constexpr(VIEW_MAP), tl.constexpr(THUMBNAIL_MAP)


def render(images: ImageBatch, params: KernelParams, size: int, thumbnail_size: int) -> Tensor:
    """(N, 3, size, size) float32 views of whole levels, channels last."""
    sent = upload(params._asdict(), images.device, narrow=False)
    frame, steps = sent["frame"], sent["steps"]
    x_line, y_line = frame[:, X_LINE:Y_LINE], frame[:, Y_LINE:TO_SOURCE]
    to_source = frame[:, TO_SOURCE:CUTOUT]
    views = sample(images, x_line, y_line, to_source, size, torch.uint8)
    if not len(images):
        return views.float()
    return cut_out(walk(views, first_thumbnails(images, frame, thumbnail_size), frame, steps), frame)


def walk(views: Tensor, thumbnails: Tensor, frame: Tensor, steps: Tensor) -> Tensor:
    """The views (N, 3, H, H) uint8 after all slots."""
    for slot in range(len(steps)):
        tables = make_tables(thumbnails, steps, slot)
        views = change(views, tables, frame, steps, slot, are_thumbnails=False)
        if slot + 1 < len(steps):
            thumbnails = change(thumbnails, tables, frame, steps, slot, are_thumbnails=True)
    return views


def change(pictures: Tensor, tables: Tensor, frame: Tensor, steps: Tensor, slot: int, are_thumbnails: bool) -> Tensor:
    """Views or thumbnails after one slot; thumbnails that no later slot asks for become empty memory."""
    out = torch.empty_like(pictures)
    arguments = (pictures, out, tables, frame, steps, slot, pictures.shape[-1])
    _change[_grid(pictures)](*arguments, ARE_THUMBNAILS=are_thumbnails, BLOCK=_BLOCK, **_EXACT)
    return out


def first_thumbnails(images: ImageBatch, frame: Tensor, size: int) -> Tensor:
    """(N, 3, size, size) uint8, see ``walk.first_thumbnails``; empty memory for images that need none."""
    thumbnails = torch.empty((len(images), CHANNELS, size, size), dtype=torch.uint8, device=images.device)
    _take_thumbnails[_grid(thumbnails)](
        images.pixels, images.columns, images.columns.stride(0), frame, thumbnails, size, BLOCK=_BLOCK, **_EXACT
    )
    return thumbnails


def cut_out(views: Tensor, frame: Tensor) -> Tensor:
    """The views with their cutouts, as float32, channels last."""
    out = torch.empty(views.shape, dtype=torch.float32, device=views.device, memory_format=torch.channels_last)
    _cut_out[_grid(views)](views, frame, out, views.shape[-1], BLOCK=_BLOCK, **_EXACT)
    return out


def _grid(pictures: Tensor) -> tuple[int, int]:
    return len(pictures), -(-(pictures.shape[-1] ** 2) // _BLOCK)


@triton.jit
def _take_thumbnails(pixels, layout, layout_stride, frame, thumbnails, size, BLOCK: tl.constexpr):
    """Picks the pixels of a grid that spans the whole image."""
    image = tl.program_id(0).to(tl.int64)
    if tl.load(frame + image * _FRAME + _HAS_THUMBNAIL) == 0:
        return
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < size * size
    offset = tl.load(layout + image).to(tl.int64)
    height = tl.load(layout + layout_stride + image)
    width = tl.load(layout + 2 * layout_stride + image)
    left = _picked(cell % size, size, width)
    top = _picked(cell // size, size, height)
    source = pixels + offset + (top.to(tl.int64) * width + left) * 3
    at = thumbnails + image * 3 * size * size + cell
    for channel in tl.static_range(3):
        tl.store(at + channel * size * size, tl.load(source + channel, mask=exists, other=0), mask=exists)


@triton.jit
def _picked(place, size, extent):
    """The pixel of an image's side that a place of the grid shows."""
    share = tl.div_rn(place + 0.5, size * 1.0)
    return tl.minimum((share * extent.to(tl.float32)).to(tl.int32), extent.to(tl.int32) - 1)


@triton.jit(do_not_specialize=["slot"])
def _change(pictures, out, tables, frame, steps, slot, size, ARE_THUMBNAILS: tl.constexpr, BLOCK: tl.constexpr):
    """One slot of the views, or of those thumbnails that a later slot asks for."""
    image = tl.program_id(0).to(tl.int64)
    step = steps + (slot * tl.num_programs(0) + image) * _STEP
    if ARE_THUMBNAILS:  # noqa: SIM102 - of the compiler the one, of the device the other
        if tl.load(step + _IS_ASKED) == 0:
            return
    run = tl.load(step + _RUN).to(tl.int32)
    pixels = size * size
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row, column = cell // size, cell % size
    source, filled = cell, exists
    if run == _MOVED:
        if ARE_THUMBNAILS:
            source, filled = _moved(step + _THUMBNAIL_MAP, row, column, size, exists)
        else:
            filled = exists & _is_inside(step + _VIEW_MAP, frame + image * _FRAME, row, column)
    picture = pictures + image * 3 * pixels
    red = tl.load(picture + source, mask=filled, other=0).to(tl.int32)
    green = tl.load(picture + pixels + source, mask=filled, other=0).to(tl.int32)
    blue = tl.load(picture + 2 * pixels + source, mask=filled, other=0).to(tl.int32)
    if run == _BY_TABLE:
        table = tables + image * 3 * _LEVELS
        red = tl.load(table + red).to(tl.int32)
        green = tl.load(table + _LEVELS + green).to(tl.int32)
        blue = tl.load(table + 2 * _LEVELS + blue).to(tl.int32)
    elif run == _COLOR:
        magnitude = tl.load(step + _MAGNITUDE)
        dull = gray(red, green, blue)
        red, green, blue = blend(dull, red, magnitude), blend(dull, green, magnitude), blend(dull, blue, magnitude)
    elif run == _SHARPNESS:  # noqa: SIM102
        if not ARE_THUMBNAILS:
            magnitude = tl.load(step + _MAGNITUDE)
            # The border stays as it is, and so does a view that is nothing but border.
            inner = exists & (row > 0) & (row < size - 1) & (column > 0) & (column < size - 1)
            red = _sharpened(red, picture + cell, size, inner, magnitude)
            green = _sharpened(green, picture + pixels + cell, size, inner, magnitude)
            blue = _sharpened(blue, picture + 2 * pixels + cell, size, inner, magnitude)
    target = out + image * 3 * pixels + cell
    tl.store(target, red.to(tl.uint8), mask=exists)
    tl.store(target + pixels, green.to(tl.uint8), mask=exists)
    tl.store(target + 2 * pixels, blue.to(tl.uint8), mask=exists)


@triton.jit
def _sharpened(value, at, size, inner, magnitude):
    """See ``color.sharpness``."""
    total = 4 * value
    for place in tl.static_range(9):
        neighbor = at + (place // 3 - 1) * size + (place % 3 - 1)
        total += tl.load(neighbor, mask=inner, other=0).to(tl.int32)
    return tl.where(inner, blend((total + 6) // 13, value, magnitude), value)


@triton.jit
def _is_inside(own_map, own_frame, row, column):
    """See ``walk.is_inside``."""
    x = along(own_frame + _X_LINE, column + 0.5)
    y = along(own_frame + _Y_LINE, row + 0.5)
    return tl.maximum(tl.abs(_led(own_map, x, y)), tl.abs(_led(own_map + 3, x, y))) < 1


@triton.jit
def _moved(own_map, row, column, size, exists):
    """Where a thumbnail's pixels come from, and whether that is inside; see ``walk.move``."""
    x = tl.floor(_led(own_map, column + 0.5, row + 0.5))
    y = tl.floor(_led(own_map + 3, column + 0.5, row + 0.5))
    inside = exists & (x >= 0) & (x < size) & (y >= 0) & (y < size)
    return tl.where(inside, y * size + x, 0.0).to(tl.int32), inside


@triton.jit
def _led(map_row, x, y):
    """Where a row of a map leads."""
    by_x, by_y, shift = tl.load(map_row), tl.load(map_row + 1), tl.load(map_row + 2)
    return (by_x.to(tl.float32) * x + shift.to(tl.float32)) + by_y.to(tl.float32) * y


@triton.jit
def _cut_out(views, frame, out, size, BLOCK: tl.constexpr):
    """Fills the cutout, and goes from planes of bytes to pixels of floats."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = size * size
    exists = cell < pixels
    own = frame + image * _FRAME
    x = along(own + _X_LINE, cell % size + 0.5)
    y = along(own + _Y_LINE, cell // size + 0.5)
    edges = own + _CUTOUT
    within_x = (x >= tl.load(edges)) & (x < tl.load(edges + 2))
    within_y = (y >= tl.load(edges + 1)) & (y < tl.load(edges + 3))
    seen = exists & ~(within_x & within_y)
    source = views + image * 3 * pixels + cell
    red = tl.load(source, mask=seen, other=_RED_FILL).to(tl.float32)
    green = tl.load(source + pixels, mask=seen, other=_GREEN_FILL).to(tl.float32)
    blue = tl.load(source + 2 * pixels, mask=seen, other=_BLUE_FILL).to(tl.float32)
    target = out + (image * pixels + cell) * 3
    tl.store(target, red, mask=exists)
    tl.store(target + 1, green, mask=exists)
    tl.store(target + 2, blue, mask=exists)
