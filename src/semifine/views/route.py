"""The host's side of RandAugment: which samples meet which operation, in which slot, with what numbers.

Everything here is known before any pixel is: grouping samples by operation costs the GPU no wait. In each
slot the pictures are sorted by what happens to them, so that every operation gets one contiguous run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from semifine.views.arrays import FloatArray, IntArray
from semifine.views.colour import LEVELS, MIXING, PLAIN, STATISTICAL, plain_table
from semifine.views.geometry import GEOMETRY, compose, identity, rescale
from semifine.views.images import ImageTable
from semifine.views.randaugment import CODE, OPERATIONS, Plan, slot_maps

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
