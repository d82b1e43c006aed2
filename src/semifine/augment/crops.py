"""The random resized crop of training and the center crop of evaluation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from semifine.augment.image_batch import BoolArray, FloatArray, ImageBatch, ImageTable, IntArray, upload
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.sampling import sample_view

RATIO = (3 / 4, 4 / 3)
"""Range of the aspect ratio of a random crop."""
FLIP_PROBABILITY = 0.5
TRIALS = 10


@dataclass(frozen=True)
class Crop:
    """Boxes of N images in pixels, and which crops are flipped horizontally.

    Sampling near the border of a box sees only pixels of the box if ``clamped``, as if the box were cut out before it
    is resized. Otherwise it sees the surrounding pixels, as if the image were resized before it is cropped.
    """

    left: FloatArray
    top: FloatArray
    width: FloatArray
    height: FloatArray
    flip: BoolArray
    clamped: bool = True


def draw_crop(random: BatchRandom, table: ImageTable, scale: tuple[float, float]) -> Crop:
    """Draws the boxes of torchvision's ``RandomResizedCrop`` and the flips for all images at once.

    A box that does not fit into the image is drawn again, up to ten times. The fallback is the largest central box
    with an aspect ratio within ``RATIO``.

    Args:
        random: Random numbers of the batch.
        table: Sizes of the images.
        scale: Range of the fraction of the image area that a crop covers.
    """
    area = _between(random.uniform(TRIALS), *scale) * (table.height * table.width)[:, None]
    low, high = np.log(RATIO)
    ratio = np.exp(_between(random.uniform(TRIALS), low, high))
    position = random.uniform(2)
    flip = random.uniform() < FLIP_PROBABILITY

    width, height = np.rint(np.sqrt(area * ratio)), np.rint(np.sqrt(area / ratio))
    fits = (width > 0) & (width <= table.width[:, None]) & (height > 0) & (height <= table.height[:, None])
    first = (np.arange(len(fits)), fits.argmax(axis=1))
    width, height, any_fits = width[first], height[first], fits[first]
    max_left, max_top = table.width - width, table.height - height
    left, top = np.floor(position[:, 0] * (max_left + 1)), np.floor(position[:, 1] * (max_top + 1))
    if not any_fits.all():
        none = np.flatnonzero(~any_fits)
        sizes = table.take(none)
        width[none], height[none] = _central_box(sizes)
        left[none], top[none] = (sizes.width - width[none]) // 2, (sizes.height - height[none]) // 2
    return Crop(left, top, width, height, flip)


def center_crop(table: ImageTable, size: int) -> Crop:
    """Returns the boxes of torchvision's ``Resize(size)`` followed by ``CenterCrop(size)``."""
    shorter = np.minimum(table.height, table.width)

    def box(extent: IntArray) -> tuple[FloatArray, FloatArray]:
        resized = size * extent // shorter
        scale = extent / resized
        return np.rint((resized - size) / 2) * scale, size * scale

    left, width = box(table.width)
    top, height = box(table.height)
    return Crop(left, top, width, height, flip=np.zeros(len(shorter), dtype=np.bool_), clamped=False)


def crop_axes(crop: Crop, table: ImageTable, size: int) -> dict[str, FloatArray]:
    """Returns ``x_axis`` and ``y_axis`` of :func:`~semifine.augment.sampling.sample_view`, (N, 4) each."""
    x = _axis(crop.left, crop.width, table.width, size, crop.clamped)
    y = _axis(crop.top, crop.height, table.height, size, crop.clamped)
    x[:, 0] += crop.width * crop.flip
    x[:, 1] *= 1 - 2 * crop.flip
    return {"x_axis": x, "y_axis": y}


def crop_and_resize(images: ImageBatch, crop: Crop, size: int) -> Tensor:
    """Returns the crops, (N, 3, size, size) float32 in 0..255."""
    axes = upload(crop_axes(crop, images.table, size), images.device)
    return sample_view(images, axes["x_axis"], axes["y_axis"], None, size, torch.float32)


def _between(unit: FloatArray, low: float, high: float) -> FloatArray:
    return low + unit * (high - low)


def _central_box(table: ImageTable) -> tuple[FloatArray, FloatArray]:
    width, height = table.width.astype(np.float64), table.height.astype(np.float64)
    low, high = RATIO
    too_narrow, too_wide = width / height < low, width / height > high
    # At least one pixel: rounding can make the box of an image with one row or column empty.
    central_width = np.where(too_wide, np.maximum(np.rint(height * high), 1), width)
    central_height = np.where(too_narrow, np.maximum(np.rint(width / low), 1), height)
    return central_width, central_height


def _axis(start: FloatArray, length: FloatArray, extent: IntArray, size: int, clamped: bool) -> FloatArray:
    axis = np.empty((len(start), 4))
    axis[:, 0], axis[:, 1] = start, length / size
    axis[:, 2] = (start if clamped else 0) + 0.5
    axis[:, 3] = (start + length if clamped else extent) - 0.5
    return axis
