"""The live model: a thread fits the classifier again after every few answers, while people label."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, replace
from typing import Any, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from semifine.features.live import LiveClassifier, LiveFit
from semifine.runs.analysis import wilson_interval
from semifine.studio.coverage import rank_by_coverage
from semifine.studio.snapshot import (
    ConfusionMap,
    Features,
    Indices,
    ModelSnapshot,
    center_and_normalize,
    map_classes,
    margin_uncertainty,
    rank_by_cluster,
    soft_confusion,
)

POLL_SECONDS = 0.1
ANSWERS_PER_FIT = 5
"""Number of new events after which the classifier is fitted at once."""
QUIET_SECONDS = 0.7
"""Pause after the last event, after which the classifier is fitted with fewer new events."""
FOLDS = 5
MIN_LABELS_TO_ESTIMATE = 20
ESTIMATE_GROWTH = 1.1
"""Growth of the number of labels after which the accuracy is estimated again."""
MIN_PER_BIN = 10
MAX_BINS = 20
MAP_IMAGES = 10_000
"""Images from which the map of the classes is computed."""
CLASSES_PER_CLUSTER = 4
"""Mean size of a cluster of classes, without a run whose method has a number of clusters."""


class Labels(Protocol):
    """What the live model reads from the label queue."""

    snapshot: ModelSnapshot
    last_event: int

    @property
    def classes_version(self) -> int: ...
    def labeled_classes(self) -> tuple[Indices, Indices]: ...
    def final_classes(self) -> Indices: ...
    def is_active(self) -> NDArray[np.bool_]: ...
    def is_waiting(self) -> NDArray[np.bool_]: ...


@dataclass(frozen=True)
class Estimate:
    """Estimated share of correct predictions among the waiting images, in percent, with its 95 % interval."""

    labels: int
    top1: float
    low: float
    high: float
    images: int
    """Labeled images that the estimate rests on."""


def weighted_accuracy(
    confidence: NDArray[np.float32], correct: NDArray[np.bool_], waiting: NDArray[np.float32]
) -> tuple[float, float]:
    """Estimates the accuracy on waiting images from labeled images, which people did not choose at random.

    Labeled images are divided into bins by confidence. Each bin counts as often as waiting images fall into it. So a
    queue that shows uncertain images first does not make the model look worse than it is, and confirmed groups of
    confident images do not make it look better.

    Args:
        confidence: Highest probability of each labeled image ``(n,)``, from a model that has not seen its label.
        correct: Whether these predictions are right ``(n,)``.
        waiting: Highest probability of each waiting image.

    Returns:
        The share of correct predictions in percent, and the number of randomly chosen images that would be as precise.

    Example:
        >>> confidence, correct = np.repeat([0.2, 0.9], 20), np.repeat([False, True], 20)
        >>> top1, images = weighted_accuracy(confidence, correct, np.array([0.9, 0.9, 0.9, 0.2]))
        >>> round(top1), round(images)
        (75, 32)
    """
    bins = min(MAX_BINS, max(1, len(confidence) // MIN_PER_BIN))
    edges = np.unique(np.quantile(confidence, np.linspace(0, 1, bins + 1)[1:-1]))
    edges = edges[edges > confidence.min()]
    bin_of, bin_of_waiting = (np.searchsorted(edges, values, side="right") for values in (confidence, waiting))
    count = np.bincount(bin_of, minlength=len(edges) + 1)
    rate = np.bincount(bin_of, weights=correct, minlength=len(count)) / np.maximum(count, 1)
    share = np.bincount(bin_of_waiting, minlength=len(count)) / max(len(waiting), 1)
    if not len(waiting):
        share = count / count.sum()
    images = 1 / float((share**2 / np.maximum(count, 1)).sum())
    return 100 * float(share @ rate), images


def live_map(probs: NDArray[np.float32], components: Features, num_clusters: int) -> ConfusionMap:
    """Clusters the classes and computes their positions, of many images from every n-th one."""
    every = max(1, len(probs) // MAP_IMAGES)
    sample, features = np.ascontiguousarray(probs[::every]), components[::every]
    return map_classes(soft_confusion(sample), num_clusters, sample, features)


def updated_snapshot(
    snapshot: ModelSnapshot, probs: NDArray[np.float32], components: Features, is_labeled: NDArray[np.bool_]
) -> ModelSnapshot:
    """Returns the snapshot after a refit of the live model, with new orders and a new map of the classes.

    Args:
        snapshot: The last snapshot.
        probs: Probabilities of the labeled and the unlabeled images ``(L + U, K)``; K may have grown.
        components: Principal components of the labeled and the unlabeled images ``(L + U, dim)``.
        is_labeled: Mask ``(L + U,)`` of the images that the model was fitted on.
    """
    labeled_probs, probs = np.split(probs, [len(snapshot.labeled_rows)])
    normalized = center_and_normalize(components, components.mean(axis=0))
    unlabeled = normalized[len(components) - len(probs) :]
    uncertainty = margin_uncertainty(probs)
    grouped = sum(len(members) > 1 for members in snapshot.confusion_map.clusters)
    num_clusters = max(1, min(grouped or probs.shape[1] // CLASSES_PER_CLUSTER, probs.shape[1]))
    confusion_map = live_map(probs, unlabeled, num_clusters)
    updated = replace(
        snapshot,
        probs=probs,
        labeled_probs=labeled_probs,
        num_candidates=None,
        uncertainty=uncertainty,
        confusion_map=confusion_map,
        version=snapshot.version + 1,
    )
    orders = {
        "informative": rank_by_coverage(updated.confidence, unlabeled, is_labeled[-len(probs) :]),
        "cluster": rank_by_cluster(uncertainty, updated.group),
    }
    return replace(updated, orders=orders)


class LiveModel:
    """Fits the classifier in a thread and publishes a new snapshot to the label queue after each fit.

    The first snapshot is the model of the run, or no model. The fit is an addition to the logits of the run,
    regularized toward it, so that few labels change it little.

    Args:
        labels: The label queue.
    """

    def __init__(self, labels: Labels) -> None:
        self._labels = labels
        self._history: list[Estimate] = []
        self._num_labels = 0
        self._seconds = 0.0
        self._fitting = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live model", daemon=True)
        self._begin(labels.snapshot)
        self._fitted_event = 0 if self._has_model else -1

    def _begin(self, start: ModelSnapshot) -> None:
        """Prepares the features and the start model; again after photos were added."""
        self._start = start
        self._has_model = start.probs.shape[1] > 0 and not start.is_plain
        features = np.concatenate([start.labeled_features, start.features])
        logits = np.log(np.maximum(start.all_probs, 1e-8)) if self._has_model else None
        self._classifier = LiveClassifier(features, logits)
        self._num_labeled = len(start.labeled_rows)
        paths = [str(start.catalog.paths[row]) for row in start.rows]
        index_of = {path: index for index, path in enumerate(paths)}
        labeled_paths = [str(start.catalog.paths[row]) for row in start.labeled_rows]
        self._copy_of = np.array([index_of.get(path, -1) for path in labeled_paths], np.int64)
        """The unlabeled image of which a labeled image is a copy, -1 for others."""
        self._fold = np.array([crc32(path.encode()) % FOLDS for path in [*labeled_paths, *paths]], np.int64)
        self._fit: LiveFit | None = None
        self._fold_fits: dict[int, LiveFit] = {}

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def close(self) -> None:
        """Stops the thread after its current fit."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def state(self) -> dict[str, Any]:
        """Returns the state for the page, see the reference of the API."""
        last = self._history[-1] if self._history else None
        return {
            "model": self._labels.snapshot.version,
            "fitting": self._fitting or self._labels.last_event > max(self._fitted_event, 0),
            "labels": self._num_labels,
            "seconds": round(self._seconds, 3),
            "accuracy": last and {"top1": last.top1, "low": last.low, "high": last.high, "images": last.images},
            "history": [
                {"labels": entry.labels, "top1": entry.top1, "low": entry.low, "high": entry.high}
                for entry in list(self._history)
            ],
        }

    def _run(self) -> None:
        changed_at, seen = time.monotonic(), self._fitted_event
        while not self._stop.wait(POLL_SECONDS):
            last = self._labels.last_event
            if last != seen:
                changed_at, seen = time.monotonic(), last
            many = last - self._fitted_event >= ANSWERS_PER_FIT
            if last > self._fitted_event and (many or time.monotonic() - changed_at > QUIET_SECONDS):
                self.fit_now()

    def fit_now(self) -> None:
        """Fits the classifier on the current labels and publishes the predictions."""
        self._fitting = True
        started, event = time.perf_counter(), self._labels.last_event
        try:
            if len(self._labels.snapshot.rows) != len(self._start.rows):
                self._begin(self._labels.snapshot)
            final, active = self._labels.final_classes(), self._labels.is_active()
            rows, classes = self._training_labels(final, active)
            if len(rows) or self._has_model:
                self._publish(rows, classes, final, active)
            self._num_labels = len(self._labels.labeled_classes()[0])
        finally:
            self._fitted_event, self._fitting = event, False
            self._seconds = time.perf_counter() - started
        self._estimate(rows, classes, len(final))

    def _publish(self, rows: Indices, classes: Indices, final: Indices, active: NDArray[np.bool_]) -> None:
        classifier = self._classifier
        classifier.merge(final)
        self._fit = classifier.fit(rows, classes, len(final), self._fit)
        allowed = active if self._has_model else active & (np.bincount(classes, minlength=len(final)) > 0)
        probs = classifier.predict(self._fit, allowed)
        is_labeled = np.zeros(len(probs), np.bool_)
        is_labeled[rows] = True
        self._labels.snapshot = updated_snapshot(self._labels.snapshot, probs, classifier.features.numpy(), is_labeled)

    def _training_labels(self, final: Indices, active: NDArray[np.bool_]) -> tuple[Indices, Indices]:
        """Returns rows of the classifier's features and class ids: labels of the data set and agreed answers."""
        start = self._start
        indices, answers = self._labels.labeled_classes()
        known = final[start.catalog.label[start.labeled_rows]]
        use = active[known] & ~np.isin(self._copy_of, indices)
        rows = np.concatenate([np.flatnonzero(use), indices + self._num_labeled])
        classes = np.concatenate([known[use], answers])
        kept = active[classes]
        return rows[kept], classes[kept]

    def _estimate(self, rows: Indices, classes: Indices, num_classes: int) -> None:
        """Adds an estimate of the accuracy, if there are enough labels that the model of the run has not seen."""
        unseen = np.ones(len(rows), np.bool_)
        if self._has_model:
            copies = self._copy_of[self._copy_of >= 0] + self._num_labeled
            unseen = (rows >= self._num_labeled) & ~np.isin(rows, copies)
        last = self._history[-1].labels if self._history else 0
        count = int(unseen.sum())
        enough = count >= MIN_LABELS_TO_ESTIMATE and (count >= ESTIMATE_GROWTH * last or count < last)
        if not enough or len(np.unique(classes)) < 2:
            return
        confidence, correct = np.zeros(count, np.float32), np.zeros(count, np.bool_)
        held_out_fold = self._fold[rows]
        for fold in range(FOLDS):
            if self._stop.is_set():
                return
            train, test = held_out_fold != fold, unseen & (held_out_fold == fold)
            if not test.any() or not train.any():
                continue
            # A fold keeps the same images, so its fit never starts from one that has seen their labels.
            fit = self._classifier.fit(
                rows[train], classes[train], num_classes, self._fold_fits.get(fold), with_unlabeled=False
            )
            self._fold_fits[fold] = fit
            allowed = None if self._has_model else np.bincount(classes[train], minlength=num_classes) > 0
            probs = self._classifier.predict(fit, allowed, rows[test])
            place = test[unseen]
            confidence[place], correct[place] = probs.max(axis=1), probs.argmax(axis=1) == classes[test]
        waiting = self._labels.snapshot.confidence[self._labels.is_waiting()]
        top1, images = weighted_accuracy(confidence, correct, waiting)
        interval = wilson_interval(top1, max(1, round(images)))
        self._history.append(Estimate(count, round(top1, 1), round(interval.low, 1), round(interval.high, 1), count))
