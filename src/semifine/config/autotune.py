"""Chooses settings for the user's own photos: network, image size, time, batch size, number of steps, EMA decay, and
class-balanced sampling."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from semifine.config.train_settings import TrainSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import read_row_size

MIN_PHOTO_SIDE = 96
"""Shorter side of photos from which a pretrained network is the default. Networks are pretrained on larger images."""


class DefaultTime(NamedTuple):
    """Time budget of a training from a pretrained network."""

    device: str
    value: str
    words: str
    more: str
    """An example of a larger budget."""


DEFAULT_TIME = {
    "cpu": DefaultTime("a CPU", "10m", "10 minutes", "1h"),
    "cuda": DefaultTime("a GPU", "1h", "1 hour", "4h"),
}
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
    "crop_scale": (0.4, 1.0),
}
"""Training of the last stages of a pretrained network on a CPU; the first stages are frozen. Crops are large, because
the few cached versions of an image would otherwise miss most of it."""
EXCLUDE_TAIL_TRAINING = {*TAIL_TRAINING, "train", "cutmix"} - {"crop_scale"}
"""Settings that, if they are given, mean another training."""
TRANSFORMER_TRAINING = {
    "optimizer": "adamw",
    "lr": 5e-4,
    "layer_decay": 0.7,
    "weight_decay": 0.05,
    "decay_exempt": "1d",
    "schedule": "half_cosine",
    "warmup": 0.1,
    "clip_grad": 1.0,
    "drop_path": 0.1,
}
"""Training of all weights of a pretrained transformer or ConvNeXt."""
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
    """Chosen values by setting, and the notes that explain them."""

    values: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def choose_network(
    catalog: Catalog, given: Collection[str], settings: TrainSettings, earlier: TrainSettings | None = None
) -> Suggestions:
    """Chooses a pretrained network, the probe, the image size, and the training that suits them.

    Photos that are smaller than ``MIN_PHOTO_SIDE`` get no pretrained network. The backbone is taken from the
    earlier run (``--weights``), otherwise it is one whose weights are installed, if there is one.

    Args:
        catalog: The images to train on.
        given: Names of the settings that the user chose, which are not changed.
        settings: The settings so far.
        earlier: Settings of the run whose weights the training starts from, if any.
    """
    # Slow: imports torch and timm, which a run without own photos loads later.
    from semifine.devices import resolve_device
    from semifine.models.classifier import accepts_drop_path, is_mostly_linear
    from semifine.models.imagenet import installed_backbone, own_image_size

    suggestions = Suggestions()
    values, side = suggestions.values, median_side(catalog)
    if side is not None and side >= MIN_PHOTO_SIDE and {"pretrained", "weights"}.isdisjoint(given):
        values["pretrained"] = True
    if not (settings.weights or values.get("pretrained", settings.pretrained)):
        return suggestions
    if "backbone" not in given and earlier is not None:
        values["backbone"] = earlier.backbone
    elif "backbone" not in given and not settings.weights:
        values["backbone"] = installed_backbone() or settings.backbone
    backbone = values.get("backbone", settings.backbone)
    if earlier is not None and backbone == earlier.backbone:
        values |= {name: value for name, value in earlier.network_options.items() if value and name not in given}
    if "image_size" not in given and side is not None:
        least = earlier.image_size if earlier is not None else own_image_size(backbone)
        values["image_size"] = max(least, min(side // 32 * 32, MAX_SIDE))
    if "probe" not in given:
        values["probe"] = True
    device = resolve_device(settings.device)
    if device == "cpu" and EXCLUDE_TAIL_TRAINING.isdisjoint(given):
        values |= {name: value for name, value in TAIL_TRAINING.items() if name not in given}
    elif {"optimizer", "lr"}.isdisjoint(given) and is_mostly_linear(backbone):
        unsuitable = set() if accepts_drop_path(backbone) else {"drop_path"}
        chosen = {name: value for name, value in TRANSFORMER_TRAINING.items() if name not in unsuitable.union(given)}
        values |= chosen
        options = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in chosen.items())
        suggestions.notes.append(f"training: {options}, which suit a transformer such as {backbone}")
    if values.keys() & {"backbone", "image_size", "train_stages"}:
        suggestions.notes.append(_describe_network(settings, values, backbone))
    if {"time", "iterations"}.isdisjoint(given):
        time = DEFAULT_TIME[device]
        values["time"] = time.value
        suggestions.notes.append(
            f"time: at most {time.words}, the default on {time.device}; for more: --time {time.more}"
        )
    return suggestions


def _describe_network(settings: TrainSettings, values: dict[str, Any], backbone: str) -> str:
    start = f"the weights of {settings.weights}" if settings.weights else "ImageNet weights"
    size = values.get("image_size", settings.image_size)
    stages = values.get("train_stages", settings.train_stages)
    trained = f"; its last {stages} stages are trained, the first ones stay as they are" if stages else ""
    if settings.train == "head":
        trained = "; only its classifier is trained"
    return f"network: {backbone} with {start}, at {size} x {size} pixels{trained}"


def autotune(catalog: Catalog, given: Collection[str], settings: TrainSettings) -> Suggestions:
    """Chooses image size, batch size, number of steps, EMA decay and class-balanced sampling if they are not given.

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
    values, notes = suggestions.values, suggestions.notes
    labeled, unlabeled = (len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED))
    batch, steps = settings.batch_size, settings.iterations
    side = None if "image_size" in given else median_side(catalog)
    if side is not None:
        size = values["image_size"] = min(max(side // 32 * 32, MIN_SIDE), MAX_SIDE)
        notes.append(f"image size: {size} pixels, because the photos are about {side} pixels across")
    if "batch_size" not in given:
        batch = values["batch_size"] = min(max(2 ** (labeled.bit_length() - 1), MIN_BATCH), MAX_BATCH)
    if "iterations" not in given:
        wanted = PASSES * max(labeled / batch, unlabeled / (batch * settings.mu))
        steps = values["iterations"] = min(max(int(np.ceil(wanted / 100)) * 100, MIN_STEPS), MAX_STEPS)
    if "ema" not in given:
        values["ema"] = ema_decay_for(steps)
    if not settings.time and values:
        training = (
            f"training: {steps} steps of {batch} labeled photos; {labeled} labeled and {unlabeled} unlabeled in all"
        )
        average = f"; the weights are averaged over about {ema_steps(values['ema'])} steps" if "ema" in values else ""
        notes.append(training + average)
    # Imports torch, which is slow and which readers of settings do not need.
    from semifine.data.samplers import is_long_tailed

    counts = np.bincount(catalog.label[catalog.rows(Split.LABELED)], minlength=catalog.num_classes)
    if "balance" not in given and is_long_tailed(counts):
        values["balance"] = True
        most, fewest = counts.max(), counts[counts > 0].min()
        notes.append(
            f"balance: classes have {fewest} to {most} labels, so that training draws labeled photos of each class "
            "equally often; --no-balance draws every photo equally often"
        )
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
