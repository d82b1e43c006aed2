"""What selection does to the entropy of labels, over the unlabelled images of a run."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.analysis.intervals import Interval, mean_interval

ROUNDING = 1e-6


def share_below_diagonal(before: NDArray[Any], after: NDArray[Any]) -> float:
    """The share of images whose label is surer than the prediction that it was made of, beyond rounding."""
    return float((np.asarray(after, np.float64) < np.asarray(before, np.float64) - ROUNDING).mean())


def entropy_by_k(k: NDArray[Any], after: NDArray[Any]) -> dict[int, Interval]:
    """Mean entropy of the labels with each number of clusters k that occurs, with 95 % intervals."""
    return {int(value): mean_interval(after[k == value]) for value in np.unique(k)}
