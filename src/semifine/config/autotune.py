"""Chooses settings that suit a data set."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import read_size

GOOD_SHARE = 0.1
"""Of a run's steps: a longer average would hold the beginning to the end."""
LONGEST_SHARE = 0.5
"""From here on it is worth a word. After 500 steps of SoC on the embedded set, an average over 50 names 64 % of the
test images right, one over 1,000 steps 3 %."""
LONGEST_DECAY = 0.999


def averaging_decay(steps: int) -> float:
    """The decay that suits a run of so many steps."""
    return min(round(1 - 1 / max(GOOD_SHARE * steps, 1), 4), LONGEST_DECAY)


def averaged_steps(decay: float) -> int:
    """How many steps an average holds, roughly."""
    return round(1 / max(1 - decay, 1e-9))


def lags(decay: float, steps: int) -> bool:
    """Whether an average still holds much of the beginning in the end of a run."""
    return averaged_steps(decay) > LONGEST_SHARE * steps


LOOKED_AT = 64
"""Images whose size is looked at."""
LARGEST_SIDE, SMALLEST_SIDE = 224, 32
LARGEST_BATCH, SMALLEST_BATCH = 32, 4
PASSES = 100
"""How often each labeled and each unlabeled image is seen, roughly."""
FEWEST_STEPS, MOST_STEPS = 500, 50_000

SUGGESTED = frozenset({"image_size", "batch_size", "iterations", "ema"})


@dataclass
class Suggestions:
    """Values by setting, and the reason for each."""

    values: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, reason: str) -> None:
        self.values[name] = value
        self.reasons.append(f"{name} {value} ({reason})")


def suggest(catalog: Catalog, given: Collection[str], batch: int, mu: int, steps: int) -> Suggestions:
    """Values for those of ``SUGGESTED`` that are not given; ``batch`` and ``steps`` count only where they are."""
    found = Suggestions()
    labeled, unlabeled = (len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED))
    side = middle_side(catalog)
    if "image_size" not in given and side is not None:
        size = min(max(side // 32 * 32, SMALLEST_SIDE), LARGEST_SIDE)
        found.add("image_size", size, f"photos are about {side} pixels across")
    if "batch_size" not in given:
        batch = min(max(2 ** (labeled.bit_length() - 1), SMALLEST_BATCH), LARGEST_BATCH)
        found.add("batch_size", batch, f"{labeled} labeled images")
    if "iterations" not in given:
        wanted = PASSES * max(labeled / batch, unlabeled / (batch * mu))
        steps = min(max(int(np.ceil(wanted / 100)) * 100, FEWEST_STEPS), MOST_STEPS)
        found.add("iterations", steps, f"about {PASSES} passes over {labeled} labeled, {unlabeled} unlabeled")
    if "ema" not in given:
        found.add("ema", averaging_decay(steps), f"{steps} steps")
    return found


def middle_side(catalog: Catalog) -> int | None:
    """The median of the shorter sides of some images; None where none can be read."""
    rows = np.unique(np.linspace(0, len(catalog) - 1, LOOKED_AT).astype(np.int64)).tolist()
    root = os.fspath(catalog.root or "")
    sizes = [read_size(os.path.join(root, catalog.paths[row])) for row in rows]
    shorter = [min(size) for size in sizes if size is not None]
    return int(np.median(shorter)) if shorter else None
