"""What a model has learnt about its classes: clusters of those that it confuses, and where they lie."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.analysis.clusters import ConfusedPair, class_clusters, most_confused_pairs, separate_loose
from semifine.analysis.runs import RunFacts
from semifine.report.arrangement import choose_k, has_transitions
from semifine.studio.resemblance import Features

MOST_PAIRS = 12
# Probabilities become whole counts at this scale, so that the same clustering serves them.
COUNTS_PER_IMAGE = 1000


@dataclass(frozen=True, eq=False)
class ConfusionMap:
    """Clusters of classes, the pairs that are confused most, and a place on a plane for each class."""

    clusters: list[list[int]]
    """Lists of class ids; classes that are confused with none stand alone at the end."""
    cluster_of: NDArray[np.int64]
    """(K,) the cluster of each class."""
    pairs: list[ConfusedPair]
    position: NDArray[np.float64]
    """(K, 2) in 0..1: classes whose images look alike lie close."""


def confusion_map(facts: RunFacts, probs: NDArray[np.float32], features: Features) -> ConfusionMap:
    """By the transitions that SoC counted; for other methods by the probability that predictions leave to others."""
    counts = facts.transitions if has_transitions(facts) and facts.transitions is not None else soft_confusion(probs)
    blocks, alone = separate_loose(class_clusters(counts, choose_k(facts)[0]), counts)
    clusters = [*blocks, *([label] for label in alone)]
    cluster_of = np.zeros(facts.num_classes, np.int64)
    for number, members in enumerate(clusters):
        cluster_of[members] = number
    return ConfusionMap(clusters, cluster_of, most_confused_pairs(counts, MOST_PAIRS), positions(probs, features))


def soft_confusion(probs: NDArray[np.float32]) -> NDArray[np.int64]:
    """(K, K) how much probability the images predicted as the row's class leave to the column's."""
    num_classes = probs.shape[1]
    counts = np.zeros((num_classes, num_classes))
    np.add.at(counts, probs.argmax(axis=1), probs.astype(np.float64))
    return np.asarray(np.rint(counts * COUNTS_PER_IMAGE), np.int64)


def positions(probs: NDArray[Any], features: Features) -> NDArray[np.float64]:
    """The two main directions in which the mean features of the classes differ."""
    weight = probs / np.maximum(probs.sum(axis=0), 1e-12)
    centroids = weight.T.astype(np.float64) @ features
    centred = centroids - centroids.mean(axis=0)
    left, size, _ = np.linalg.svd(centred, full_matrices=False)
    plane = np.zeros((len(centred), 2))
    found = min(2, left.shape[1])
    plane[:, :found] = left[:, :found] * size[:found]
    low, high = plane.min(axis=0), plane.max(axis=0)
    return np.asarray((plane - low) / np.maximum(high - low, 1e-12))
