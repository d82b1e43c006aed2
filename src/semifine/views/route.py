"""The host's side of RandAugment: which samples meet which operation, in which slot, with what numbers.

Everything here is known before any pixel is: grouping samples by operation costs the GPU no wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from semifine.views.colour import STATISTICAL
from semifine.views.geometry import FloatArray, compose, identity, rescale
from semifine.views.images import ImageTable
from semifine.views.randaugment import (
    COLOUR_CODES,
    CUTOUT_FILL,
    IS_GEOMETRIC,
    IS_STATISTICAL,
    Plan,
    slot_maps,
)

IntArray = NDArray[np.int64]
GEOMETRY_STEP = "Geometry"
"""The name of the step that all geometric operations of a slot share."""


@dataclass(frozen=True)
class Step:
    """One operation on the pictures ``where`` (n,) of a stack of views or thumbnails.

    ``values`` are the magnitudes (n,) of a colour operation or the maps (n, 2, 3) of geometry;
    ``reference`` (n,) are the thumbnails of those pictures, empty where the operation needs none.
    """

    name: str
    where: Tensor
    values: Tensor
    reference: Tensor


class Route:
    """The steps of all slots, for the views and for the thumbnails.

    ``arrays`` is what the device needs; with those arrays uploaded, the methods give the steps. The maps
    of the views go from the view's frame (after the last slot) to the input of the slot, scaled so that
    the picture spans [-1, 1]; those of the thumbnails go from the slot's output to its input, in pixels
    of the thumbnail. ``with_thumbnail`` are the samples that a statistical operation waits for.
    """

    def __init__(self, plan: Plan, table: ImageTable, thumbnail_size: int) -> None:
        """Sorts the samples of ``plan`` into groups."""
        self._plan = plan
        self._names: dict[str, list[str]] = {}
        statistical = IS_STATISTICAL[plan.codes]
        has_thumbnail: NDArray[np.bool_] = np.any(statistical, axis=1)
        self._thumbnail = np.cumsum(has_thumbnail) - 1
        self.with_thumbnail = np.flatnonzero(has_thumbnail)
        self.arrays: dict[str, NDArray[np.generic]] = {
            "cutout": plan.cutout,
            "cutout_fill": np.array(CUTOUT_FILL),
            "with_thumbnail": self.with_thumbnail,
        }
        extent = np.stack([table.width, table.height], axis=1).astype(np.float64)
        to_input = identity(len(plan.codes))
        for slot, slot_map in reversed(list(enumerate(slot_maps(plan, table)))):
            to_input = compose(slot_map, to_input)
            view_map = rescale(to_input, 2 / extent, np.ones_like(extent))
            view_map[:, :, 2] -= 1
            scale = thumbnail_size / extent
            # A thumbnail is kept up to date for as long as a later slot still asks for it.
            asked: NDArray[np.bool_] = np.any(statistical[:, slot + 1 :], axis=1)
            self._add_slot(slot, asked, view_map, rescale(slot_map, scale, scale))
        self.arrays["to_source"] = to_input

    def views(self, slot: int, sent: dict[str, Tensor]) -> Iterator[Step]:
        """The steps of a slot on the views."""
        return self._steps(f"views/{slot}", sent)

    def thumbnails(self, slot: int, sent: dict[str, Tensor]) -> Iterator[Step]:
        """The steps of a slot on the thumbnails."""
        return self._steps(f"thumbnails/{slot}", sent)

    def _steps(self, prefix: str, sent: dict[str, Tensor]) -> Iterator[Step]:
        for name in self._names.get(prefix, []):
            key = f"{prefix}/{name}"
            yield Step(name, sent[f"{key}/where"], sent[f"{key}/values"], sent[f"{key}/reference"])

    def _add_slot(self, slot: int, asked: NDArray[np.bool_], view_map: FloatArray, own_map: FloatArray) -> None:
        magnitudes = self._plan.magnitudes[:, slot]
        for name, samples in self._groups(slot):
            geometric = name == GEOMETRY_STEP
            thumbnails = self._thumbnail[samples] if name in STATISTICAL else samples[:0]
            self._add(f"views/{slot}", name, samples, (view_map if geometric else magnitudes)[samples], thumbnails)
            samples = samples[asked[samples]]
            if len(samples):
                where = self._thumbnail[samples]
                values = (own_map if geometric else magnitudes)[samples]
                self._add(f"thumbnails/{slot}", name, where, values, where)

    def _groups(self, slot: int) -> Iterator[tuple[str, IntArray]]:
        """Name and samples of the operations drawn in a slot; Identity is left out."""
        codes = self._plan.codes[:, slot]
        for name, code in COLOUR_CODES.items():
            samples = np.flatnonzero(codes == code)
            if len(samples):
                yield name, samples
        samples = np.flatnonzero(IS_GEOMETRIC[codes])
        if len(samples):
            yield GEOMETRY_STEP, samples

    def _add(self, prefix: str, name: str, where: IntArray, values: FloatArray, reference: IntArray) -> None:
        self._names.setdefault(prefix, []).append(name)
        self.arrays |= {
            f"{prefix}/{name}/where": where,
            f"{prefix}/{name}/values": values,
            f"{prefix}/{name}/reference": reference,
        }
