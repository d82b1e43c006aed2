"""The host's side of RandAugment: which samples meet which operation, in which slot, with what numbers.

Everything here is known before any pixel is: grouping samples by operation costs the GPU no wait.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from semifine.views.colour import MIXING, STATISTICAL, TABLES
from semifine.views.geometry import FloatArray, compose, identity, rescale
from semifine.views.images import ImageTable
from semifine.views.randaugment import CODE, CUTOUT_FILL, IS_GEOMETRIC, IS_STATISTICAL, Plan, slot_maps

IntArray = NDArray[np.int64]
LOOK_UP = "LookUp"
"""The step that all operations with a table share."""
MOVE = "Move"
"""The step that all geometric operations share."""


@dataclass(frozen=True)
class Step:
    """What happens in one slot to the views ``where`` (n,), with ``values``, and to their thumbnails.

    ``values`` are magnitudes (n,), for MOVE maps (n, 2, 3). Thumbnails that no later slot asks for are
    left out of ``thumbnail_where`` (m,); their values are like the views', for LOOK_UP (m,) the places of
    their tables among the n.
    """

    where: Tensor
    values: Tensor
    thumbnail_where: Tensor
    thumbnail_values: Tensor


@dataclass(frozen=True)
class Slot:
    """The steps of a slot by name, and what LOOK_UP's tables are made of.

    ``groups`` are the operations and how many of the step's views drew each, in order; the first of them
    are statistical, and ``reference`` are the thumbnails of their views.
    """

    steps: Mapping[str, Step]
    groups: tuple[tuple[str, int], ...]
    reference: Tensor


class Route:
    """All slots of a plan. ``arrays`` is what the device needs to know; once uploaded, ``slots`` uses it.

    The maps of the views go from the view's frame (after the last slot) to the input of the slot, scaled
    so that the picture spans [-1, 1]; those of the thumbnails go from the slot's output to its input, in
    pixels of the thumbnail. ``with_thumbnail`` are the samples that a statistical operation waits for.
    """

    def __init__(self, plan: Plan, table: ImageTable, thumbnail_size: int) -> None:
        """Sorts the samples of ``plan`` into groups."""
        self._plan = plan
        self._groups: list[tuple[tuple[str, int], ...]] = []
        self._statistical = IS_STATISTICAL[plan.codes]
        has_thumbnail: NDArray[np.bool_] = np.any(self._statistical, axis=1)
        self._thumbnail = np.cumsum(has_thumbnail) - 1
        self.with_thumbnail = np.flatnonzero(has_thumbnail)
        to_inputs, own_maps = _maps(plan, table, thumbnail_size)
        self.arrays: dict[str, NDArray[np.generic]] = {
            "cutout": plan.cutout,
            "cutout_fill": np.array(CUTOUT_FILL),
            "with_thumbnail": self.with_thumbnail,
            "to_source": to_inputs[0],
        }
        extent = np.stack([table.width, table.height], axis=1).astype(np.float64)
        for slot, own_map in enumerate(own_maps):
            view_map = rescale(to_inputs[slot], 2 / extent, np.ones_like(extent))
            view_map[:, :, 2] -= 1
            self._add_look_up(slot)
            for name in MIXING:
                samples = np.flatnonzero(plan.codes[:, slot] == CODE[name])
                self._add(slot, name, samples, plan.magnitudes[:, slot], plan.magnitudes[:, slot])
            self._add(slot, MOVE, np.flatnonzero(IS_GEOMETRIC[plan.codes[:, slot]]), view_map, own_map)

    def slots(self, sent: Mapping[str, Tensor]) -> Iterator[Slot]:
        """The slots in order, from the uploaded arrays."""
        for slot, groups in enumerate(self._groups):
            steps = {}
            for name in (LOOK_UP, *MIXING, MOVE):
                key = f"{slot}/{name}"
                if f"{key}/where" in sent:
                    where = sent[f"{key}/where"], sent[f"{key}/values"]
                    steps[name] = Step(*where, sent[f"{key}/thumbnail_where"], sent[f"{key}/thumbnail_values"])
            yield Slot(steps, groups, sent[f"{slot}/reference"])

    def _add_look_up(self, slot: int) -> None:
        codes = self._plan.codes[:, slot]
        samples = {name: np.flatnonzero(codes == CODE[name]) for name in TABLES}
        together = np.concatenate(list(samples.values()))
        place = np.zeros(len(codes), dtype=np.int64)
        place[together] = np.arange(len(together))
        self._groups.append(tuple((name, len(some)) for name, some in samples.items() if len(some)))
        statistical = np.concatenate([samples[name] for name in STATISTICAL])
        self.arrays[f"{slot}/reference"] = self._thumbnail[statistical]
        self._add(slot, LOOK_UP, together, self._plan.magnitudes[:, slot], place)

    def _add(
        self, slot: int, name: str, samples: IntArray, values: FloatArray, thumbnail_values: NDArray[np.generic]
    ) -> None:
        if len(samples) == 0:
            return
        # A thumbnail is kept up to date for as long as a later slot still asks for it.
        asked = samples[np.any(self._statistical[samples, slot + 1 :], axis=1)]
        self.arrays |= {
            f"{slot}/{name}/where": samples,
            f"{slot}/{name}/values": values[samples],
            f"{slot}/{name}/thumbnail_where": self._thumbnail[asked],
            f"{slot}/{name}/thumbnail_values": thumbnail_values[asked],
        }


def _maps(plan: Plan, table: ImageTable, thumbnail_size: int) -> tuple[list[FloatArray], list[FloatArray]]:
    """Maps from the last frame to the input of each slot (and last to itself), and each slot's own map.

    The first are in pixels of the image, the second in those of the thumbnail.
    """
    maps = slot_maps(plan, table)
    to_inputs = [identity(len(plan.codes))]
    for slot_map in reversed(maps):
        to_inputs.insert(0, compose(slot_map, to_inputs[0]))
    scale = thumbnail_size / np.stack([table.width, table.height], axis=1)
    return to_inputs, [rescale(slot_map, scale, scale) for slot_map in maps]
