"""RandAugment: parameters drawn on the host, and rendering in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from semifine.augment.crops import Crop, crop_lines
from semifine.augment.image_batch import FloatArray, ImageBatch, ImageTable, IntArray, upload
from semifine.augment.randaugment_ops import (
    CODE,
    GEOMETRY,
    LEVELS,
    MIXING,
    OPERATIONS,
    PLAIN,
    RANGES,
    STATISTICAL,
    Mixing,
    compose,
    identity,
    look_up,
    plain_table,
    rescale,
)
from semifine.augment.random_numbers import BatchRandom
from semifine.augment.sampling import crop_coordinates, has_kernels, sample_nearest, sample_view, transform
from semifine.augment.settings import AugmentSettings

CUTOUT_FILL = (125, 123, 114)
CUTOUT_LARGEST = 0.5
"""The longest side of the cutout, as a fraction of the image's width."""


@dataclass(frozen=True)
class Plan:
    """What happens to each of N images.

    ``codes`` and ``magnitudes`` are (N, slots), one slot an operation; ``cutout`` is (N, 4): the edges
    left, top, right, bottom of the rectangle, in pixels.
    """

    codes: IntArray
    magnitudes: FloatArray
    cutout: FloatArray


def draw_plan(random: BatchRandom, table: ImageTable, slots: int) -> Plan:
    """Draws the operations, their magnitudes and the cutouts."""
    codes = random.integers(len(OPERATIONS), slots)
    low, high = np.array(list(RANGES.values())).T
    magnitudes = low[codes] + random.uniform(slots) * (high - low)[codes]
    return Plan(codes, magnitudes, cutout_edges(table, *random.uniform(3).T))


def cutout_edges(table: ImageTable, side: FloatArray, x: FloatArray, y: FloatArray) -> FloatArray:
    """(N, 4) edges from unit draws (N,) of the side and of the center's place.

    As drawn by Pillow: the first corner is cut to whole pixels, the pixel of the second one is included.
    """
    length = side * CUTOUT_LARGEST * table.width
    first = np.stack([x * table.width, y * table.height], axis=1) - length[:, None] / 2
    first = np.floor(np.maximum(first, 0))
    last = np.minimum(first + length[:, None], np.stack([table.width, table.height], axis=1))
    return np.concatenate([first, np.floor(last) + 1], axis=1)


def slot_maps(plan: Plan, table: ImageTable) -> FloatArray:
    """(slots, N, 2, 3) maps from each slot's output to its input; color operations move nothing."""
    count, slots = plan.codes.shape
    maps = identity(slots * count)
    codes, magnitudes = plan.codes.T.ravel(), plan.magnitudes.T.ravel()
    width, height = (np.tile(extent.astype(np.float64), slots) for extent in (table.width, table.height))
    for name, geometry in GEOMETRY.items():
        which = np.flatnonzero(codes == CODE[name])
        maps[which] = geometry(magnitudes[which], width[which], height[which])
    return maps.reshape(slots, count, 2, 3)


RUNS = ((*STATISTICAL, *PLAIN), *((name,) for name in MIXING), tuple(GEOMETRY), ("Identity",))
"""The runs of a sorted stack, and the operations of each: by table, each mixing one, geometry, none."""
SORTED = [CODE[name] for run in RUNS for name in run]
RANK = np.argsort(SORTED)
"""The place of each operation's code in the sorted stack."""
RUN_OF = np.array([next(i for i, run in enumerate(RUNS) if name in run) for name in OPERATIONS])
TABLE_RUN, GEOMETRY_RUN = 0, RUNS.index(tuple(GEOMETRY))
IS_STATISTICAL = np.array([name in STATISTICAL for name in OPERATIONS])


@dataclass(frozen=True)
class Stack:
    """The n pictures of a slot, views or thumbnails, in the slot's order.

    ``order`` (n,) says where they lie in the stack before the slot, ``lengths`` how many pictures each of
    the RUNS has. ``magnitude`` is (n,); ``maps`` (m, 2, 3) belong to the geometric run.
    """

    order: Tensor
    lengths: list[int]
    magnitude: Tensor
    maps: Tensor


@dataclass(frozen=True)
class Slot:
    """One slot of all samples.

    The views' first run begins with the operations ``statistical`` and how many views drew each;
    ``reference`` are the thumbnails of those, in the stack before the slot. The tables of the rest of
    the run are ``plain_tables`` (k, 256). The thumbnails' first run shares the views' tables:
    ``thumbnail_tables`` says which. ``moved`` are the samples of the views' geometric run.
    """

    views: Stack
    thumbnails: Stack
    statistical: dict[str, int]
    reference: Tensor
    plain_tables: Tensor
    thumbnail_tables: Tensor
    moved: Tensor


