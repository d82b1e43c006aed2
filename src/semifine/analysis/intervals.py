"""Means with 95 % intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# Student's t at 97.5 %, for 1 to 30 degrees of freedom; beyond, the normal value is near enough.
_T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
Z_975 = 1.96


@dataclass(frozen=True)
class Interval:
    """A mean and the ends of its 95 % interval; equal to the mean where one value cannot tell."""

    mean: float
    low: float
    high: float


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of independent values, by Student's t."""
    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Interval(mean, mean, mean)
    freedom = len(numbers) - 1
    t = _T_975[freedom - 1] if freedom <= len(_T_975) else Z_975
    half = t * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return Interval(mean, mean - half, mean + half)


def share_interval(percent: float, images: int) -> Interval:
    """A percentage that was measured on so many images, by Wilson's score."""
    share, z2 = percent / 100, Z_975**2
    middle = (share + z2 / (2 * images)) / (1 + z2 / images)
    half = Z_975 / (1 + z2 / images) * math.sqrt(share * (1 - share) / images + z2 / (4 * images**2))
    return Interval(percent, 100 * (middle - half), 100 * (middle + half))
