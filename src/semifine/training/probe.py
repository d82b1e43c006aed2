"""The linear probe of a run: fitted in seconds, before the first step, and a complete result by itself."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import cross_entropy

from semifine.config import RunSettings, TrainSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.label_check import LabelCheck, check_labels, write_label_check
from semifine.features.extract import FeatureCache, FeatureEvaluator, Progress
from semifine.features.probe import (
    STRENGTHS,
    CrossValidation,
    LabeledFeatures,
    Linear,
    Scaling,
    UnlabeledFeatures,
    Whitening,
    cross_validate,
    fit_logistic_regression,
    fit_probe,
    stratified_folds,
)
from semifine.inference.calibration import Calibration, calibrate
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.methods.base import DataInfo, NoSettings
from semifine.methods.probe import Probe
from semifine.models.classifier import Classifier
from semifine.runs.analysis import wilson_interval
from semifine.runs.checkpoint import save_probe
from semifine.runs.folder import RunFolder
from semifine.training.evaluate import ClusterHistory, RunEvaluator
from semifine.training.meters import LabelHistory
from semifine.training.progress import Display

MAX_UNLABELED = 5000
"""Views of unlabeled images whose features a CPU computes for self-training; more of them take minutes and gain little.
Up to half as many images are used with their mirror images."""


@dataclass(frozen=True, eq=False)
class RunProbe:
    """The linear probe of a run."""

    network: Classifier
    """The pretrained backbone with the probe as its head, fitted on all labels."""
    start: Linear
    """The head with which training starts: fitted without validation labels."""
    evaluator: FeatureEvaluator
    cross_validation: CrossValidation
    strength: float
    self_trained: bool
    labeled_rows: NDArray[np.int64]
    """Catalog rows of the images whose labels the probe uses."""

    def summary(self) -> dict[str, Any]:
        """Returns the cross-validated accuracy and the chosen settings, for ``result.json``."""
        found: dict[str, Any] = {"strength": self.strength, "self_trained": self.self_trained}
        correct = self.cross_validation.correct
        if len(correct):
            percent = 100 * float(correct.double().mean())
            interval = wilson_interval(percent, len(correct))
            found["cross_validation"] = {
                "top1": percent,
                "images": len(correct),
                "low": interval.low,
                "high": interval.high,
            }
        return found

    def describe(self) -> str:
        """Describes the accuracy in one sentence."""
        found = self.summary()
        unlabeled = "labeled and unlabeled" if self.self_trained else "labeled"
        if "cross_validation" not in found:
            return f"probe: fitted on {unlabeled} images; too few labels per class to measure its accuracy"
        cv = found["cross_validation"]
        return (
            f"probe: {cv['top1']:.1f} % of labeled images correct in cross-validation (95 % interval {cv['low']:.1f} "
            f"to {cv['high']:.1f} %, {cv['images']} images), fitted on {unlabeled} images"
        )

    def check_labels(self, catalog: Catalog) -> LabelCheck | None:
        """Compares the labels with the predictions of the cross-validation; None without cross-validation."""
        cv = self.cross_validation
        if not len(cv.rows):
            return None
        paths = [str(catalog.paths[row]) for row in self.labeled_rows[cv.rows.cpu().numpy()].tolist()]
        return check_labels(paths, self.calibration().probabilities(cv.logits.cpu().numpy()), cv.label.cpu().numpy())

    def cross_validation_of(self, rows: NDArray[np.int64]) -> CrossValidation:
        """Returns the cross-validation for the same labels in another order.

        Args:
            rows: Catalog rows of the labeled images in their order.
        """
        position = {row: index for index, row in enumerate(rows.tolist())}
        held_out = self.labeled_rows[self.cross_validation.rows.cpu().numpy()]
        found = torch.tensor([position[row] for row in held_out.tolist()], dtype=torch.long)
        return self.cross_validation._replace(rows=found)

    def calibration(self) -> Calibration:
        """Returns the calibration of the probe, fitted on the predictions of the cross-validation."""
        cv = self.cross_validation
        return calibrate(cv.logits.cpu().numpy(), cv.label.cpu().numpy())


class RunProbeFitter:
    """Fits the probe of a run: first on the labeled images alone, then on labeled and unlabeled images.

    Regularization and self-training are chosen by cross-validation over the labels.

    Args:
        settings: Settings of the run.
        dataset: The images, with an open store.
        classifier: The network with pretrained weights. It does not change.
        device: Device of the computations.
        display: Shows the progress.
    """

    def __init__(
        self, settings: RunSettings, dataset: Dataset, classifier: Classifier, device: torch.device, display: Display
    ) -> None:
        self._catalog = dataset.catalog
        self._seed = settings.train.seed
        self._device = device
        self._display = display
        self._network = copy.deepcopy(classifier).to(device).eval()
        self._evaluator = _create_evaluator(settings.train, dataset, self._network, device, display.advance)
        self._unlabeled_rows = self._catalog.rows(Split.UNLABELED)
        if device.type == "cpu" and len(self._unlabeled_rows) > MAX_UNLABELED:
            chosen = np.random.default_rng(self._seed).permutation(len(self._unlabeled_rows))[:MAX_UNLABELED]
            self._unlabeled_rows = self._unlabeled_rows[np.sort(chosen)]

    def fit_labeled(self) -> RunProbe:
        """Fits the probe on the labeled images, before the features of unlabeled images are computed."""
        return self._fit(())

    def fit(self, like: RunProbe | None = None) -> RunProbe:
        """Fits the probe on all images.

        Args:
            like: A probe with the same labels, whose regularization and cross-validation are used again.
        """
        if not len(self._unlabeled_rows):
            return self._fit((), like)
        self._evaluator.restart_progress()
        flips = (
            (False, True) if self._device.type != "cpu" or 2 * len(self._unlabeled_rows) <= MAX_UNLABELED else (False,)
        )
        with self._display.bar("computing features of unlabeled images", len(flips) * len(self._unlabeled_rows)):
            views = [self._evaluator.features(self._unlabeled_rows, flip=flip) for flip in flips]
        return self._fit([torch.from_numpy(view).to(self._device) for view in views], like)

    def _fit(self, unlabeled: Sequence[Tensor], like: RunProbe | None = None) -> RunProbe:
        labeled_rows, val_rows = (self._catalog.rows(split) for split in (Split.LABELED, Split.VAL))
        rows = np.concatenate([labeled_rows, val_rows])
        self._evaluator.restart_progress()
        with self._display.bar("computing features", 2 * len(rows)):
            both = [self._evaluator.features(rows, flip=flip) for flip in (False, True)]
        views = [torch.from_numpy(view).to(self._device) for view in both]
        label = torch.from_numpy(self._catalog.label[rows]).to(self._device)
        with self._display.bar("fitting the probe", None):
            candidates = [_ProbeFit.on_labels(views, label, self._catalog.num_classes)]
            if unlabeled:
                candidates.append(_ProbeFit.with_self_training(views, label, self._catalog.num_classes, unlabeled))
            if like is None:
                folds = stratified_folds(label, self._seed).to(self._device)
                chosen, cv, strength = _choose(candidates, folds)
            else:
                chosen, strength = candidates[-1 if like.self_trained else 0], like.strength
                cv = like.cross_validation_of(rows)
            final = start = chosen.fit(strength)
            if len(val_rows):
                start = chosen.fit(strength, torch.arange(len(labeled_rows), device=self._device))
        network = copy.deepcopy(self._network)
        set_head(network, final)
        return RunProbe(network, start, self._evaluator, cv, strength, chosen.unlabeled is not None, rows)


def fit_new_classes(probe: RunProbe, catalog: Catalog, head: Linear, is_new: Tensor) -> Linear:
    """Fits the rows of new classes on the labeled images, beside the rows of known classes, which stay as they are.

    Args:
        probe: The probe, with the features of the images.
        catalog: The images.
        head: The classification head with the rows of known classes.
        is_new: Mask ``(classes,)`` of the rows to fit.
    """
    rows = catalog.rows(Split.LABELED)
    features = torch.from_numpy(probe.evaluator.features(rows))
    label = torch.from_numpy(catalog.label[rows])
    scaling = Scaling.of(features)
    labeled = LabeledFeatures((scaling.apply(features),), label, catalog.num_classes)
    known = scaling.unfold_from(head)
    start = Linear(*(value.masked_fill(is_new.view(-1, *[1] * (value.ndim - 1)), 0) for value in known))
    fitted = fit_logistic_regression(*labeled.stacked(), probe.strength, start, fitted=is_new)
    found = scaling.fold_into(fitted)
    return Linear(torch.where(is_new[:, None], found.weight, head.weight), torch.where(is_new, found.bias, head.bias))


def set_head(network: Classifier, linear: Linear) -> None:
    """Copies a fitted linear layer into the classification head."""
    network.head.load_state_dict({"weight": linear.weight, "bias": linear.bias})


def _create_evaluator(
    train: TrainSettings, dataset: Dataset, network: Classifier, device: torch.device, progress: Progress
) -> FeatureEvaluator:
    preprocessor = create_preprocessor(train.image_size, train.stored_side, device)
    evaluator = Evaluator(dataset.store, preprocessor, device)
    given = "".join(f" {name} {value}" for name, value in train.network_options.items() if value is not None)
    caches = [
        FeatureCache.of(network, f"{train.backbone} {train.image_size} {train.stored_side} {flip}{given}", train.cache)
        for flip in (False, True)
    ]
    return FeatureEvaluator(evaluator, network, dataset.store, (caches[0], caches[1]), progress)


@dataclass(frozen=True)
class _ProbeFit:
    """Scaled features from which a probe is fitted, with or without self-training."""

    features: LabeledFeatures
    scaling: Scaling | Whitening
    unlabeled: UnlabeledFeatures | None = None

    @classmethod
    def on_labels(cls, views: Sequence[Tensor], label: Tensor, num_classes: int) -> _ProbeFit:
        scaling = Scaling.of(views[0])
        return cls(LabeledFeatures(tuple(scaling.apply(view) for view in views), label, num_classes), scaling)

    @classmethod
    def with_self_training(
        cls, views: Sequence[Tensor], label: Tensor, num_classes: int, unlabeled: Sequence[Tensor]
    ) -> _ProbeFit:
        whitening = Whitening.of(torch.cat([views[0], unlabeled[0]]))
        labeled = LabeledFeatures(tuple(whitening.apply(view) for view in views), label, num_classes)
        return cls(labeled, whitening, UnlabeledFeatures.of(*(whitening.apply(view) for view in unlabeled)))

    def choose_strength(self, folds: Tensor) -> tuple[float, CrossValidation]:
        """Returns the regularization with the lowest cross-entropy of held-out labels, without self-training."""
        found = cross_validate(self.features, folds, STRENGTHS)
        strength = min(found, key=lambda value: found[value].loss) if (folds >= 0).any() else STRENGTHS[1]
        return strength, found[strength]

    def fit(self, strength: float, rows: Tensor | None = None) -> Linear:
        """Fits the probe on all labeled images or on some of them; returns the layer on raw features."""
        features = self.features if rows is None else self.features.take(rows)
        return self.scaling.fold_into(fit_probe(features, strength, self.unlabeled))


def _choose(candidates: Sequence[_ProbeFit], folds: Tensor) -> tuple[_ProbeFit, CrossValidation, float]:
    """Chooses the probe and its regularization by the cross-validated accuracy.

    Self-training, the last candidate, is used unless its accuracy is significantly lower.
    """
    plain = candidates[0]
    strength, before = plain.choose_strength(folds)
    trained = candidates[-1]
    if trained.unlabeled is None:
        return plain, before, strength
    trained_strength, _ = trained.choose_strength(folds)
    after = cross_validate(trained.features, folds, [trained_strength], trained.unlabeled)[trained_strength]
    difference = after.correct.double() - before.correct.double()
    if len(difference) and bool(difference.sum() < -difference.abs().sum().sqrt()):
        return plain, before, strength
    return trained, after, trained_strength


def write_probe(folder: RunFolder, dataset: Dataset, probe: RunProbe, *, with_samples: bool = True) -> dict[str, Any]:
    """Writes weights, statistics and the label check of the probe to the run folder.

    Args:
        folder: The run folder.
        dataset: The images.
        probe: The probe.
        with_samples: Also write the statistics of the unlabeled images.

    Returns:
        Accuracies and statistics for ``result.json``.
    """
    catalog = dataset.catalog
    info = DataInfo(catalog.num_classes, len(catalog.rows(Split.LABELED)), len(catalog.rows(Split.UNLABELED)))
    evaluator = RunEvaluator(
        folder,
        catalog,
        probe.evaluator,
        probe.network,
        Probe(NoSettings(), info),
        LabelHistory(info.num_unlabeled, info.num_classes),
        ClusterHistory({}),
    )
    save_probe(folder.checkpoints, probe.network.state_dict())
    scores = evaluator.scores(probe.network)
    unlabeled = evaluator.write_stats(with_samples=with_samples)
    found = {"top1": scores.get("test_top1"), "top5": scores.get("test_top5"), **probe.summary()}
    if (check := probe.check_labels(catalog)) is not None:
        write_label_check(folder.label_check, check, catalog.class_names)
        found["suspect_labels"] = check.num_suspects
    rows = catalog.rows(Split.VAL)
    if len(rows):
        start = copy.deepcopy(probe.network)
        set_head(start, probe.start)
        label = torch.from_numpy(catalog.label[rows])
        found["val"] = probe.evaluator.accuracy(start, rows, label)
        logits = torch.cat([output.logits for output in probe.evaluator.outputs(start, rows)]).cpu()
        found["val"]["loss"] = cross_entropy(logits, label).item()
    return {"probe": found, "unlabeled": unlabeled}
