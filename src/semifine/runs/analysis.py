"""Statistics of finished runs: intervals, rankings, entropies, agreement, densities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """1 for the same partition, about 0 for chance, below 0 for less than chance (Hubert and Arabie, 1985).

    ARI = (I - E) / (M - E), where I counts the pairs that lie together in both partitions, a and b those of
    each one, T all pairs, E = a b / T and M = (a + b) / 2. Labels are names only: any hashable value will do.
    """
    if len(first) != len(second):
        raise ValueError(f"Both partitions must label the same things, got {len(first)} and {len(second)} labels.")
    together = _pairs_together(zip(first, second, strict=True))
    in_first, in_second = _pairs_together(first), _pairs_together(second)
    total = len(first) * (len(first) - 1) // 2
    # Multiplied by 2 T, so that everything but the last division is exact.
    above_chance = 2 * (total * together - in_first * in_second)
    largest = total * (in_first + in_second) - 2 * in_first * in_second
    # Zero only where both are one block or both are all singletons: then they are the same partition.
    return above_chance / largest if largest else 1.0


def _pairs_together(labels: Iterable[Hashable]) -> int:
    """How many pairs of things carry the same label."""
    return sum(size * (size - 1) // 2 for size in Counter(labels).values())


ROUNDING = 1e-6


def share_below_diagonal(before: NDArray[Any], after: NDArray[Any]) -> float:
    """The share of images whose label is surer than the prediction that it was made of, beyond rounding."""
    return float((np.asarray(after, np.float64) < np.asarray(before, np.float64) - ROUNDING).mean())


def entropy_by_k(k: NDArray[Any], after: NDArray[Any]) -> dict[int, Interval]:
    """Mean entropy of the labels with each number of clusters k that occurs, with 95 % intervals."""
    return {int(value): mean_interval(after[k == value]) for value in np.unique(k)}


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


Floats = NDArray[np.float64]

CELLS = 200
REACH = 3.0
"""Standard deviations of the kernel that the grid goes beyond the points, so that nearly all mass lies on it."""
NARROWEST = 0.02
"""The spread that points on a line are given across it, as a share of that along it."""


@dataclass(frozen=True, eq=False)
class Density:
    """Values at the crossings of ``x`` (n,) and ``y`` (m,): shape (m, n)."""

    x: Floats
    y: Floats
    values: Floats

    @property
    def cell(self) -> float:
        """The area that one value stands for."""
        return float((self.x[1] - self.x[0]) * (self.y[1] - self.y[0]))

    @property
    def mass(self) -> float:
        return float(self.values.sum()) * self.cell


def kernel_density(x: Floats, y: Floats, cells: int = CELLS) -> Density:
    """Gaussian kernels with Scott's bandwidth, H = cov(x, y) n^(-1/3), as seaborn and scipy have it.

    Points are dealt out to the crossings of a grid around them, and the grid is convolved once, so that
    tens of thousands cost no more than hundreds.
    """
    bandwidth = _covariance(x, y) * len(x) ** (-1 / 3)
    axes = [_axis(points, spread, cells) for points, spread in zip((x, y), np.sqrt(np.diag(bandwidth)), strict=True)]
    counts = _dealt_out(x, y, *axes)
    values = _convolved(counts, _kernel(axes[0], axes[1], bandwidth)) / len(x)
    return Density(axes[0], axes[1], np.maximum(values, 0.0))


def mass_levels(density: Density, shares: Sequence[float]) -> list[float]:
    """For each share, the height above which lies that share of the mass."""
    heights = np.sort(density.values.reshape(-1))[::-1]
    held = np.cumsum(heights) / heights.sum()
    return [float(heights[min(int(np.searchsorted(held, share)), len(heights) - 1)]) for share in shares]


def _covariance(x: Floats, y: Floats) -> Floats:
    """(2, 2); points that all lie on a line are given some width, because they have no density in the plane."""
    covariance: Floats = np.cov(x, y) if len(x) > 1 else np.zeros((2, 2))
    widest = float(np.diag(covariance).max()) or 1.0
    is_flat = np.linalg.det(covariance) <= 1e-6 * widest**2
    width: Floats = float(is_flat) * NARROWEST**2 * widest * np.eye(2)
    return covariance + width


def _axis(points: Floats, spread: float, cells: int) -> Floats:
    return np.linspace(points.min() - REACH * spread, points.max() + REACH * spread, cells)


def _dealt_out(x: Floats, y: Floats, grid_x: Floats, grid_y: Floats) -> Floats:
    """(m, n) weights: each point is shared by the four crossings around it, the nearer the more."""
    counts = np.zeros((len(grid_y), len(grid_x)))
    place_x = (x - grid_x[0]) / (grid_x[1] - grid_x[0])
    place_y = (y - grid_y[0]) / (grid_y[1] - grid_y[0])
    left = np.clip(np.floor(place_x).astype(np.int64), 0, len(grid_x) - 2)
    low = np.clip(np.floor(place_y).astype(np.int64), 0, len(grid_y) - 2)
    right_share, high_share = place_x - left, place_y - low
    for across, share_x in ((0, 1 - right_share), (1, right_share)):
        for up, share_y in ((0, 1 - high_share), (1, high_share)):
            np.add.at(counts, (low + up, left + across), share_x * share_y)
    return counts


def _kernel(grid_x: Floats, grid_y: Floats, bandwidth: Floats) -> Floats:
    """(2m - 1, 2n - 1) the normal density around the middle."""
    steps_x = (np.arange(2 * len(grid_x) - 1) - len(grid_x) + 1) * (grid_x[1] - grid_x[0])
    steps_y = (np.arange(2 * len(grid_y) - 1) - len(grid_y) + 1) * (grid_y[1] - grid_y[0])
    inverse = np.linalg.inv(bandwidth)
    across, up = np.meshgrid(steps_x, steps_y)
    square = inverse[0, 0] * across**2 + 2 * inverse[0, 1] * across * up + inverse[1, 1] * up**2
    kernel: Floats = np.exp(-square / 2) / (2 * np.pi * np.sqrt(np.linalg.det(bandwidth)))
    return kernel


def _convolved(counts: Floats, kernel: Floats) -> Floats:
    shape = tuple(np.add(counts.shape, kernel.shape) - 1)
    product = np.fft.rfft2(counts, shape) * np.fft.rfft2(kernel, shape)
    full = np.fft.irfft2(product, shape)
    top, left = counts.shape[0] - 1, counts.shape[1] - 1
    part: Floats = full[top : top + counts.shape[0], left : left + counts.shape[1]]
    return part
