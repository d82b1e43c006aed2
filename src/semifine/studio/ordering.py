"""In which order images come up for labelling."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.studio.resemblance import Features, Places, spread_out

# Among the most uncertain images this many are put in an order that spreads them; beyond, uncertainty alone decides.
POOL = 2000
SPREAD = 500


def uncertainty(probs: NDArray[Any]) -> NDArray[np.float64]:
    """(N,) one minus the lead of the best class over the second: 1 where two classes are level, 0 for a sure one."""
    if probs.shape[1] < 2:
        return np.zeros(len(probs))
    best_two = np.partition(probs.astype(np.float64), -2, axis=1)[:, -2:]
    return np.asarray(1 - (best_two[:, 1] - best_two[:, 0]))


def most_worth(doubt: NDArray[np.float64], features: Features, known: Features) -> Places:
    """All places, those whose label teaches most first: uncertain, and unlike what is known and what comes before."""
    by_doubt = np.argsort(-doubt, kind="stable")
    pool = by_doubt[:POOL]
    first = pool[spread_out(doubt[pool], features[pool], known, SPREAD)]
    rest = by_doubt[~np.isin(by_doubt, first)]
    return np.concatenate([first, rest])


def cluster_by_cluster(doubt: NDArray[np.float64], cluster: NDArray[np.int64]) -> Places:
    """All places, those of one cluster together; the cluster with the most doubt and its most doubtful first."""
    total = np.bincount(cluster, weights=doubt)
    return np.lexsort((-doubt, cluster, -total[cluster]))
