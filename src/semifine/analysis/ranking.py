"""Which unlabelled images are worth a look."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Places = NDArray[np.int64]

REPEATED = 0.7
"""What another image of a cluster or class is worth, for each one of it that is on the list already."""


def highest(values: NDArray[Any], limit: int, among: NDArray[np.bool_] | None = None) -> Places:
    """Places of the largest values, the largest first, ties in order; only where ``among`` allows it."""
    places = np.arange(len(values)) if among is None else np.flatnonzero(among)
    order = np.argsort(-values[places].astype(np.float64), kind="stable")
    chosen: Places = places[order[:limit]]
    return chosen


def label_next(entropy: NDArray[Any], prediction: Places, cluster: Places, limit: int) -> Places:
    """Places of the images that a person should label next, the most useful first.

    An image counts by the entropy of its label (M,), which falls with each image of the same predicted class and
    of the same cluster (K,) of classes on the list already: twenty pictures of one riddle teach less than twenty
    riddles.
    """
    value = entropy.astype(np.float64).copy()
    group = cluster[prediction]
    chosen: list[int] = []
    for _ in range(min(limit, len(value))):
        best = int(value.argmax())
        if not value[best] > 0:
            break
        chosen.append(best)
        value[prediction == prediction[best]] *= REPEATED
        value[group == group[best]] *= REPEATED
        value[best] = 0.0
    return np.array(chosen, np.int64)
