"""Renders RandAugment, cutout and the crop after them with one resampling of the original.

The operations act on the whole original and the crop comes last. Only the crop's pixels are computed: each
is traced back through the crop and the geometric operations to the original and sampled there once, and
then goes forward through the slots: a colour operation changes its value, a geometric one blackens it
if it came from outside the frame at that slot. What differs from running Pillow's operations one by one:

- geometry is bilinear (the released code takes Pillow's default, nearest), in one resampling, not several;
- statistics of the whole picture are taken from a thumbnail, a grid of pixels of the whole original, which
  goes through the same operations, at that slot;
- Sharpness filters at the resolution of the view.
"""

from __future__ import annotations

import torch
from torch import Tensor

from semifine.views.colour import COLOUR, STATISTICAL
from semifine.views.crops import Crop, crop_coordinates, crop_lines
from semifine.views.images import ImageBatch
from semifine.views.randaugment import Plan
from semifine.views.route import GEOMETRY_STEP, Route, Step
from semifine.views.sampling import pool, sample_bilinear, sample_nearest
from semifine.views.settings import ViewSettings
from semifine.views.transfer import upload


def render_plan(images: ImageBatch, plan: Plan, crop: Crop, settings: ViewSettings) -> Tensor:
    """The planned views, (N, 3, size, size) float32 in 0..255."""
    thumbnail_size = min(settings.statistics_size, settings.size)
    route = Route(plan, images.table, thumbnail_size)
    sent = upload({**crop_lines(crop, images.table, settings.size), **route.arrays}, images.device)
    lines = sent["x_line"], sent["y_line"]
    x, y = crop_coordinates(*lines, settings.size)
    fine = (x, y) if images.oversample == 1 else crop_coordinates(*lines, settings.size, images.oversample)
    views = pool(sample_bilinear(images, *transform(sent["to_source"], *fine)), images.oversample).round_()
    thumbnails = first_thumbnails(images.take(route.with_thumbnail, sent["with_thumbnail"]), thumbnail_size)
    for slot in range(plan.codes.shape[1]):
        # The views first: they need the thumbnails as they are before the slot.
        for step in route.views(slot, sent):
            if step.name == GEOMETRY_STEP:
                blacken(views, step, x, y)
            else:
                recolour(views, step, thumbnails)
        for step in route.thumbnails(slot, sent):
            if step.name == GEOMETRY_STEP:
                warp(thumbnails, step)
            else:
                recolour(thumbnails, step, thumbnails)
    return cut_out(views, sent["cutout"], sent["cutout_fill"], x, y)


def transform(maps: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Sends positions x (N, 1, W), y (N, H, 1) through maps (N, 2, 3); both results are (N, H, W)."""
    rows = maps.view(-1, 2, 3, 1, 1).unbind(1)
    new_x, new_y = ((row[:, 0] * x + row[:, 2]) + row[:, 1] * y for row in rows)
    return new_x, new_y


def first_thumbnails(images: ImageBatch, size: int) -> Tensor:
    """(n, 3, size, size) grids of pixels that span the whole images.

    Pixels are picked, not averaged: a histogram keeps the extremes that averages would lose.
    """
    grid = torch.arange(size, dtype=torch.float32, device=images.device).add_(0.5).div_(size)
    return sample_nearest(images, grid.view(1, 1, -1) * images.width, grid.view(1, -1, 1) * images.height)


def recolour(pictures: Tensor, step: Step, thumbnails: Tensor) -> None:
    """Applies a colour operation, in place, to its pictures (N, 3, H, W)."""
    chosen = pictures.index_select(0, step.where)
    reference = thumbnails.index_select(0, step.reference) if step.name in STATISTICAL else chosen
    pictures.index_copy_(0, step.where, COLOUR[step.name](chosen, step.values, reference))


def blacken(views: Tensor, step: Step, x: Tensor, y: Tensor) -> None:
    """Blackens, in place, what a geometric operation took from outside the picture.

    ``x`` and ``y`` are the coordinates of the views' pixels after the last slot.
    """
    there = transform(step.values, x.index_select(0, step.where), y.index_select(0, step.where))
    inside = there[0].abs_().maximum(there[1].abs_()) < 1
    views.index_copy_(0, step.where, views.index_select(0, step.where).mul_(inside.unsqueeze(1)))


def warp(thumbnails: Tensor, step: Step) -> None:
    """Applies a geometric operation, in place, to whole thumbnails (n, 3, size, size)."""
    chosen = thumbnails.index_select(0, step.where)
    size = chosen.shape[-1]
    grid = torch.arange(size, dtype=chosen.dtype, device=chosen.device).add_(0.5)
    x, y = (there.floor_() for there in transform(step.values, grid.view(1, 1, -1), grid.view(1, -1, 1)))
    inside = (x >= 0) & (x < size) & (y >= 0) & (y < size)
    source = y.clamp_(0, size - 1).mul_(size).add_(x.clamp_(0, size - 1)).long().flatten(1).unsqueeze(1)
    moved = chosen.flatten(2).gather(2, source.expand(-1, chosen.shape[1], -1)).view(chosen.shape)
    thumbnails.index_copy_(0, step.where, moved.mul_(inside.unsqueeze(1)))


def cut_out(views: Tensor, edges: Tensor, fill: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Puts ``fill`` (3,) where the coordinates x (N, 1, W), y (N, H, 1) lie within ``edges`` (N, 4)."""
    left, top, right, bottom = edges.view(-1, 4, 1, 1).unbind(1)
    hidden = ((x >= left) & (x < right)) & ((y >= top) & (y < bottom))
    return torch.where(hidden.unsqueeze(1), fill.view(1, 3, 1, 1), views)
