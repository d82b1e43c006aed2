"""Densities and intervals compared with SciPy and with explicit formulas."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from semifine.report.figures.statistics import (
    entropy_by_k,
    fraction_below_diagonal,
    kernel_density,
    mass_levels,
    mean_interval,
)
from semifine.runs.analysis import wilson_interval


def points(number: int = 2000) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    x = random.beta(0.6, 2.0, number)
    return x, np.clip(3 * (1 - x) + random.normal(0, 0.4, number), 0, None)


def test_density_equals_scipy_and_integrates_to_one() -> None:
    x, y = points()
    density = kernel_density(x, y, cells=100)
    grid = np.stack(np.meshgrid(density.x, density.y)).reshape(2, -1)
    exact = stats.gaussian_kde(np.stack([x, y]))(grid).reshape(density.values.shape)
    assert np.abs(density.values - exact).max() < 0.02 * exact.max()
    assert density.mass == pytest.approx(1.0, abs=0.01)


def test_levels_contain_their_share_of_the_points() -> None:
    x, y = np.random.default_rng(1).normal(size=(2, 20_000))
    density = kernel_density(x, y)
    column = np.searchsorted(density.x, x).clip(0, len(density.x) - 1)
    row = np.searchsorted(density.y, y).clip(0, len(density.y) - 1)
    for share, level in zip((0.9, 0.5, 0.1), mass_levels(density, (0.9, 0.5, 0.1)), strict=True):
        assert (density.values[row, column] >= level).mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("y", [np.zeros(50), np.linspace(0, 1, 50)])
def test_density_of_points_on_a_line(y: np.ndarray) -> None:
    density = kernel_density(np.linspace(0, 1, 50), y)
    assert np.isfinite(density.values).all()
    assert density.mass == pytest.approx(1.0, abs=0.05)


def test_fraction_below_the_diagonal() -> None:
    before, after = np.array([1.0, 2.0, 0.5, 0.0]), np.array([0.5, 2.0, 0.7, 0.0])
    assert fraction_below_diagonal(before, after) == 1 / 4


def test_entropy_by_k() -> None:
    found = entropy_by_k(np.array([2, 2, 3, 2]), np.array([1.0, 2.0, 9.0, 3.0]))
    assert list(found) == [2, 3]
    assert found[2].mean == 2.0
    assert found[2].high - 2.0 == pytest.approx(4.303 / 3**0.5, abs=1e-3)
    assert (found[3].low, found[3].high) == (9.0, 9.0)


def test_student_and_wilson_intervals() -> None:
    values = [61.0, 63.5, 60.2, 64.1]
    half = 3.182446 * np.std(values, ddof=1) / 2
    assert mean_interval(values).low == pytest.approx(np.mean(values) - half, abs=1e-5)
    assert mean_interval(values).high == pytest.approx(np.mean(values) + half, abs=1e-5)
    share, n, z = 0.75, 40, 1.959964
    middle = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * (share * (1 - share) / n + z**2 / (4 * n**2)) ** 0.5
    assert wilson_interval(75.0, 40).low == pytest.approx(100 * (middle - half), abs=1e-4)
    assert wilson_interval(75.0, 40).high == pytest.approx(100 * (middle + half), abs=1e-4)
    exact = stats.binomtest(17, 17).proportion_ci(method="wilson")
    assert wilson_interval(100.0, 17).low == pytest.approx(100 * exact.low, abs=1e-9)
    assert wilson_interval(100.0, 17).high == pytest.approx(100)
    assert wilson_interval(0.0, 17).low == pytest.approx(0)
