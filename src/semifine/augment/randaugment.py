"""RandAugment with Cutout: parameters drawn on the host, applied with PyTorch or with the Triton kernels.

As in the paper's code, the operations change the whole image before it is cropped. To save time, only the pixels of the
view are computed: geometric operations are composed to one affine map, and color operations run on the view. Operations
that need statistics of the whole image (such as Equalize) take them from a *reference*, a small copy of the image that
undergoes the same operations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment.crops import Crop, crop_axes
from semifine.augment.image_batch import BoolArray, FloatArray, ImageBatch, ImageTable, IntArray, upload
from semifine.augment.randaugment_ops import (
    CODE,
    GEOMETRIC,
    MIXING,
    OPERATIONS,
    POINTWISE,
    RANGES,
    STATISTICAL,
    apply_table,
    compose,
    identity,
    pointwise_table,
    rescale,
)
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.sampling import apply_affine, crop_coordinates, sample_nearest, sample_view

NUM_OPERATIONS = 3
"""Operations per image."""
REFERENCE_SIZE = 128
"""Side of the reference, at most the side of the view. Pillow's Equalize divides the number of pixels by 255 and drops
the remainder, which changes the result on small images."""
CUTOUT_FILL = (125, 123, 114)
MAX_CUTOUT = 0.5
"""Longest side of the cutout, as a fraction of the image width."""


@dataclass(frozen=True)
class RandAugmentParams:
    """Random parameters of N images."""

    codes: IntArray
    """(N, steps) codes of the operations."""
    magnitudes: FloatArray
    """(N, steps)."""
    cutout: FloatArray
    """(N, 4) left, top, right and bottom edge of the cutout in pixels of the image."""


def draw_randaugment(random: BatchRandom, table: ImageTable, num_operations: int = NUM_OPERATIONS) -> RandAugmentParams:
    """Draws the operations, their magnitudes and the cutouts."""
    codes = random.integers(len(OPERATIONS), num_operations)
    low, high = np.array(list(RANGES.values())).T
    magnitudes = low[codes] + random.uniform(num_operations) * (high - low)[codes]
    return RandAugmentParams(codes, magnitudes, cutout_edges(table, *random.uniform(3).T))


def cutout_edges(table: ImageTable, side: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """Returns (N, 4) edges of the cutouts from numbers in [0, 1): side and position of the center, (N,) each.

    As in ``ImageDraw.rectangle``, the first corner is rounded down and the pixel of the second corner is included.
    """
    length = side * MAX_CUTOUT * table.width
    first = np.stack([x * table.width, y * table.height], axis=1) - length[:, None] / 2
    first = np.floor(np.maximum(first, 0))
    last = np.minimum(first + length[:, None], np.stack([table.width, table.height], axis=1))
    return np.concatenate([first, np.floor(last) + 1], axis=1)


def apply_randaugment(
    images: ImageBatch, params: RandAugmentParams, crop: Crop, size: int, reference_size: int = REFERENCE_SIZE
) -> Tensor:
    """Applies the operations and the cutout to each image, then crops.

    Args:
        images: N images.
        params: Random parameters of the images.
        crop: Boxes of the views.
        size: Side of the views.
        reference_size: Side of the references, at most ``size``.

    Returns:
        (N, 3, size, size) uint8 pixel values.
    """
    reference_size = min(reference_size, size)
    return _apply_torch(images, params, crop, size, reference_size)


class AffineMaps(NamedTuple):
    """Affine maps of all geometric operations of N images; other operations have identity maps."""

    to_source: FloatArray
    """(N, 2, 3) from coordinates of the transformed image to the original image, in pixels."""
    view: FloatArray
    """(steps, N, 2, 3) from coordinates of the transformed image to the input of each step, which spans [-1, 1]."""
    reference: FloatArray
    """(steps, N, 2, 3) from output to input of each step, in pixels of the reference."""


def affine_maps(params: RandAugmentParams, table: ImageTable, reference_size: int) -> AffineMaps:
    """Composes the maps of the geometric operations."""
    count, steps = params.codes.shape
    size = np.stack([table.width, table.height], axis=1).astype(np.float64)
    single = identity(steps * count)
    codes, magnitudes = params.codes.T.ravel(), params.magnitudes.T.ravel()
    width, height = np.tile(size, (steps, 1)).T
    for name, operation in GEOMETRIC.items():
        rows = np.flatnonzero(codes == CODE[name])
        single[rows] = operation(magnitudes[rows], width[rows], height[rows])
    single = single.reshape(steps, count, 2, 3)
    composed = single.copy()
    for step in reversed(range(steps - 1)):
        composed[step] = compose(single[step], composed[step + 1])
    view = composed * (2 / size)[:, :, None]
    view[..., 2] -= 1
    scale = reference_size / size
    return AffineMaps(composed[0] if steps else identity(count), view, rescale(single, scale, scale))


def reference_needed(codes: IntArray) -> BoolArray:
    """Returns (N, steps + 1): whether step i or a later one needs the reference."""
    is_statistical = np.isin(codes, [CODE[name] for name in STATISTICAL])
    needed = np.zeros((len(codes), codes.shape[1] + 1), dtype=np.bool_)
    needed[:, :-1] = np.logical_or.accumulate(is_statistical[:, ::-1], axis=1)[:, ::-1]
    return needed


GROUPS = {name: [CODE[name]] for name in (*STATISTICAL, *POINTWISE, *MIXING)}
GROUPS["Geometric"] = [CODE[name] for name in GEOMETRIC]


class OperationGroup(NamedTuple):
    """The images of a batch that undergo the same operation in a step."""

    step: int
    name: str
    """Name of a color operation, or "Geometric" for all geometric operations."""
    rows: IntArray
    """(n,) indices in the batch; images whose reference a later step needs come first."""
    num_references: int
    """Number of images whose reference a later step needs."""

    @property
    def key(self) -> str:
        return f"{self.step}/{self.name}"


def group_by_operation(codes: IntArray) -> Iterator[OperationGroup]:
    """Yields the groups of each step in order; images with the operation Identity are in no group."""
    needed = reference_needed(codes)
    for step in range(codes.shape[1]):
        for name, group_codes in GROUPS.items():
            rows = np.flatnonzero(np.isin(codes[:, step], group_codes))
            if len(rows):
                is_needed = needed[rows, step + 1]
                rows = np.concatenate([rows[is_needed], rows[~is_needed]])
                yield OperationGroup(step, name, rows, int(is_needed.sum()))


def _apply_torch(images: ImageBatch, params: RandAugmentParams, crop: Crop, size: int, reference_size: int) -> Tensor:
    groups = list(group_by_operation(params.codes))
    needs_reference = np.flatnonzero(reference_needed(params.codes)[:, 0])
    arrays: dict[str, NDArray[np.generic]] = {
        **crop_axes(crop, images.table, size),
        **{f"{name}_maps": maps for name, maps in affine_maps(params, images.table, reference_size)._asdict().items()},
        **{f"{group.key} rows": group.rows for group in groups},
        **{
            f"{group.key} table": pointwise_table(group.name, params.magnitudes[group.rows, group.step])
            for group in groups
            if group.name in POINTWISE
        },
        "magnitudes": params.magnitudes,
        "needs_reference": needs_reference,
        "cutout": params.cutout,
        "fill": np.array(CUTOUT_FILL, dtype=np.uint8),
    }
    sent = upload(arrays, images.device)
    x_axis, y_axis, rows = sent["x_axis"], sent["y_axis"], sent["needs_reference"]
    x, y = crop_coordinates(x_axis, y_axis, size)
    views = sample_view(images, x_axis, y_axis, sent["to_source_maps"], size, torch.uint8)
    references = views.new_empty((len(views), 3, reference_size, reference_size))
    references[rows] = sample_references(images.take(needs_reference, rows), reference_size)
    for group in groups:
        _apply_group(group, sent, views, references, x, y)
    return cut_out(views, sent["cutout"], sent["fill"], x, y)


def _apply_group(
    group: OperationGroup, sent: dict[str, Tensor], views: Tensor, references: Tensor, x: Tensor, y: Tensor
) -> None:
    """Applies one operation in place to views and references; ``x`` and ``y`` are the coordinates of the views."""
    rows = sent[f"{group.key} rows"]
    kept = rows[: group.num_references]
    view, reference = views.index_select(0, rows), references.index_select(0, kept)
    magnitude = sent["magnitudes"][:, group.step].index_select(0, rows)
    if group.name == "Geometric":
        maps, reference_maps = sent["view_maps"][group.step], sent["reference_maps"][group.step]
        view *= is_inside(maps.index_select(0, rows), x.index_select(0, rows), y.index_select(0, rows))
        reference = move(reference, reference_maps.index_select(0, kept))
    elif group.name in MIXING:
        operation = MIXING[group.name]
        view = operation(view, magnitude)
        # On the coarse grid of a reference the 3 x 3 filter would remove the extremes that statistics need.
        if group.name != "Sharpness":
            reference = operation(reference, magnitude[: group.num_references])
    else:
        if group.name in POINTWISE:
            table = sent[f"{group.key} table"].unsqueeze(1).expand(-1, 3, -1)
        else:
            table = STATISTICAL[group.name](magnitude, references.index_select(0, rows)).to(torch.uint8)
        view, reference = apply_table(view, table), apply_table(reference, table[: group.num_references])
    views[rows] = view
    references[kept] = reference


def sample_references(images: ImageBatch, size: int) -> Tensor:
    """Returns (N, 3, size, size) references of whole images.

    Pixels are picked and not averaged, because averages would remove the extremes of the histogram.
    """
    grid = torch.arange(size, dtype=torch.float32, device=images.device).add_(0.5).div_(size)
    layout = images.layout
    return sample_nearest(images, grid.view(1, 1, -1) * layout.width, grid.view(1, -1, 1) * layout.height)


def is_inside(maps: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Returns (N, 1, H, W) whether the maps lead to a point within [-1, 1], the range of the image."""
    new_x, new_y = apply_affine(maps, x, y)
    return (new_x.abs_().maximum(new_y.abs_()) < 1).unsqueeze(1)


def move(references: Tensor, maps: Tensor) -> Tensor:
    """Applies geometric operations (N, 2, 3) to references (N, 3, size, size); pixels from outside are 0."""
    size = references.shape[-1]
    grid = torch.arange(size, dtype=maps.dtype, device=maps.device).add_(0.5)
    x, y = (position.floor_() for position in apply_affine(maps, grid.view(1, 1, -1), grid.view(1, -1, 1)))
    left, top = x.clamp(0, size - 1), y.clamp(0, size - 1)
    inside = (left == x) & (top == y)
    source = top.mul_(size).add_(left).long().flatten(1).unsqueeze(1)
    moved = references.flatten(2).gather(2, source.expand(-1, references.shape[1], -1))
    return moved.view(references.shape).mul_(inside.unsqueeze(1))


def cut_out(views: Tensor, edges: Tensor, fill: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Sets pixels to ``fill`` (3,) if their coordinates x (N, 1, W), y (N, H, 1) are within ``edges`` (N, 4)."""
    left, top, right, bottom = edges.view(-1, 4, 1, 1).unbind(1)
    hidden = ((x >= left) & (x < right)) & ((y >= top) & (y < bottom))
    return torch.where(hidden.unsqueeze(1), fill.view(1, 3, 1, 1), views)
