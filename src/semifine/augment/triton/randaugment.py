"""RandAugment as Triton kernels: each program processes a block of one image with the parameters of the image."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment.crops import Crop, crop_axes
from semifine.augment.image_batch import CHANNELS, FloatArray, ImageBatch, ImageTable, upload
from semifine.augment.randaugment import (
    CUTOUT_FILL,
    REFERENCE_SIZE,
    RandAugmentParams,
    affine_maps,
    reference_needed,
)
from semifine.augment.randaugment_ops import CODE, GEOMETRIC, MIXING, NUM_VALUES, OPERATIONS, POINTWISE, STATISTICAL
from semifine.augment.triton.sampling import position_on_axis, sample

KINDS = ((*STATISTICAL, *POINTWISE), *((name,) for name in MIXING), tuple(GEOMETRIC), ("Identity",))
"""Operations with the same code path: lookup table, each mixing operation, geometry, identity."""
KIND = np.array([next(i for i, names in enumerate(KINDS) if name in names) for name in OPERATIONS])
"""Index in ``KINDS`` of each operation."""

# Columns of the parameters of an image, and their number.
X_AXIS, Y_AXIS, TO_SOURCE, CUTOUT, NEEDS_REFERENCE, IMAGE_COLUMNS = 0, 4, 8, 14, 18, 19
# Columns of the parameters of a step of an image, and their number.
OPERATION, STEP_KIND, KEEPS_REFERENCE, MAGNITUDE, VIEW_MAP, REFERENCE_MAP, STEP_COLUMNS = 0, 1, 2, 3, 4, 10, 16


class KernelParams(NamedTuple):
    """Parameters of N images as arrays that the kernels read."""

    images: NDArray[np.float32]
    """(N, IMAGE_COLUMNS) axes of the crop, map to the original image, edges of the cutout, and whether any operation
    needs the reference."""
    steps: FloatArray
    """(steps, N, STEP_COLUMNS) code and kind of the operation, whether a later step needs the reference, magnitude, and
    maps of views and references. They are float64, like the magnitudes of the lookup tables that the host computes."""


def pack_params(
    params: RandAugmentParams, crop: Crop, table: ImageTable, size: int, reference_size: int
) -> KernelParams:
    """Packs the parameters of all images for views and references of the given sizes."""
    count, num_steps = params.codes.shape
    maps = affine_maps(params, table, reference_size)
    needed = reference_needed(params.codes)
    images = np.empty((count, IMAGE_COLUMNS), dtype=np.float32)
    axes = crop_axes(crop, table, size)
    images[:, X_AXIS:Y_AXIS], images[:, Y_AXIS:TO_SOURCE] = axes["x_axis"], axes["y_axis"]
    images[:, TO_SOURCE:CUTOUT] = maps.to_source.reshape(count, 6)
    images[:, CUTOUT:NEEDS_REFERENCE] = params.cutout
    images[:, NEEDS_REFERENCE] = needed[:, 0]
    steps = np.empty((num_steps, count, STEP_COLUMNS))
    steps[..., OPERATION], steps[..., STEP_KIND] = params.codes.T, KIND[params.codes.T]
    steps[..., KEEPS_REFERENCE], steps[..., MAGNITUDE] = needed[:, 1:].T, params.magnitudes.T
    steps[..., VIEW_MAP:REFERENCE_MAP] = maps.view.reshape(num_steps, count, 6)
    steps[..., REFERENCE_MAP:] = maps.reference.reshape(num_steps, count, 6)
    return KernelParams(images, steps)


_BLOCK = 1024
_EXACT = {"enable_fp_fusion": False}
"""Rounds after every operation, as PyTorch does."""


def apply_randaugment(
    images: ImageBatch, params: RandAugmentParams, crop: Crop, size: int, reference_size: int = REFERENCE_SIZE
) -> Tensor:
    """Implements :func:`semifine.augment.randaugment.apply_randaugment`.

    Returns:
        (N, 3, size, size) float32 views of integer values, channels-last.
    """
    reference_size = min(reference_size, size)
    packed = pack_params(params, crop, images.table, size, reference_size)
    sent = upload(packed._asdict(), images.device, narrow=False)
    image_params, step_params = sent["images"], sent["steps"]
    x_axis, y_axis = image_params[:, X_AXIS:Y_AXIS], image_params[:, Y_AXIS:TO_SOURCE]
    views = sample(images, x_axis, y_axis, image_params[:, TO_SOURCE:CUTOUT], size, torch.uint8)
    if not len(images):
        return views.float()
    references = sample_references(images, image_params, reference_size)
    num_steps = len(step_params)
    for step in range(num_steps):
        tables = make_tables(references, step_params, step)
        views = apply_step(views, tables, image_params, step_params, step, are_references=False)
        if step + 1 < num_steps:
            references = apply_step(references, tables, image_params, step_params, step, are_references=True)
    return cut_out(views, image_params)


def make_tables(references: Tensor, step_params: Tensor, step: int) -> Tensor:
    """Computes the (N, 3, 256) uint8 lookup tables of a step; uninitialized for operations without a table."""
    tables = torch.empty((len(references), CHANNELS, NUM_VALUES), dtype=torch.uint8, device=references.device)
    pixels = references.shape[-1] ** 2
    _make_tables[tables.shape[:2]](references, tables, step_params, step, pixels, BLOCK=_BLOCK, **_EXACT)
    return tables


def apply_step(
    images: Tensor, tables: Tensor, image_params: Tensor, step_params: Tensor, step: int, are_references: bool
) -> Tensor:
    """Applies one step to views or references; references that no later step needs become uninitialized."""
    out = torch.empty_like(images)
    arguments = (images, out, tables, image_params, step_params, step, images.shape[-1])
    _apply_step[_grid(images)](*arguments, ARE_REFERENCES=are_references, BLOCK=_BLOCK, **_EXACT)
    return out


def sample_references(images: ImageBatch, image_params: Tensor, size: int) -> Tensor:
    """Samples (N, 3, size, size) uint8 references; uninitialized for images that need none."""
    references = torch.empty((len(images), CHANNELS, size, size), dtype=torch.uint8, device=images.device)
    _sample_references[_grid(references)](
        images.pixels, images.columns, images.columns.stride(0), image_params, references, size, BLOCK=_BLOCK, **_EXACT
    )
    return references


def cut_out(views: Tensor, image_params: Tensor) -> Tensor:
    """Fills the cutouts; returns float32 views, channels-last."""
    out = torch.empty(views.shape, dtype=torch.float32, device=views.device, memory_format=torch.channels_last)
    _cut_out[_grid(views)](views, image_params, out, views.shape[-1], BLOCK=_BLOCK, **_EXACT)
    return out


def _grid(images: Tensor) -> tuple[int, int]:
    return len(images), -(-(images.shape[-1] ** 2) // _BLOCK)


_NUM_VALUES = tl.constexpr(NUM_VALUES)
_AUTO_CONTRAST, _CONTRAST, _EQUALIZE = (tl.constexpr(CODE[name]) for name in STATISTICAL)
_BRIGHTNESS, _POSTERIZE, _SOLARIZE = (tl.constexpr(CODE[name]) for name in POINTWISE)
_TABLE, _COLOR, _SHARPNESS, _GEOMETRIC, _ = (tl.constexpr(kind) for kind in range(len(KINDS)))
_RED_FILL, _GREEN_FILL, _BLUE_FILL = (tl.constexpr(value) for value in CUTOUT_FILL)
_X_AXIS, _Y_AXIS, _CUTOUT = (tl.constexpr(column) for column in (X_AXIS, Y_AXIS, CUTOUT))
_NEEDS_REFERENCE, _IMAGE_COLUMNS = tl.constexpr(NEEDS_REFERENCE), tl.constexpr(IMAGE_COLUMNS)
_OPERATION, _KIND, _MAGNITUDE = tl.constexpr(OPERATION), tl.constexpr(STEP_KIND), tl.constexpr(MAGNITUDE)
_KEEPS_REFERENCE, _STEP_COLUMNS = tl.constexpr(KEEPS_REFERENCE), tl.constexpr(STEP_COLUMNS)
_VIEW_MAP, _REFERENCE_MAP = tl.constexpr(VIEW_MAP), tl.constexpr(REFERENCE_MAP)


@triton.jit(do_not_specialize=["step"])
def _make_tables(references, tables, step_params, step, pixels, BLOCK: tl.constexpr):
    """Computes the lookup table of one channel of one image if its operation uses a table."""
    image = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1)
    params = step_params + (step * tl.num_programs(0) + image) * _STEP_COLUMNS
    if tl.load(params + _KIND) != _TABLE:
        return
    code = tl.load(params + _OPERATION).to(tl.int32)
    magnitude = tl.load(params + _MAGNITUDE)
    value = tl.arange(0, _NUM_VALUES)
    reference = references + image * 3 * pixels
    new = value
    if code == _AUTO_CONTRAST:
        new = _auto_contrast(value, _histogram(reference + channel * pixels, pixels, BLOCK))
    elif code == _EQUALIZE:
        new = _equalize(value, _histogram(reference + channel * pixels, pixels, BLOCK))
    elif code == _CONTRAST:
        new = blend(_mean_luminance(reference, pixels, BLOCK), value, magnitude)
    elif code == _BRIGHTNESS:
        new = (magnitude * value).to(tl.int32)
    elif code == _POSTERIZE:
        dropped = 8 - magnitude.to(tl.int32)
        new = (value >> dropped) << dropped
    elif code == _SOLARIZE:
        new = tl.where(value < magnitude, value, 255 - value)
    tl.store(tables + (image * 3 + channel) * _NUM_VALUES + value, new.to(tl.uint8))


@triton.jit
def _histogram(channel, pixels, BLOCK: tl.constexpr):
    """(256,) counts of each value."""
    counts = tl.zeros((_NUM_VALUES,), tl.int32)
    for start in range(0, pixels, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        counts += tl.histogram(tl.load(channel + cell, mask=cell < pixels, other=0).to(tl.int32), _NUM_VALUES)
    missing = tl.cdiv(pixels, BLOCK) * BLOCK - pixels  # counted as zeros
    return counts - tl.where(tl.arange(0, _NUM_VALUES) == 0, missing, 0)


@triton.jit
def _mean_luminance(reference, pixels, BLOCK: tl.constexpr):
    """Rounded mean luminance."""
    total = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, pixels, BLOCK):
        cell = start + tl.arange(0, BLOCK)
        exists = cell < pixels
        red = tl.load(reference + cell, mask=exists, other=0).to(tl.int32)
        green = tl.load(reference + pixels + cell, mask=exists, other=0).to(tl.int32)
        blue = tl.load(reference + 2 * pixels + cell, mask=exists, other=0).to(tl.int32)
        total += luminance(red, green, blue)
    return (tl.sum(total, axis=0) + pixels // 2) // pixels


@triton.jit
def _auto_contrast(value, counts):
    """See ``randaugment_ops.auto_contrast``."""
    low = tl.min(tl.where(counts > 0, value, 255), axis=0)
    high = tl.max(tl.where(counts > 0, value, 0), axis=0)
    stretched = tl.minimum(tl.maximum(value - low, 0) * 255 // tl.maximum(high - low, 1), 255)
    return tl.where(high > low, stretched, value)


@triton.jit
def _equalize(value, counts):
    """See ``randaugment_ops.equalize``."""
    cumulative = tl.cumsum(counts, axis=0)
    total = tl.sum(counts, axis=0)
    step = tl.max(tl.where(cumulative < total, cumulative, 0), axis=0) // 255
    equalized = tl.minimum((cumulative - counts + step // 2) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, equalized, value)


@triton.jit
def luminance(red, green, blue):
    """See ``randaugment_ops.luminance``."""
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16


@triton.jit
def blend(degenerate, value, factor):
    """See ``randaugment_ops.blend``; values are integers."""
    return ((value - degenerate).to(tl.float32) * factor.to(tl.float32) + degenerate.to(tl.float32)).to(tl.int32)


@triton.jit
def _sample_references(pixels, layout, layout_stride, image_params, references, size, BLOCK: tl.constexpr):
    """See ``randaugment.sample_references``."""
    image = tl.program_id(0).to(tl.int64)
    if tl.load(image_params + image * _IMAGE_COLUMNS + _NEEDS_REFERENCE) == 0:
        return
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < size * size
    offset = tl.load(layout + image).to(tl.int64)
    height = tl.load(layout + layout_stride + image)
    width = tl.load(layout + 2 * layout_stride + image)
    left = _nearest_pixel(cell % size, size, width)
    top = _nearest_pixel(cell // size, size, height)
    source = pixels + offset + (top.to(tl.int64) * width + left) * 3
    target = references + image * 3 * size * size + cell
    for channel in tl.static_range(3):
        tl.store(target + channel * size * size, tl.load(source + channel, mask=exists, other=0), mask=exists)


@triton.jit
def _nearest_pixel(position, size, extent):
    """Pixel of the image at a position of the reference, along one axis."""
    share = tl.div_rn(position + 0.5, size * 1.0)
    return tl.minimum((share * extent.to(tl.float32)).to(tl.int32), extent.to(tl.int32) - 1)


@triton.jit(do_not_specialize=["step"])
def _apply_step(
    images, out, tables, image_params, step_params, step, size, ARE_REFERENCES: tl.constexpr, BLOCK: tl.constexpr
):
    """Applies one step to the views, or to the references that a later step needs."""
    image = tl.program_id(0).to(tl.int64)
    params = step_params + (step * tl.num_programs(0) + image) * _STEP_COLUMNS
    if ARE_REFERENCES:  # noqa: SIM102 - the compiler evaluates the outer condition, the device the inner one
        if tl.load(params + _KEEPS_REFERENCE) == 0:
            return
    kind = tl.load(params + _KIND).to(tl.int32)
    pixels = size * size
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    exists = cell < pixels
    row, column = cell // size, cell % size
    source, filled = cell, exists
    if kind == _GEOMETRIC:
        if ARE_REFERENCES:
            source, filled = _source_in_reference(params + _REFERENCE_MAP, row, column, size, exists)
        else:
            filled = exists & _is_inside(params + _VIEW_MAP, image_params + image * _IMAGE_COLUMNS, row, column)
    planes = images + image * 3 * pixels
    red = tl.load(planes + source, mask=filled, other=0).to(tl.int32)
    green = tl.load(planes + pixels + source, mask=filled, other=0).to(tl.int32)
    blue = tl.load(planes + 2 * pixels + source, mask=filled, other=0).to(tl.int32)
    if kind == _TABLE:
        table = tables + image * 3 * _NUM_VALUES
        red = tl.load(table + red).to(tl.int32)
        green = tl.load(table + _NUM_VALUES + green).to(tl.int32)
        blue = tl.load(table + 2 * _NUM_VALUES + blue).to(tl.int32)
    elif kind == _COLOR:
        magnitude = tl.load(params + _MAGNITUDE)
        degenerate = luminance(red, green, blue)
        red = blend(degenerate, red, magnitude)
        green = blend(degenerate, green, magnitude)
        blue = blend(degenerate, blue, magnitude)
    elif kind == _SHARPNESS:  # noqa: SIM102
        if not ARE_REFERENCES:
            magnitude = tl.load(params + _MAGNITUDE)
            # Border pixels are not filtered.
            inner = exists & (row > 0) & (row < size - 1) & (column > 0) & (column < size - 1)
            red = _sharpen(red, planes + cell, size, inner, magnitude)
            green = _sharpen(green, planes + pixels + cell, size, inner, magnitude)
            blue = _sharpen(blue, planes + 2 * pixels + cell, size, inner, magnitude)
    target = out + image * 3 * pixels + cell
    tl.store(target, red.to(tl.uint8), mask=exists)
    tl.store(target + pixels, green.to(tl.uint8), mask=exists)
    tl.store(target + 2 * pixels, blue.to(tl.uint8), mask=exists)


@triton.jit
def _sharpen(value, address, size, inner, magnitude):
    """See ``randaugment_ops.sharpness``."""
    total = 4 * value
    for index in tl.static_range(9):
        neighbor = address + (index // 3 - 1) * size + (index % 3 - 1)
        total += tl.load(neighbor, mask=inner, other=0).to(tl.int32)
    return tl.where(inner, blend((total + 6) // 13, value, magnitude), value)


@triton.jit
def _is_inside(image_map, params, row, column):
    """See ``randaugment.is_inside``."""
    x = position_on_axis(params + _X_AXIS, column + 0.5)
    y = position_on_axis(params + _Y_AXIS, row + 0.5)
    return tl.maximum(tl.abs(_map_row(image_map, x, y)), tl.abs(_map_row(image_map + 3, x, y))) < 1


@triton.jit
def _source_in_reference(image_map, row, column, size, exists):
    """Index of the source of each pixel of a reference, and whether it is inside; see ``randaugment.move``."""
    x = tl.floor(_map_row(image_map, column + 0.5, row + 0.5))
    y = tl.floor(_map_row(image_map + 3, column + 0.5, row + 0.5))
    inside = exists & (x >= 0) & (x < size) & (y >= 0) & (y < size)
    return tl.where(inside, y * size + x, 0.0).to(tl.int32), inside


@triton.jit
def _map_row(row, x, y):
    """Maps positions by one row of an affine map."""
    by_x, by_y, shift = tl.load(row), tl.load(row + 1), tl.load(row + 2)
    return (by_x.to(tl.float32) * x + shift.to(tl.float32)) + by_y.to(tl.float32) * y


@triton.jit
def _cut_out(views, image_params, out, size, BLOCK: tl.constexpr):
    """Fills the cutout and converts uint8 planes to float32 channels-last."""
    image = tl.program_id(0).to(tl.int64)
    cell = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    pixels = size * size
    exists = cell < pixels
    params = image_params + image * _IMAGE_COLUMNS
    x = position_on_axis(params + _X_AXIS, cell % size + 0.5)
    y = position_on_axis(params + _Y_AXIS, cell // size + 0.5)
    edges = params + _CUTOUT
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