class Route:
    """All slots of a plan. ``arrays`` is what the device needs to know; once uploaded, ``slots`` uses it.

    The maps of the views go from the view's frame (after the last slot) to the input of the slot, scaled
    so that the picture spans [-1, 1]; those of the thumbnails go from the slot's output to its input, in
    pixels of the thumbnail. ``with_thumbnail`` are the samples that a statistical operation waits for.
    """

    def __init__(self, plan: Plan, table: ImageTable, thumbnail_size: int) -> None:
        """Sorts the samples of ``plan``."""
        count, num_slots = plan.codes.shape
        self._plan = plan
        self._lengths: dict[str, list[int]] = {}
        self._statistical: list[dict[str, int]] = []
        self.arrays: dict[str, NDArray[np.generic]] = {}
        statistical = IS_STATISTICAL[plan.codes]
        view_maps, thumbnail_maps, to_input = scaled_maps(plan, table, thumbnail_size)
        views = np.arange(count)
        thumbnails = self.with_thumbnail = np.flatnonzero(statistical.any(axis=1))
        for slot in range(num_slots):
            codes = plan.codes[:, slot]
            order = np.argsort(RANK[codes], kind="stable")
            # A thumbnail goes on for as long as a later slot still asks for it.
            asked = order[statistical[order, slot + 1 :].any(axis=1)]
            by_table = order[RUN_OF[codes[order]] == TABLE_RUN]
            place_of_table, place_of_thumbnail = _places(by_table, count), _places(thumbnails, count)
            self.arrays |= {
                f"{slot}/reference": place_of_thumbnail[order[statistical[order, slot]]],
                f"{slot}/plain_tables": _plain_tables(codes, plan.magnitudes[:, slot]),
                f"{slot}/thumbnail_tables": place_of_table[asked[RUN_OF[codes[asked]] == TABLE_RUN]],
                f"{slot}/moved": order[RUN_OF[codes[order]] == GEOMETRY_RUN],
            }
            drawn = {name: int((codes == CODE[name]).sum()) for name in STATISTICAL}
            self._statistical.append({name: count for name, count in drawn.items() if count})
            self._add_stack(f"{slot}/views", slot, order, _places(views, count), view_maps[slot])
            self._add_stack(f"{slot}/thumbnails", slot, asked, place_of_thumbnail, thumbnail_maps[slot])
            views, thumbnails = order, asked
        self.arrays |= {
            "to_source": to_input[0] if num_slots else identity(count),
            "with_thumbnail": self.with_thumbnail,
            "restore": _places(views, count),
        }

    def slots(self, sent: Mapping[str, Tensor]) -> Iterator[Slot]:
        """The slots in order, from the uploaded arrays."""
        for slot, statistical in enumerate(self._statistical):
            views, thumbnails = (self._stack(f"{slot}/{stack}", sent) for stack in ("views", "thumbnails"))
            names = ("reference", "plain_tables", "thumbnail_tables", "moved")
            yield Slot(views, thumbnails, statistical, *(sent[f"{slot}/{name}"] for name in names))

    def _add_stack(self, key: str, slot: int, samples: IntArray, places: IntArray, maps: FloatArray) -> None:
        runs = RUN_OF[self._plan.codes[samples, slot]]
        self._lengths[key] = np.bincount(runs, minlength=len(RUNS)).tolist()
        self.arrays |= {
            f"{key}/order": places[samples],
            f"{key}/magnitude": self._plan.magnitudes[samples, slot],
            f"{key}/maps": maps[samples[runs == GEOMETRY_RUN]],
        }

    def _stack(self, key: str, sent: Mapping[str, Tensor]) -> Stack:
        return Stack(sent[f"{key}/order"], self._lengths[key], sent[f"{key}/magnitude"], sent[f"{key}/maps"])


def _plain_tables(codes: IntArray, magnitudes: FloatArray) -> NDArray[np.uint8]:
    """(k, 256) tables of all samples that drew a plain operation, in the slot's order."""
    tables = [plain_table(name, magnitudes[codes == CODE[name]]) for name in PLAIN]
    return np.concatenate(tables).reshape(-1, LEVELS)


def _places(samples: IntArray, count: int) -> IntArray:
    """(count,) the place of each sample in ``samples``; without meaning for those that are not there."""
    places = np.zeros(count, dtype=np.int64)
    places[samples] = np.arange(len(samples))
    return places


