"""The model's predictions for the unlabeled images, and the orders in which the studio shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.data.catalog import Catalog, Split
from semifine.data.dataset import Dataset
from semifine.data.store import ImageStore
from semifine.errors import UserError
from semifine.inference.calibration import softmax
from semifine.inference.model import TrainedModel
from semifine.report.class_order import choose_k, has_transitions
from semifine.runs.analysis import ConfusedPair, class_clusters, drop_unlinked, most_confused_pairs
from semifine.runs.run import Run

Features = NDArray[np.float32]
Indices = NDArray[np.int64]
Device = Literal["auto", "cpu", "cuda"]

# Ranking the whole queue for diversity would be slow: only the start of the queue is diverse.
POOL_SIZE = 2000
NUM_DIVERSE = 500


def margin_uncertainty(probs: NDArray[Any]) -> NDArray[np.float64]:
    """Returns one minus the margin between the two highest probabilities.

    Args:
        probs: Class probabilities ``(N, K)``.

    Returns:
        ``(N,)``: 1 if two classes are equally probable, 0 if the model is certain.

    Example:
        >>> margin_uncertainty(np.array([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])).tolist()
        [1.0, 0.0]
    """
    if probs.shape[1] < 2:
        return np.zeros(len(probs))
    best_two = np.partition(probs.astype(np.float64), -2, axis=1)[:, -2:]
    return np.asarray(1 - (best_two[:, 1] - best_two[:, 0]))


BLOCK = 512


def center_and_normalize(features: Features, center: Features) -> Features:
    """Subtracts a center ``(D,)`` from features ``(N, D)`` and scales them to unit length.

    Dot products are then cosine similarities. Pooled features are positive, so without centering all images would look
    similar.
    """
    result: Features = np.empty(features.shape, np.float32)
    for start in range(0, len(features), BLOCK):  # blocks fit the cache of the processor
        centered = features[start : start + BLOCK] - center
        length = np.linalg.norm(centered, axis=1, keepdims=True)
        result[start : start + BLOCK] = centered / np.maximum(length, 1e-12)
    return result


def nearest_neighbors(features: Features, query: Features, count: int) -> Indices:
    """Returns the indices of the ``count`` rows of ``features`` ``(N, D)`` that are most similar to ``query`` ``(D,)``.

    Example:
        >>> nearest_neighbors(np.eye(3, dtype=np.float32), np.array([0.6, 0.8, 0], np.float32), count=2).tolist()
        [1, 0]
    """
    cosine = features @ query
    return np.argsort(-cosine, kind="stable")[:count]


def greedy_k_center(uncertainty: NDArray[Any], features: Features, labeled_features: Features, count: int) -> Indices:
    """Selects uncertain and diverse images by weighted greedy k-center.

    The acquisition score of an image is its uncertainty times its cosine distance to the nearest image that is
    labeled or already selected. Each round selects the image with the highest score.

    Args:
        uncertainty: ``(N,)``.
        features: Normalized features ``(N, D)``.
        labeled_features: Normalized features of the labeled images ``(M, D)``.
        count: Number of images to select.

    Returns:
        Indices of the selected images in the order of selection.

    Example:
        >>> features = np.eye(2, dtype=np.float32)
        >>> greedy_k_center(np.ones(2), features, features[:1], count=1).tolist()
        [1]
    """
    max_cosine = _max_cosine(features, labeled_features)
    selected: list[int] = []
    weight = uncertainty.astype(np.float64)
    for _ in range(min(count, len(features))):
        score = weight * (1 - max_cosine)
        score[selected] = -np.inf
        best = int(score.argmax())
        selected.append(best)
        max_cosine = np.maximum(max_cosine, features @ features[best])
    return np.array(selected, np.int64)


def _max_cosine(features: Features, labeled_features: Features, block: int = 2048) -> NDArray[np.float32]:
    highest = np.full(len(features), -1, np.float32)
    for start in range(0, len(labeled_features), block):
        highest = np.maximum(highest, (features @ labeled_features[start : start + block].T).max(axis=1))
    return highest


def rank_by_acquisition(uncertainty: NDArray[np.float64], features: Features, labeled_features: Features) -> Indices:
    """Ranks all images: first a diverse selection of the most uncertain ones, then the rest by uncertainty."""
    by_uncertainty = np.argsort(-uncertainty, kind="stable")
    pool = by_uncertainty[:POOL_SIZE]
    first = pool[greedy_k_center(uncertainty[pool], features[pool], labeled_features, NUM_DIVERSE)]
    rest = by_uncertainty[~np.isin(by_uncertainty, first)]
    return np.concatenate([first, rest])


def rank_by_cluster(uncertainty: NDArray[np.float64], cluster: NDArray[np.int64]) -> Indices:
    """Ranks all images: clusters by total uncertainty, and the images of a cluster by uncertainty.

    Example:
        >>> rank_by_cluster(np.array([0.1, 0.9, 0.2]), np.array([0, 1, 0])).tolist()
        [1, 2, 0]
    """
    total = np.bincount(cluster, weights=uncertainty)
    return np.lexsort((-uncertainty, cluster, -total[cluster]))


MAX_PAIRS = 12
# Scales probabilities to integer counts, which the clustering expects.
COUNTS_PER_IMAGE = 1000


@dataclass(frozen=True, eq=False)
class ConfusionMap:
    """Clusters of classes, the most confused pairs, and a position in the plane for each class."""

    clusters: list[list[int]]
    """Class ids of each cluster. Classes that are not confused with others are clusters of one, at the end."""
    cluster_of: NDArray[np.int64]
    """The cluster of each class ``(K,)``."""
    pairs: list[ConfusedPair]
    position: NDArray[np.float64]
    """Positions ``(K, 2)`` in 0..1: classes with similar images are close."""


def map_classes(
    counts: NDArray[np.int64], num_clusters: int, probs: NDArray[np.float32], features: Features
) -> ConfusionMap:
    """Clusters classes by confusion counts ``(K, K)``, and computes their positions."""
    num_classes = probs.shape[1]
    if num_classes < 2:
        return ConfusionMap(
            [[c] for c in range(num_classes)], np.arange(num_classes), [], np.full((num_classes, 2), 0.5)
        )
    groups, singles = drop_unlinked(class_clusters(counts, num_clusters), counts)
    clusters = [*groups, *([class_id] for class_id in singles)]
    cluster_of = np.zeros(num_classes, np.int64)
    for number, members in enumerate(clusters):
        cluster_of[members] = number
    return ConfusionMap(clusters, cluster_of, most_confused_pairs(counts, MAX_PAIRS), class_positions(probs, features))


def build_confusion_map(run: Run, probs: NDArray[np.float32], features: Features) -> ConfusionMap:
    """Clusters classes by SoC's class transitions, or by the predicted probabilities if the method has none."""
    counts = run.transitions if has_transitions(run) and run.transitions is not None else soft_confusion(probs)
    return map_classes(counts, choose_k(run)[0], probs, features)


