"""Kernel density of points in the plane, on a grid, and the levels that hold a share of its mass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
