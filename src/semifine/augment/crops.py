"""Upright crops: the random-resized crop of training, the central crop of testing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semifine.augment.image_batch import BoolArray, FloatArray, ImageBatch, ImageTable, IntArray, upload
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.sampling import sample_view
from semifine.augment.settings import AugmentSettings

TRIES = 10


@dataclass(frozen=True)
class Crop:
    """Boxes of N images, in pixels, and which of them are mirrored.

    ``closed`` says whether sampling stays within the box, as when the box is cut out first and then
    resized; otherwise the interpolation at its border sees the pixels around it.
    """

    left: FloatArray
    top: FloatArray
    width: FloatArray
    height: FloatArray
    flip: BoolArray
    closed: bool = True


def draw_crop(random: BatchRandom, table: ImageTable, settings: AugmentSettings) -> Crop:
    """The boxes of torchvision's RandomResizedCrop, drawn for all samples at once, and the flips.

    A box is drawn up to ten times, until it fits into the image; then it falls back to the largest
    central box whose aspect ratio is allowed.
    """
    area = _between(random.uniform(TRIES), *settings.crop_scale) * (table.height * table.width)[:, None]
    low, high = np.log(settings.crop_ratio)
    ratio = np.exp(_between(random.uniform(TRIES), low, high))
    place = random.uniform(2)
    flip = random.uniform() < settings.flip_probability

    width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (width > 0) & (width <= table.width[:, None]) & (height > 0) & (height <= table.height[:, None])
    first = (np.arange(len(fits)), fits.argmax(axis=1))
    width, height, any_fits = width[first], height[first], fits[first]
    spare_x, spare_y = table.width - width, table.height - height
    left, top = np.floor(place[:, 0] * (spare_x + 1)), np.floor(place[:, 1] * (spare_y + 1))
    if not any_fits.all():
        none = np.flatnonzero(~any_fits)
        sides = table.take(none)
        width[none], height[none] = _central_box(sides, *settings.crop_ratio)
        left[none], top[none] = (sides.width - width[none]) // 2, (sides.height - height[none]) // 2
    return Crop(left, top, width, height, flip)


def center_crop(table: ImageTable, size: int) -> Crop:
    """Resize of the shorter side to ``size``, then the central square, as torchvision rounds them."""
    shorter = np.minimum(table.height, table.width)

    def box(extent: IntArray) -> tuple[FloatArray, FloatArray]:
        resized = size * extent // shorter
        scale = extent / resized
        return np.rint((resized - size) / 2) * scale, size * scale

    left, width = box(table.width)
    top, height = box(table.height)
    return Crop(left, top, width, height, flip=np.zeros(len(shorter), dtype=np.bool_), closed=False)


def crop_lines(crop: Crop, table: ImageTable, size: int) -> dict[str, FloatArray]:
    """Maps from output position to image coordinate, for x and y: (N, 4) start, step, lowest, highest."""
    x = _lines(crop.left, crop.width, table.width, size, crop.closed)
    y = _lines(crop.top, crop.height, table.height, size, crop.closed)
    x[:, 0] += crop.width * crop.flip
    x[:, 1] *= 1 - 2 * crop.flip
    return {"x_line": x, "y_line": y}


def render_crop(images: ImageBatch, crop: Crop, size: int) -> Tensor:
    """The crops as (N, 3, size, size) float32 in 0..255."""
    lines = upload(crop_lines(crop, images.table, size), images.device)
    return sample_view(images, lines["x_line"], lines["y_line"], None, size, torch.float32)


def _between(unit: FloatArray, low: float, high: float) -> FloatArray:
    return low + unit * (high - low)


def _central_box(table: ImageTable, lowest: float, highest: float) -> tuple[FloatArray, FloatArray]:
    width, height = table.width.astype(np.float64), table.height.astype(np.float64)
    narrow, wide = width / height < lowest, width / height > highest
    # At least one pixel: rounding would otherwise empty the box of an image of one row or column.
    central_width = np.where(wide, np.maximum(np.rint(height * highest), 1), width)
    central_height = np.where(narrow, np.maximum(np.rint(width / lowest), 1), height)
    return central_width, central_height


def _lines(start: FloatArray, length: FloatArray, extent: IntArray, size: int, closed: bool) -> FloatArray:
    lines = np.empty((len(start), 4))
    lines[:, 0], lines[:, 1] = start, length / size
    lines[:, 2] = (start if closed else 0) + 0.5
    lines[:, 3] = (start + length if closed else extent) - 0.5
    return lines