def soft_confusion(probs: NDArray[np.float32]) -> NDArray[np.int64]:
    """Returns a confusion matrix ``(K, K)`` of probabilities ``(N, K)``.

    Row i is the sum of the probabilities of all images that are predicted as class i, times ``COUNTS_PER_IMAGE``.

    Example:
        >>> soft_confusion(np.array([[0.75, 0.25], [1.0, 0.0]], np.float32)).tolist()
        [[1750, 250], [0, 0]]
    """
    num_classes = probs.shape[1]
    counts = torch.zeros(num_classes, num_classes, dtype=torch.float64)
    counts.index_add_(0, torch.from_numpy(probs.argmax(axis=1)), torch.from_numpy(np.asarray(probs, np.float64)))
    return np.asarray(np.rint(counts.numpy() * COUNTS_PER_IMAGE), np.int64)


def class_positions(probs: NDArray[Any], features: Features) -> NDArray[np.float64]:
    """Returns the first two principal components of the class centroids ``(K, 2)``, scaled to 0..1."""
    weight = probs / np.maximum(probs.sum(axis=0), 1e-12)
    centroids = (weight.T @ features).astype(np.float64)
    centered = centroids - centroids.mean(axis=0)
    # Eigenvectors of the small matrix of inner products take a fraction of the time of a singular value decomposition.
    variance, components = np.linalg.eigh(centered @ centered.T)
    plane = np.zeros((len(centered), 2))
    rank = min(2, *centered.shape)
    plane[:, :rank] = (components * np.sqrt(np.maximum(variance, 0)))[:, ::-1][:, :rank]
    low, high = plane.min(axis=0), plane.max(axis=0)
    return np.asarray((plane - low) / np.maximum(high - low, 1e-12))


MAD_TO_DEVIATION = 1.4826
"""Standard deviation of a normal distribution whose median absolute deviation is 1."""
FAR_DEVIATIONS = 6.0
"""Standard deviations from the center of a class at which an image is an outlier of degree 1."""