def scaled_maps(plan: Plan, table: ImageTable, thumbnail_size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Maps of all slots, (slots, N, 2, 3) each, as :class:`Route` describes them: views', thumbnails'; and in
    pixels of the image those from the view's frame to the input of each slot."""
    extent = np.stack([table.width, table.height], axis=1).astype(np.float64)
    own = slot_maps(plan, table)
    to_input = own.copy()
    for slot in reversed(range(len(own) - 1)):
        to_input[slot] = compose(own[slot], to_input[slot + 1])
    to_span = to_input * (2 / extent)[:, :, None]
    to_span[..., 2] -= 1
    scale = thumbnail_size / extent
    return to_span, rescale(own, scale, scale), to_input


# On a thumbnail's coarse grid the 3 x 3 filter would blur far more than on the picture, and take the
# extremes from the histogram; on photos the unfiltered thumbnail gives the better statistics.
THUMBNAIL_MIXING: dict[str, Mixing] = MIXING | {"Sharpness": lambda thumbnail, _: thumbnail}


def render_plan(images: ImageBatch, plan: Plan, crop: Crop, settings: AugmentSettings) -> Tensor:
    """The planned views, (N, 3, size, size) whole levels: uint8, or float32 from a GPU's kernels."""
    thumbnail_size = min(settings.statistics_size, settings.size)
    if has_kernels(images.device):
        from semifine.augment.triton import randaugment

        params = make_kernel_params(plan, crop, images.table, settings.size, thumbnail_size)
        return randaugment.render(images, params, settings.size, thumbnail_size)
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


# The columns of a frame ...
X_LINE, Y_LINE, TO_SOURCE, CUTOUT, HAS_THUMBNAIL, FRAME = 0, 4, 8, 14, 18, 19


# ... and those of a step.
OPERATION, RUN, IS_ASKED, MAGNITUDE, VIEW_MAP, THUMBNAIL_MAP, STEP = 0, 1, 2, 3, 4, 10, 16


class KernelParams(NamedTuple):
    """What a plan asks of each of N images.

    ``frame`` (N, FRAME) float32 says where the view lies: the crop's lines, the map to the original, the cutout's
    edges, and whether any statistical operation waits for the thumbnail. ``steps`` (slots, N, STEP) say what happens
    in a slot: the operation's code and run, whether a later slot still asks for the thumbnail, the magnitude, and
    the maps of :class:`route.Route`. They are float64, as the host makes its tables from magnitudes of that precision.
    """

    frame: NDArray[np.float32]
    steps: FloatArray


def make_kernel_params(plan: Plan, crop: Crop, table: ImageTable, size: int, thumbnail_size: int) -> KernelParams:
    """The rows of all images of ``plan``, for views and thumbnails of these sizes."""
    count, slots = plan.codes.shape
    view_maps, thumbnail_maps, to_input = scaled_maps(plan, table, thumbnail_size)
    asked = _asked_from(plan)
    frame = np.empty((count, FRAME), dtype=np.float32)
    lines = crop_lines(crop, table, size)
    frame[:, X_LINE:Y_LINE], frame[:, Y_LINE:TO_SOURCE] = lines["x_line"], lines["y_line"]
    frame[:, TO_SOURCE:CUTOUT] = (to_input[0] if slots else identity(count)).reshape(count, 6)
    frame[:, CUTOUT:HAS_THUMBNAIL] = plan.cutout
    frame[:, HAS_THUMBNAIL] = asked[:, 0]
    steps = np.empty((slots, count, STEP))
    steps[..., OPERATION], steps[..., RUN] = plan.codes.T, RUN_OF[plan.codes.T]
    steps[..., IS_ASKED], steps[..., MAGNITUDE] = asked[:, 1:].T, plan.magnitudes.T
    steps[..., VIEW_MAP:THUMBNAIL_MAP] = view_maps.reshape(slots, count, 6)
    steps[..., THUMBNAIL_MAP:] = thumbnail_maps.reshape(slots, count, 6)
    return KernelParams(frame, steps)


def _asked_from(plan: Plan) -> NDArray[np.bool_]:
    """(N, slots + 1) whether a statistical operation comes in that slot or in a later one."""
    count, slots = plan.codes.shape
    asked = np.zeros((count, slots + 1), dtype=np.bool_)
    asked[:, :slots] = np.logical_or.accumulate(IS_STATISTICAL[plan.codes][:, ::-1], axis=1)[:, ::-1]
    return asked
