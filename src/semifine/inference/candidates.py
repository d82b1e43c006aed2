"""Which classes an image may be of, given a model's probabilities. Needs numpy alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Probabilities = NDArray[np.floating[Any]]
Chosen = NDArray[np.bool_]

PLAUSIBLE_MASS = 0.9
"""Without clusters: how much probability the candidates hold together."""


@dataclass(frozen=True, eq=False)
class ClassClusters:
    """The clusterings of the classes that SoC learnt, from the coarsest to the finest."""

    assignment: NDArray[np.integer[Any]]
    """(R, K) the cluster of each class in each clustering."""
    confidence: NDArray[np.float64]
    """(R,) the confidence from which on each clustering applies, rising."""

    def candidates(self, probs: Probabilities) -> Chosen:
        """(N, K) the cluster of each prediction: the surer the model, the finer the clustering, the fewer classes."""
        confidence = probs.max(axis=1).astype(np.float64)
        clustering = np.searchsorted(self.confidence, confidence, side="right") - 1
        clusters = self.assignment[np.maximum(clustering, 0)]
        own = np.take_along_axis(clusters, probs.argmax(axis=1)[:, None], axis=1)
        chosen: Chosen = clusters == own
        return chosen


def most_probable(probs: Probabilities, mass: float = PLAUSIBLE_MASS) -> Chosen:
    """(N, K) the fewest classes that hold at least ``mass`` of the probability together."""
    order = np.argsort(-probs, axis=1, kind="stable")
    ordered = np.take_along_axis(probs, order, axis=1).astype(np.float64)
    before = np.cumsum(ordered, axis=1) - ordered
    chosen: Chosen = np.zeros(probs.shape, np.bool_)
    np.put_along_axis(chosen, order, before < mass, axis=1)
    return chosen


def candidates(probs: Probabilities, clusters: ClassClusters | None) -> Chosen:
    """(N, K) the classes worth considering: the cluster of the prediction, or the most probable without clusters."""
    return most_probable(probs) if clusters is None else clusters.candidates(probs)