def outlier_degree(features: Features, group: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns how far each image is from the center of its group: 0 for a typical image, 1 for a clear outlier.

    The distance is the Euclidean distance to the direction of the mean of the group. Its excess over the median of the
    group is measured in robust standard deviations, so that a group without outliers has none.

    Args:
        features: Normalized features ``(N, D)``.
        group: Group of each image ``(N,)``.

    Example:
        >>> angles = np.array([0.0, 0.01, -0.01, 0.02, 2.0])
        >>> features = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
        >>> outlier_degree(features, np.zeros(5, np.int64)).round().tolist()
        [0.0, 0.0, 0.0, 0.0, 1.0]
    """
    degree = np.zeros(len(features), np.float32)
    order = np.argsort(group, kind="stable")
    for members in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        if len(members) < 3:
            continue
        center = features[members].mean(axis=0)
        cosine = features[members] @ (center / max(float(np.linalg.norm(center)), 1e-12))
        distance = np.sqrt(np.maximum(2 - 2 * cosine, 0))
        excess = distance - np.median(distance)
        deviation = max(MAD_TO_DEVIATION * float(np.median(np.abs(excess))), 1e-3)
        degree[members] = np.clip(excess / deviation / FAR_DEVIATIONS, 0, 1)
    return degree


MAX_CANDIDATES = 9  # one per digit key
MIN_CANDIDATES = 3
CANDIDATE_PROBABILITY = 0.9
LABELED = (Split.LABELED, Split.VAL)


@dataclass(frozen=True)
class SuspectLabel:
    """A labeled image whose label looks wrong to the cross-validated probe of the run."""

    row: int
    """Catalog row."""
    path: str
    label: int
    prediction: int
    label_probability: float
    prediction_probability: float


def find_suspects(run: Run, catalog: Catalog) -> tuple[SuspectLabel, ...]:
    """Returns the suspect labels of a run that are in its data set, the most suspicious first."""
    check = run.label_check
    if check is None:
        return ()
    row_of = {str(catalog.paths[row]): int(row) for split in LABELED for row in catalog.rows(split)}
    return tuple(
        SuspectLabel(
            row_of[path],
            path,
            int(check.label[index]),
            int(check.prediction[index]),
            float(check.label_probability[index]),
            float(check.prediction_probability[index]),
        )
        for index, path in enumerate(check.paths[: check.num_suspects])
        if path in row_of
    )


@dataclass(frozen=True, eq=False)
class NewImages:
    """What a model says about M images that are added to a snapshot."""

    features: Features
    """Normalized features ``(M, D)``."""
    probs: NDArray[np.float32]
    """Probabilities ``(M, K)``."""
    num_candidates: NDArray[np.int64] | None = None
    """Size of SoC's candidate set for each image ``(M,)``."""


@dataclass(frozen=True, eq=False)
class ModelSnapshot:
    """The predictions of one model for the U unlabeled images.

    An index, 0 to U - 1, refers to the unlabeled images; a row refers to all images of the catalog.
    """

    run: Path
    result: dict[str, Any]
    catalog: Catalog
    store: ImageStore
    rows: Indices
    """Catalog rows of the unlabeled images ``(U,)``. Paths are unique."""
    probs: NDArray[np.float32]
    """Probabilities ``(U, K)``, calibrated if the run has validation images."""
    num_candidates: NDArray[np.int64] | None
    """Size of SoC's candidate set for each image ``(U,)``; None for the fewest classes with 90 % of the probability."""
    features: Features
    """Normalized features ``(U, D)``."""
    labeled_rows: Indices
    """Catalog rows of the labeled images ``(L,)`` of the data set."""
    labeled_features: Features
    """Normalized features ``(L, D)``."""
    uncertainty: NDArray[np.float64]
    """Margin uncertainty ``(U,)``."""
    confusion_map: ConfusionMap
    orders: dict[str, Indices]
    """All indices in each order that the queue offers."""
    suspects: tuple[SuspectLabel, ...] = ()
    """Labeled images to check."""
    version: int = 0
    """Rises with every refit of the live model."""
    labeled_probs: NDArray[np.float32] | None = None
    """Probabilities of the labeled images ``(L, K)``."""
    photo_groups: Indices | None = None
    """Group of similar images ``(U,)`` for photos without a run; None for a run."""
    embed: Callable[[Catalog, ImageStore], NewImages] | None = None
    """Runs the network on images that are added while the studio runs."""

    @property
    def is_plain(self) -> bool:
        """Whether the photos have no run, so that there is no model before people label."""
        return self.photo_groups is not None

    @property
    def all_probs(self) -> NDArray[np.float32]:
        """Probabilities of the labeled and then the unlabeled images ``(L + U, K)``."""
        assert self.labeled_probs is not None
        return np.concatenate([self.labeled_probs, self.probs])

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.catalog.class_names

    @cached_property
    def prediction(self) -> NDArray[np.int64]:
        """Predicted class ``(U,)``."""
        if not self.probs.shape[1]:
            return np.zeros(len(self.probs), np.int64)
        return np.asarray(self.probs.argmax(axis=1), np.int64)

    @cached_property
    def confidence(self) -> NDArray[np.float32]:
        """Highest probability ``(U,)``; 0 without classes."""
        return np.asarray(self.probs.max(axis=1, initial=0.0), np.float32)

    @cached_property
    def group(self) -> NDArray[np.int64]:
        """Cluster of the predicted class ``(U,)``; without two classes, the group of similar images."""
        if self.photo_groups is not None and self.probs.shape[1] < 2:
            return self.photo_groups
        return self.confusion_map.cluster_of[self.prediction]

    @cached_property
    def outlier(self) -> NDArray[np.float32]:
        """How untypical each image is for its predicted class ``(U,)``, from 0 to 1."""
        return outlier_degree(self.features, self.prediction if self.probs.shape[1] > 1 else self.group)

    def candidates(self, index: int) -> list[int]:
        """Returns the class ids to choose from, most probable first.

        The number of candidates is the size of SoC's cluster, limited to 3 to 9. The candidates are the most probable
        classes rather than the members of the cluster, because the cluster misses the true class more often.
        """
        best = np.argsort(-self.probs[index], kind="stable")[:MAX_CANDIDATES]
        if self.num_candidates is None:
            needed = int((np.cumsum(self.probs[index][best]) < CANDIDATE_PROBABILITY).sum()) + 1
        else:
            needed = int(self.num_candidates[index])
        return [int(c) for c in best[: int(np.clip(needed, MIN_CANDIDATES, MAX_CANDIDATES))]]


def take_snapshot(path: Path, device: Device) -> ModelSnapshot:
    """Runs the network of a run on all labeled and unlabeled images of its data set."""
    model = TrainedModel(path, device=device)
    run = model.run
    catalog = run.dataset.catalog
    rows = drop_repeated_paths(catalog, catalog.rows(Split.UNLABELED))
    if not len(rows):
        raise UserError(f"{catalog.name} has no unlabeled images: there is nothing to label in {path}.")
    features, logits = _features_and_logits(model, rows)
    probs = model.calibration.probabilities(logits).astype(np.float32)
    labeled_rows = catalog.rows(Split.LABELED)
    labeled_features, labeled_logits = _features_and_logits(model, labeled_rows)
    center = features.mean(axis=0)
    features, labeled_features = (center_and_normalize(part, center) for part in (features, labeled_features))
    uncertainty = margin_uncertainty(probs)
    confusion_map = build_confusion_map(run, probs, features)
    return ModelSnapshot(
        run=path,
        result=run.result,
        catalog=catalog,
        store=run.dataset.store,
        rows=rows,
        probs=probs,
        # SoC selects clusters by uncalibrated confidence, as in training.
        num_candidates=model.candidates(softmax(logits)).sum(axis=1),
        features=features,
        labeled_rows=labeled_rows,
        labeled_features=labeled_features,
        uncertainty=uncertainty,
        confusion_map=confusion_map,
        orders={
            "informative": rank_by_acquisition(uncertainty, features, labeled_features),
            "cluster": rank_by_cluster(uncertainty, confusion_map.cluster_of[probs.argmax(axis=1)]),
        },
        suspects=find_suspects(run, catalog),
        labeled_probs=model.calibration.probabilities(labeled_logits).astype(np.float32),
        embed=partial(_predict_new, path, device, center),
    )


def _predict_new(path: Path, device: Device, center: Features, catalog: Catalog, store: ImageStore) -> NewImages:
    """Runs the network of a run on other images. ``center`` is the center of the features of the snapshot."""
    model = TrainedModel(Run(path, Dataset.from_catalog(catalog, store)), device=device)
    features, logits = _features_and_logits(model, np.arange(len(catalog)))
    return NewImages(
        center_and_normalize(features, center),
        model.calibration.probabilities(logits).astype(np.float32),
        model.candidates(softmax(logits)).sum(axis=1),
    )


def drop_repeated_paths(catalog: Catalog, rows: Indices) -> Indices:
    """Returns the rows without repeated paths: a table may list an image twice, but it needs only one label."""
    _, first = np.unique([str(catalog.paths[row]) for row in rows], return_index=True)
    return rows[np.sort(first)]


def _features_and_logits(model: TrainedModel, rows: Indices) -> tuple[Features, NDArray[np.float32]]:
    outputs = list(model.outputs(rows))
    features, logits = (
        torch.cat(parts).numpy() for parts in zip(*((o.features, o.logits) for o in outputs), strict=True)
    )
    return features, logits
