"""Chooses settings for the user's own photos: image size, batch size, number of steps and EMA decay."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from semifine.config.train_settings import TrainSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import read_row_size

MIN_PHOTO_SIDE = 96
"""Shorter side of photos from which a pretrained network is the default. Networks are pretrained on larger images."""
DEFAULT_TIME = {"cpu": "10m", "cuda": "1h"}
"""Time budget of a training from a pretrained network, by device."""
TAIL_TRAINING = {
    "train_stages": 2,
    "optimizer": "adamw",
    "lr": 2e-3,
    "backbone_lr": 0.2,
    "weight_decay": 0.05,
    "schedule": "half_cosine",
    "warmup": 0.05,
    "mixup": 0.3,
    "mu": 2,
}
"""Training of the last stages of a pretrained network on a CPU; the first stages are frozen."""
SOC_LEVERS = {"labels_from": "ema", "align": 0.5, "sharpen": 1.5}
"""Settings of SoC for the training of the last stages."""
SAMPLED_IMAGES = 64
"""Number of images whose size is read."""
MAX_SIDE, MIN_SIDE = 224, 32
MAX_BATCH, MIN_BATCH = 32, 4
PASSES = 100
"""Approximate number of passes over the labeled and over the unlabeled images."""
MIN_STEPS, MAX_STEPS = 500, 50_000

EMA_FRACTION = 0.1
"""Fraction of the steps that the EMA averages. A longer average would include the beginning of the run, and causes a
warning. After 500 steps of SoC on the synthetic data, an average over 50 steps classified 64 % of the test images
correctly, one over 1,000 steps 3 %. After 3,000 steps on Semi-CUB, an average over 300 steps was 4 points better than
one over 1,000 steps."""
MAX_EMA_DECAY = 0.999
MIN_EMA_STEPS = 2
"""An average over a single step would be none, and some methods need one."""


@dataclass
class Suggestions:
    """Chosen values by setting, and the reason for each."""

    values: dict[str, Any] = field(default_factory=dict)
    reasons: list[str] = field(default_factory=list)

    def add(self, name: str, value: Any, reason: str) -> None:
        self.values[name] = value
        self.reasons.append(f"{name} {value} ({reason})")


def choose_network(catalog: Catalog, given: Collection[str], settings: TrainSettings) -> Suggestions:
    """Chooses a pretrained network, the probe, the image size, and the training that suits them.

    Photos that are smaller than ``MIN_PHOTO_SIDE`` get no pretrained network. The backbone is one whose weights are
    installed, if there is one.

    Args:
        catalog: The images to train on.
        given: Names of the settings that the user chose, which are not changed.
        settings: The settings so far.
    """
    # Slow: imports torch and timm, which a run without own photos loads later.
    from semifine.devices import resolve_device
    from semifine.models.pretrained import installed_backbone, own_image_size

    suggestions = Suggestions()
    side = median_side(catalog)
    is_pretrained = settings.pretrained or settings.weights is not None
    if side is not None and side >= MIN_PHOTO_SIDE and {"pretrained", "weights"}.isdisjoint(given):
        is_pretrained = suggestions.values["pretrained"] = True
    backbone = settings.backbone
    if not is_pretrained:
        return suggestions
    if "backbone" not in given and settings.weights is None:
        backbone = installed_backbone() or backbone
        suggestions.add("backbone", backbone, "pretrained")
    if "image_size" not in given and side is not None:
        size = max(own_image_size(backbone), min(side // 32 * 32, MAX_SIDE))
        suggestions.add("image_size", size, "at least the size of the pretraining")
    if "probe" not in given:
        suggestions.values["probe"] = True
    device = resolve_device(settings.device)
    if device == "cpu" and TAIL_TRAINING.keys().isdisjoint(given):
        suggestions.values |= TAIL_TRAINING
    if {"time", "iterations"}.isdisjoint(given):
        suggestions.values["time"] = DEFAULT_TIME[device]
    return suggestions


def autotune(catalog: Catalog, given: Collection[str], settings: TrainSettings) -> Suggestions:
    """Chooses image size, batch size, number of steps and EMA decay if they are not given.

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
    """Returns the EMA decay for a run of this many steps: over a tenth of them, at least two.

    Example:
        >>> ema_decay_for(500), ema_decay_for(1)
        (0.98, 0.5)
    """
    return min(round(1 - 1 / max(EMA_FRACTION * steps, MIN_EMA_STEPS), 4), MAX_EMA_DECAY)


def ema_steps(decay: float) -> int:
    """Returns the approximate number of steps that an EMA with this decay averages.

    Example:
        >>> ema_steps(0.99)
        100
    """
    return round(1 / max(1 - decay, 1e-9))


def ema_is_too_slow(decay: float, steps: int) -> bool:
    """Whether an EMA averages more than a tenth of the run, so that the evaluated model lags behind.

    Example:
        >>> ema_is_too_slow(0.999, 3000), ema_is_too_slow(0.9967, 3000)
        (True, False)
    """
    # The second comparison is for the rounded decay of a tenth.
    return ema_steps(decay) > EMA_FRACTION * steps and decay > ema_decay_for(steps)
