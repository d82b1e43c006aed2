"""Which images look alike, by the features of a network."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Features = NDArray[np.float32]
Places = NDArray[np.int64]


def comparable(features: Features, centre: Features) -> Features:
    """(N, D) of unit length around a common centre, so that a dot product is a cosine.

    Pooled features are positive: without a centre all images look much alike.
    """
    moved = features - centre
    length = np.linalg.norm(moved, axis=1, keepdims=True)
    result: Features = (moved / np.maximum(length, 1e-12)).astype(np.float32)
    return result


def nearest(features: Features, to: Features, count: int) -> Places:
    """Places of the ``count`` rows of ``features`` that are most similar to one image, (D,), the nearest first."""
    cosine = features @ to
    return np.argsort(-cosine, kind="stable")[:count]


def spread_out(uncertainty: NDArray[Any], features: Features, known: Features, count: int) -> Places:
    """Places of ``count`` images, each the most uncertain and the least like what is known when it is chosen.

    Greedy k-centre: an image counts its uncertainty times its distance to the nearest image that is labelled or
    chosen already. ``features`` (N, D) and ``known`` (M, D) are comparable.
    """
    nearest_known = _highest_cosine(features, known)
    chosen: list[int] = []
    weight = uncertainty.astype(np.float64)
    for _ in range(min(count, len(features))):
        worth = weight * (1 - nearest_known)
        worth[chosen] = -np.inf
        best = int(worth.argmax())
        chosen.append(best)
        nearest_known = np.maximum(nearest_known, features @ features[best])
    return np.array(chosen, np.int64)


def _highest_cosine(features: Features, known: Features, block: int = 2048) -> NDArray[np.float32]:
    highest = np.full(len(features), -1, np.float32)
    for start in range(0, len(known), block):
        highest = np.maximum(highest, (features @ known[start : start + block].T).max(axis=1))
    return highest
