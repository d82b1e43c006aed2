"""Chooses settings for the user's own photos: image size, batch size, number of steps and EMA decay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import numpy as np

from semifine.config.train_settings import TrainSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import read_row_size

AUTOTUNED = frozenset({"image_size", "batch_size", "iterations", "ema"})
"""The settings that ``autotune`` chooses."""
SAMPLED_IMAGES = 64
"""Number of images whose size is read."""
MAX_SIDE, MIN_SIDE = 224, 32
MAX_BATCH, MIN_BATCH = 32, 4
PASSES = 100
"""Approximate number of passes over the labeled and over the unlabeled images."""
MIN_STEPS, MAX_STEPS = 500, 50_000

EMA_FRACTION = 0.1
"""Fraction of the steps that the EMA averages. A longer average would include the beginning of the run."""
MAX_EMA_FRACTION = 0.5
"""An EMA over a larger fraction of the run causes a warning. After 500 steps of SoC on the synthetic data, an average
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
    """Chooses values for the settings of ``AUTOTUNED`` that are not given.

    Args:
        catalog: The images to train on.
        given: Names of the settings that the user chose, which are not changed.
        settings: The settings so far. Batch size and number of steps are read from it if they are given.

    Example:
        >>> from semifine.data.sources import load_catalog
        >>> autotune(load_catalog("synthetic"), {"image_size", "batch_size"}, TrainSettings(batch_size=20)).values
        {'iterations': 3000, 'ema': 0.9967}
    """
    suggestions = Suggestions()
    labeled, unlabeled = (len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED))
    batch, steps = settings.batch_size, settings.iterations
    side = None if "image_size" in given else median_side(catalog)
    if side is not None:
        size = min(max(side // 32 * 32, MIN_SIDE), MAX_SIDE)
        suggestions.add("image_size", size, f"photos are about {side} pixels across")
    if "batch_size" not in given:
        batch = min(max(2 ** (labeled.bit_length() - 1), MIN_BATCH), MAX_BATCH)
        suggestions.add("batch_size", batch, f"{labeled} labeled images")
    if "iterations" not in given:
        wanted = PASSES * max(labeled / batch, unlabeled / (batch * settings.mu))
        steps = min(max(int(np.ceil(wanted / 100)) * 100, MIN_STEPS), MAX_STEPS)
        suggestions.add("iterations", steps, f"about {PASSES} passes over {labeled} labeled, {unlabeled} unlabeled")
    if "ema" not in given:
        suggestions.add("ema", ema_decay_for(steps), f"{steps} steps")
    return suggestions


def median_side(catalog: Catalog) -> int | None:
    """Returns the median of the shorter sides of a sample of images; None if none of them is readable."""
    rows = np.unique(np.linspace(0, len(catalog) - 1, SAMPLED_IMAGES).astype(np.int64)).tolist()
    sizes = [read_row_size(catalog.reader, row) for row in rows]
    shorter = [min(size) for size in sizes if size is not None]
    return int(np.median(shorter)) if shorter else None


def ema_decay_for(steps: int) -> float:
    """Returns the EMA decay for a run of this many steps.

    Example:
        >>> ema_decay_for(500)
        0.98
    """
    return min(round(1 - 1 / max(EMA_FRACTION * steps, 1), 4), MAX_EMA_DECAY)


def ema_steps(decay: float) -> int:
    """Returns the approximate number of steps that an EMA with this decay averages.

    Example:
        >>> ema_steps(0.99)
        100
    """
    return round(1 / max(1 - decay, 1e-9))


def ema_is_too_slow(decay: float, steps: int) -> bool:
    """Whether an EMA includes much of the beginning of the run at its end.

    Example:
        >>> ema_is_too_slow(0.999, 500), ema_is_too_slow(0.98, 500)
        (True, False)
    """
    return ema_steps(decay) > MAX_EMA_FRACTION * steps
