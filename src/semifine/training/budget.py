"""Chooses the number of steps and of cached views for a time budget, from measurements of a few seconds."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from semifine.config import RunSettings, TrainSettings
from semifine.config.autotune import ema_decay_for
from semifine.config.train_settings import parse_duration
from semifine.data.catalog import Catalog, Split
from semifine.features.activations import memory_format_of
from semifine.methods import method_class
from semifine.models.classifier import Classifier
from semifine.models.ema import create_ema
from semifine.models.folding import fold_batch_norms
from semifine.models.forward import micro_batch_size
from semifine.models.trunk import TailClassifier, split_backbone
from semifine.training.estimates import benchmark_throughput, format_duration
from semifine.training.interpolation import WEIGHTS
from semifine.training.trial import SHARE

MIN_STEPS = 20
"""Fewer steps are not worth a training."""
MAX_CACHING = 0.4
"""Largest fraction of the remaining time for computing the activations of frozen stages."""
VERSIONS = ((6, 3), (4, 2), (2, 1))
"""Versions of labeled and unlabeled views, from the best to the fastest."""
AUGMENTATION = 1.3
"""Time of an augmented view relative to the pass through the network."""
MAX_EVALUATIONS = 10
MAX_EVALUATING = 0.1
"""Largest fraction of the remaining time for evaluations during the training."""
EVALUATED_IMAGE = 3.0
"""Time of an evaluated image relative to a view through the frozen stages, with the other stages and loading."""
RESERVE = 0.03
"""Fraction of the remaining time for files."""


@dataclass(frozen=True)
class Plan:
    """What fits into a time budget."""

    steps: int
    evaluations: int
    labeled_versions: int
    unlabeled_versions: int
    note: str
    """Explains the plan in one line."""

    def apply(self, settings: RunSettings) -> RunSettings:
        """Returns the settings with the planned values; the EMA decay stays if it does not follow from the steps."""
        values: dict[str, float] = {
            "iterations": self.steps,
            "labeled_versions": self.labeled_versions,
            "unlabeled_versions": self.unlabeled_versions,
        }
        if settings.train.evaluate_every is None:
            values["evaluate_every"] = -(-self.steps // self.evaluations)
        if settings.train.save_every is None:
            values["save_every"] = -(-self.steps // MAX_EVALUATIONS)
        tunes_ema = method_class(settings.method).evaluates_ema
        if tunes_ema and settings.train.ema == ema_decay_for(settings.train.iterations):
            values["ema"] = ema_decay_for(self.steps)
        return dataclasses.replace(settings, train=dataclasses.replace(settings.train, **values))  # type: ignore[arg-type]


def plan_training(
    settings: RunSettings, catalog: Catalog, classifier: Classifier, device: torch.device, used: float, trainings: int
) -> Plan | None:
    """Measures the speed of this machine and returns the plan for ``settings.train.time``.

    Args:
        settings: Settings of the run; ``iterations`` is the largest number of steps.
        catalog: The images.
        classifier: The network. It does not change.
        device: Device of the training.
        used: Seconds since the start of the command.
        trainings: Number of trainings with these steps; 2 with a trial.

    Returns:
        None if the rest of the budget is too short for a training.
    """
    assert settings.train.time is not None
    budget = parse_duration(settings.train.time)
    left, caching, versions = (budget - used) * (1 - RESERVE), 0.0, VERSIONS[0]
    view = 0.0
    if settings.train.trained_stages is None:
        image, step = _full_seconds(settings, classifier, device)
    else:
        view, step = _tail_seconds(settings, classifier, device)
        image = view * EVALUATED_IMAGE
    evaluated = len(catalog.rows(Split.VAL)) + len(catalog.rows(Split.TEST))
    evaluations = min(max(int(MAX_EVALUATING * left / max(evaluated * image, 1e-9)), 1), MAX_EVALUATIONS)
    left -= image * (evaluations * evaluated + _count_at_end(catalog, has_trial=trainings > 1))
    if view:
        found = [(n * view * AUGMENTATION, v) for v in VERSIONS for n in [_count_views(settings, catalog, v)]]
        caching, versions = next((pair for pair in found if pair[0] <= MAX_CACHING * left), found[-1])
    steps = min(int((left - caching) / (step * trainings)), settings.train.iterations)
    if steps < MIN_STEPS:
        return None
    return Plan(
        steps, evaluations, *versions, _describe(settings, steps, caching + steps * step * trainings, trainings > 1)
    )


def _describe(settings: RunSettings, steps: int, seconds: float, has_trial: bool) -> str:
    train = settings.train
    unlabeled = train.batch_size * train.mu * bool(method_class(settings.method).unlabeled_views)
    photos = f"{train.batch_size} labeled" + f" and {unlabeled} unlabeled" * bool(unlabeled)
    lines = [f"training: {steps} steps of {photos} photos{', twice' * has_trial}, {format_duration(seconds)}"]
    if has_trial:
        lines.append("the first time without a quarter of the labels, to measure whether training beats the probe")
    if steps == train.iterations:
        lines.append("the time would allow more; --iterations sets more steps")
    return "; ".join(lines)


def _count_at_end(catalog: Catalog, *, has_trial: bool) -> int:
    """Returns how many images are evaluated after the training and after the trial."""
    labeled, unlabeled, val, test = (len(catalog.rows(split)) for split in Split)
    training = val + test + len(WEIGHTS) * val + unlabeled
    trial = test + len(WEIGHTS) * labeled // SHARE + unlabeled
    return training + trial * has_trial


def _count_views(settings: RunSettings, catalog: Catalog, versions: tuple[int, int]) -> int:
    labeled, unlabeled = (len(catalog.rows(split)) for split in (Split.LABELED, Split.UNLABELED))
    weak_and_strong = max(1, versions[1] - 1) + versions[1]
    uses_unlabeled = bool(method_class(settings.method).unlabeled_views)
    return labeled * versions[0] + unlabeled * weak_and_strong * uses_unlabeled


def _full_seconds(settings: RunSettings, classifier: Classifier, device: torch.device) -> tuple[float, float]:
    """Returns the seconds of an evaluated image, and of a step that trains the whole network.

    A view without gradient costs a third of a view with gradient.
    """
    train = settings.train
    images = train.batch_size * (1 + train.mu * 4 / 3 * bool(method_class(settings.method).unlabeled_views))
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    seconds = benchmark_throughput(classifier, train.image_size, round(images), device, lambda: autocast)
    return (seconds or 1.0) / 3, images * (seconds or 1.0) * AUGMENTATION


def _tail_seconds(settings: RunSettings, classifier: Classifier, device: torch.device) -> tuple[float, float]:
    """Returns the seconds of a view through the trunk, and of a step of the tail."""
    train = settings.train
    assert train.trained_stages is not None
    copied = create_ema(classifier).to(device)
    split = split_backbone(copied.backbone, train.trained_stages, train.image_size)
    count = min(8, micro_batch_size(8, train.image_size, device))
    images = torch.rand(count, 3, train.image_size, train.image_size, device=device)
    trunk = fold_batch_norms(split.trunk, images[:1])
    view = _time(lambda: trunk(images), device) / count
    activations = split.trunk(images[:1])
    tail = TailClassifier(copied, split.tail).eval().requires_grad_(True)
    unlabeled = train.batch_size * train.mu * bool(method_class(settings.method).unlabeled_views)
    batch = activations.expand(train.batch_size + unlabeled, *activations.shape[1:])
    batch = batch.contiguous(memory_format=memory_format_of(batch))

    def step() -> None:
        if unlabeled:
            with torch.no_grad():
                tail(batch[:unlabeled])
        tail(batch).logits.square().mean().backward()

    return view, _time(step, device)


def _time(function: Callable[[], object], device: torch.device) -> float:
    """Returns the seconds of the second of two calls."""
    for _ in range(2):
        start = time.perf_counter()
        function()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
    return time.perf_counter() - start


def adopt_plan(settings: RunSettings, stored: TrainSettings) -> RunSettings:
    """Returns the settings with the plan of a run that is resumed."""
    names = ("iterations", "evaluate_every", "save_every", "labeled_versions", "unlabeled_versions", "ema")
    values = {name: getattr(stored, name) for name in names}
    return dataclasses.replace(settings, train=dataclasses.replace(settings.train, **values))
