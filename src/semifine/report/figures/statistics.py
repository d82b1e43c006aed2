"""Statistics of the figures: intervals, kernel densities and entropies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from scipy.signal import fftconvolve

from semifine.runs.analysis import Interval

Floats = NDArray[np.float64]


def mean_interval(values: Sequence[float]) -> Interval:
    """Returns the mean of independent values with its 95 % interval by Student's t.

    Example:
        >>> interval = mean_interval([60.0, 62.0, 64.0])
        >>> f"{interval.mean:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
        '62.0 [57.0, 67.0]'
    """
    numbers = np.asarray(values, np.float64)
    mean = float(numbers.mean())
    if len(numbers) < 2:
        return Interval(mean, mean, mean)
    half = float(stats.t.ppf(0.975, len(numbers) - 1)) * float(numbers.std(ddof=1)) / math.sqrt(len(numbers))
    return Interval(mean, mean - half, mean + half)


ROUNDING = 1e-6
"""Differences of entropies below this value are rounding errors."""


def fraction_below_diagonal(before: NDArray[Any], after: NDArray[Any]) -> float:
    """Returns the fraction of images whose label has a lower entropy than the prediction."""
    return float((np.asarray(after, np.float64) < np.asarray(before, np.float64) - ROUNDING).mean())


def entropy_by_k(k: NDArray[Any], after: NDArray[Any]) -> dict[int, Interval]:
    """Returns the mean entropy of the labels for each number of clusters k, with its 95 % interval."""
    return {int(value): mean_interval(after[k == value]) for value in np.unique(k)}


CELLS = 200
REACH = 3.0
"""Margin of the grid around the points in standard deviations of the kernel."""
MIN_WIDTH = 0.02
"""Standard deviation that is added across points on a line, relative to their spread along the line."""


@dataclass(frozen=True, eq=False)
class Density:
    """A density on a regular grid: `(m, n)` ``values`` at the `(m,)` points ``y`` and the `(n,)` points ``x``."""

    x: Floats
    y: Floats
    values: Floats

    @property
    def mass(self) -> float:
        """Integral over the grid."""
        return float(self.values.sum() * (self.x[1] - self.x[0]) * (self.y[1] - self.y[0]))


def kernel_density(x: Floats, y: Floats, cells: int = CELLS) -> Density:
    """Estimates a density with Gaussian kernels and Scott's bandwidth, as ``scipy.stats.gaussian_kde`` does.

    Bins the points and convolves them with the kernel, so the run time does not depend on the number of points, unlike
    ``gaussian_kde``. The values agree within 2 % of the maximum.
    """
    bandwidth = _covariance(x, y) * len(x) ** (-1 / 3)
    reach = REACH * np.sqrt(np.diag(bandwidth))
    grid_x = np.linspace(x.min() - reach[0], x.max() + reach[0], cells)
    grid_y = np.linspace(y.min() - reach[1], y.max() + reach[1], cells)
    counts, _, _ = np.histogram2d(y, x, bins=[_cell_edges(grid_y), _cell_edges(grid_x)])
    steps = np.arange(1 - cells, cells)
    offsets = np.meshgrid(steps * (grid_x[1] - grid_x[0]), steps * (grid_y[1] - grid_y[0]))
    kernel = stats.multivariate_normal(cov=bandwidth).pdf(np.stack(offsets, axis=-1))
    values = fftconvolve(counts, kernel, mode="same") / len(x)
    return Density(grid_x, grid_y, np.maximum(values, 0.0))


def mass_levels(density: Density, shares: Sequence[float]) -> list[float]:
    """Returns the level of each share: the region with a higher density contains that share of the mass."""
    heights = np.sort(density.values.reshape(-1))[::-1]
    mass = np.cumsum(heights) / heights.sum()
    return [float(heights[min(int(np.searchsorted(mass, share)), len(heights) - 1)]) for share in shares]


def _covariance(x: Floats, y: Floats) -> Floats:
    """Returns the `(2, 2)` covariance. Points on a line get a small width, because they have no density."""
    covariance: Floats = np.cov(x, y) if len(x) > 1 else np.zeros((2, 2))
    widest = float(np.diag(covariance).max()) or 1.0
    is_flat = np.linalg.det(covariance) <= 1e-6 * widest**2
    width: Floats = float(is_flat) * MIN_WIDTH**2 * widest * np.eye(2)
    return covariance + width


def _cell_edges(grid: Floats) -> Floats:
    """Returns the edges of the cells around the grid points."""
    half = (grid[1] - grid[0]) / 2
    return np.append(grid - half, grid[-1] + half)
