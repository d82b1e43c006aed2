"""Renders RandAugment, cutout and the crop after them with one resampling of the original.

The operations act on the whole original and the crop comes last. Only the crop's pixels are computed: each
is traced back through the crop and the geometric operations to the original and sampled there once, and
then goes forward through the slots: a colour operation changes its value, a geometric one blackens it
if it came from outside the frame at that slot. What differs from running Pillow's operations one by one:

- geometry is bilinear (the released code takes Pillow's default, nearest), in one resampling, not several;
- statistics of the whole picture are taken from a thumbnail, a grid of pixels of the whole original that
  goes through the same operations beside the view;
- Sharpness filters at the resolution of the view, and leaves the thumbnail alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from torch import Tensor

from semifine.views.colour import MIXING, STATISTICAL, Mixing, look_up
from semifine.views.crops import Crop, crop_lines
from semifine.views.images import ImageBatch
from semifine.views.itinerary import make_itinerary
from semifine.views.randaugment import CUTOUT_FILL, Plan
from semifine.views.route import Route, Slot, Stack
from semifine.views.sampling import crop_coordinates, has_kernels, sample_nearest, sample_view, transform
from semifine.views.settings import ViewSettings
from semifine.views.transfer import upload

# On a thumbnail's coarse grid the 3 x 3 filter would blur far more than on the picture, and take the
# extremes from the histogram; on photos the unfiltered thumbnail gives the better statistics.
THUMBNAIL_MIXING: dict[str, Mixing] = MIXING | {"Sharpness": lambda thumbnail, _: thumbnail}


def render_plan(images: ImageBatch, plan: Plan, crop: Crop, settings: ViewSettings) -> Tensor:
    """The planned views, (N, 3, size, size) whole levels: uint8, or float32 from a GPU's kernels."""
    thumbnail_size = min(settings.statistics_size, settings.size)
    if has_kernels(images.device):
        from semifine.views import walk_kernels

        itinerary = make_itinerary(plan, crop, images.table, settings.size, thumbnail_size)
        return walk_kernels.render(images, itinerary, settings.size, thumbnail_size)
    route = Route(plan, images.table, thumbnail_size)
    arrays = crop_lines(crop, images.table, settings.size) | route.arrays | {"cutout": plan.cutout}
    sent = upload(arrays | {"fill": np.array(CUTOUT_FILL, dtype=np.uint8)}, images.device)
    lines = sent["x_line"], sent["y_line"]
    views = sample_view(images, *lines, sent["to_source"], settings.size, torch.uint8)
    thumbnails = first_thumbnails(images.take(route.with_thumbnail, sent["with_thumbnail"]), thumbnail_size)
    x, y = crop_coordinates(*lines, settings.size)
    for slot in route.slots(sent):
        views, thumbnails = walk_slot(slot, views, thumbnails, x, y)
    return cut_out(views.index_select(0, sent["restore"]), sent["cutout"], sent["fill"], x, y)


def walk_slot(slot: Slot, views: Tensor, thumbnails: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Views and thumbnails after one slot, in its order; ``x`` and ``y`` are the samples' coordinates."""
    tables = make_tables(slot, thumbnails)
    inside = is_inside(slot.views.maps, x.index_select(0, slot.moved), y.index_select(0, slot.moved))
    thumbnail_tables = tables.index_select(0, slot.thumbnail_tables)
    moving = partial(move, maps=slot.thumbnails.maps)
    return (
        change(views, slot.views, tables, MIXING, inside.mul),
        change(thumbnails, slot.thumbnails, thumbnail_tables, THUMBNAIL_MIXING, moving),
    )


def change(
    pictures: Tensor,
    stack: Stack,
    tables: Tensor,
    mixing: Mapping[str, Mixing],
    geometry: Callable[[Tensor], Tensor],
) -> Tensor:
    """Sorts pictures as the slot wants them and gives each run its operation."""
    if len(stack.order) == 0:
        return pictures[:0]
    looked_up, *mixed, moved, left = torch.split(pictures.index_select(0, stack.order), stack.lengths)
    _, *magnitudes, _, _ = torch.split(stack.magnitude, stack.lengths)
    tasks = zip(mixing.values(), mixed, magnitudes, strict=True)
    mixed = [operation(run, magnitude) if len(run) else run for operation, run, magnitude in tasks]
    return torch.cat([look_up(looked_up, tables), *mixed, geometry(moved), left])


def make_tables(slot: Slot, thumbnails: Tensor) -> Tensor:
    """(n, 3, 256) tables for the first run of the views: the statistical ones, then the plain ones."""
    counts = list(slot.statistical.values())
    magnitudes = torch.split(slot.views.magnitude[: sum(counts)], counts)
    references = torch.split(thumbnails.index_select(0, slot.reference), counts)
    drawn = zip(slot.statistical, magnitudes, references, strict=True)
    tables = [STATISTICAL[name](magnitude, reference).to(torch.uint8) for name, magnitude, reference in drawn]
    return torch.cat([*tables, slot.plain_tables.unsqueeze(1).expand(-1, 3, -1)])


def first_thumbnails(images: ImageBatch, size: int) -> Tensor:
    """(n, 3, size, size) grids of pixels that span the whole images.

    Pixels are picked, not averaged: a histogram keeps the extremes that averages would lose.
    """
    grid = torch.arange(size, dtype=torch.float32, device=images.device).add_(0.5).div_(size)
    layout = images.layout
    return sample_nearest(images, grid.view(1, 1, -1) * layout.width, grid.view(1, -1, 1) * layout.height)


def is_inside(maps: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """(n, 1, H, W): whether the pixels came from inside the picture, which spans [-1, 1] where maps lead."""
    new_x, new_y = transform(maps, x, y)
    return (new_x.abs_().maximum(new_y.abs_()) < 1).unsqueeze(1)


def move(thumbnails: Tensor, maps: Tensor) -> Tensor:
    """Applies geometric operations to whole thumbnails (n, 3, size, size)."""
    size = thumbnails.shape[-1]
    grid = torch.arange(size, dtype=maps.dtype, device=maps.device).add_(0.5)
    x, y = (there.floor_() for there in transform(maps, grid.view(1, 1, -1), grid.view(1, -1, 1)))
    left, top = x.clamp(0, size - 1), y.clamp(0, size - 1)
    inside = (left == x) & (top == y)
    source = top.mul_(size).add_(left).long().flatten(1).unsqueeze(1)
    moved = thumbnails.flatten(2).gather(2, source.expand(-1, thumbnails.shape[1], -1))
    return moved.view(thumbnails.shape).mul_(inside.unsqueeze(1))


def cut_out(views: Tensor, edges: Tensor, fill: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Puts ``fill`` (3,) where the coordinates x (N, 1, W), y (N, H, 1) lie within ``edges`` (N, 4)."""
    left, top, right, bottom = edges.view(-1, 4, 1, 1).unbind(1)
    hidden = ((x >= left) & (x < right)) & ((y >= top) & (y < bottom))
    return torch.where(hidden.unsqueeze(1), fill.view(1, 3, 1, 1), views)
