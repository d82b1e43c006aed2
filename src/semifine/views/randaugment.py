"""RandAugment as SoC's released code draws it: which operations, how strong, and the cutout.

Operations are drawn with replacement from the fourteen, each with a magnitude uniform in its range; one
cutout always follows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from semifine.views.arrays import FloatArray, IntArray
from semifine.views.geometry import GEOMETRY, identity
from semifine.views.images import ImageTable
from semifine.views.randomness import BatchRandom

RANGES: dict[str, tuple[float, float]] = {
    "AutoContrast": (0, 1),  # takes no magnitude
    "Brightness": (0.05, 0.95),
    "Color": (0.05, 0.95),
    "Contrast": (0.05, 0.95),
    "Equalize": (0, 1),  # takes no magnitude
    "Identity": (0, 1),  # takes no magnitude
    "Posterize": (4, 8),  # bits, of which the fraction is dropped: 4 to 7
    "Rotate": (-30, 30),  # degrees
    "Sharpness": (0.05, 0.95),
    "ShearX": (-0.3, 0.3),
    "ShearY": (-0.3, 0.3),
    "Solarize": (0, 256),
    "TranslateX": (-0.3, 0.3),  # of the width
    "TranslateY": (-0.3, 0.3),  # of the height
}
OPERATIONS = tuple(RANGES)
"""The names of the operations; an operation's code is its place here."""
CODE = {name: code for code, name in enumerate(OPERATIONS)}

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
    """(N, 4) edges from unit draws (N,) of the side and of the centre's place.

    As drawn by Pillow: the first corner is cut to whole pixels, the pixel of the second one is included.
    """
    length = side * CUTOUT_LARGEST * table.width
    first = np.stack([x * table.width, y * table.height], axis=1) - length[:, None] / 2
    first = np.floor(np.maximum(first, 0))
    last = np.minimum(first + length[:, None], np.stack([table.width, table.height], axis=1))
    return np.concatenate([first, np.floor(last) + 1], axis=1)


def slot_maps(plan: Plan, table: ImageTable) -> FloatArray:
    """(slots, N, 2, 3) maps from each slot's output to its input; colour operations move nothing."""
    count, slots = plan.codes.shape
    maps = identity(slots * count)
    codes, magnitudes = plan.codes.T.ravel(), plan.magnitudes.T.ravel()
    width, height = (np.tile(extent.astype(np.float64), slots) for extent in (table.width, table.height))
    for name, geometry in GEOMETRY.items():
        which = np.flatnonzero(codes == CODE[name])
        maps[which] = geometry(magnitudes[which], width[which], height[which])
    return maps.reshape(slots, count, 2, 3)
