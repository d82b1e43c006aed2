"""Chooses settings that suit somebody's own photos: image size, batch size, number of steps and EMA decay."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from semifine.config.train_settings import TrainSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import read_size

AUTOTUNED = frozenset({"image_size", "batch_size", "iterations", "ema"})
"""The settings that ``autotune`` chooses."""
SAMPLED_IMAGES = 64
"""Number of images whose size is read."""
MAX_SIDE, MIN_SIDE = 224, 32
MAX_BATCH, MIN_BATCH = 32, 4
PASSES = 100
"""About how often each labeled and each unlabeled image is seen."""
MIN_STEPS, MAX_STEPS = 500, 50_000

EMA_SHARE = 0.1
"""Share of a run's steps that the EMA averages. A longer average would keep the beginning until the end."""
MAX_EMA_SHARE = 0.5
"""An EMA over a larger share of the run is worth a warning. After 500 steps of SoC on the synthetic data, an average
over 50 steps classified 64 % of the test images correctly, one over 1,000 steps 3 %."""
MAX_EMA_DECAY = 0.999


@dataclass
class Suggestions:
    """Chosen values by setting, and the reason for each."""

    values: dict[str, float] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def add(self, name: str, value: float, reason: str) -> None:
        self.values[name] = value
        self.reasons.append(f"{name} {value} ({reason})")


def autotune(catalog: Catalog, given: Collection[str], settings: TrainSettings) -> Suggestions:
    """Values for the settings of ``AUTOTUNED`` that are not given.

    Args:
        catalog: The images to train on.
        given: Names of the settings that the user chose. They are left alone.
        settings: The settings so far. Batch size and number of steps are read from it if they are given.

    Example:
        >>> from semifine.data.sources import load_catalog
        >>> autotune(load_catalog("synthetic"), {"image_size", "batch_size"}, TrainSettings(batch_size=20)).values
        {'iterations': 3000, 'ema': 0.9967}
    """
    found = Suggestions()
    labeled, unlabeled = (len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED))
    batch, steps = settings.batch_size, settings.iterations
    side = None if "image_size" in given else median_side(catalog)
    if side is not None:
        size = min(max(side // 32 * 32, MIN_SIDE), MAX_SIDE)
        found.add("image_size", size, f"photos are about {side} pixels across")
    if "batch_size" not in given:
        batch = min(max(2 ** (labeled.bit_length() - 1), MIN_BATCH), MAX_BATCH)
        found.add("batch_size", batch, f"{labeled} labeled images")
    if "iterations" not in given:
        wanted = PASSES * max(labeled / batch, unlabeled / (batch * settings.mu))
        steps = min(max(int(np.ceil(wanted / 100)) * 100, MIN_STEPS), MAX_STEPS)
        found.add("iterations", steps, f"about {PASSES} passes over {labeled} labeled, {unlabeled} unlabeled")
    if "ema" not in given:
        found.add("ema", ema_decay_for(steps), f"{steps} steps")
    return found


def median_side(catalog: Catalog) -> int | None:
    """The median of the shorter sides of some images; None if no image can be read."""
    rows = np.unique(np.linspace(0, len(catalog) - 1, SAMPLED_IMAGES).astype(np.int64)).tolist()
    root = os.fspath(catalog.root or "")
    sizes = [read_size(os.path.join(root, catalog.paths[row])) for row in rows]
    shorter = [min(size) for size in sizes if size is not None]
    return int(np.median(shorter)) if shorter else None


def ema_decay_for(steps: int) -> float:
    """The EMA decay that suits a run of this many steps.

    Example:
        >>> ema_decay_for(500)
        0.98
    """
    return min(round(1 - 1 / max(EMA_SHARE * steps, 1), 4), MAX_EMA_DECAY)


def ema_steps(decay: float) -> int:
    """About how many steps an EMA with this decay averages.

    Example:
        >>> ema_steps(0.99)
        100
    """
    return round(1 / max(1 - decay, 1e-9))


def ema_is_too_slow(decay: float, steps: int) -> bool:
    """Whether an EMA still holds much of the beginning at the end of a run.

    Example:
        >>> ema_is_too_slow(0.999, 500), ema_is_too_slow(0.98, 500)
        (True, False)
    """
    return ema_steps(decay) > MAX_EMA_SHARE * steps
