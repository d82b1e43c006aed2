from __future__ import annotations

import math

import pytest

from semifine.config import TrainSettings
from semifine.training.optim import learning_rate_factor


def test_cos716_ends_at_the_published_factor() -> None:
    settings = TrainSettings(iterations=50_000)
    assert learning_rate_factor(0, settings) == 1
    assert math.isclose(learning_rate_factor(50_000, settings), 0.195, abs_tol=5e-4)


def test_cos716_with_the_published_horizon_hardly_decays() -> None:
    settings = TrainSettings(iterations=400_000, horizon=2**20)
    assert math.isclose(learning_rate_factor(400_000, settings), 0.8657, abs_tol=5e-5)
    assert math.isclose(learning_rate_factor(200_000, settings), 0.966, abs_tol=5e-4)


def test_warm_up_is_linear_from_zero() -> None:
    settings = TrainSettings(iterations=1000, warmup=0.1)
    assert [learning_rate_factor(step, settings) for step in (0, 50, 100)] == [0, 0.5, 1]
    assert math.isclose(learning_rate_factor(1000, settings), 0.195, abs_tol=5e-4)


def test_half_cosine_reaches_zero_at_the_last_step() -> None:
    settings = TrainSettings(iterations=1000, schedule="half_cosine")
    assert math.isclose(learning_rate_factor(500, settings), 0.5)
    assert math.isclose(learning_rate_factor(1000, settings), 0, abs_tol=1e-12)


def test_a_half_cosine_with_a_floor_ends_at_a_thousandth() -> None:
    settings = TrainSettings(iterations=1000, schedule="half_cosine_floor")
    factors = [learning_rate_factor(step, settings) for step in (0, 500, 1000)]
    assert factors == pytest.approx([1, 0.5005, 0.001])


def test_steps_divide_by_ten_at_three_and_four_fifths() -> None:
    settings = TrainSettings(iterations=1000, schedule="steps")
    factors = [learning_rate_factor(step, settings) for step in (0, 599, 600, 799, 800, 999)]
    assert factors == pytest.approx([1, 1, 0.1, 0.1, 0.01, 0.01])


@pytest.mark.parametrize("schedule", ["cos716", "half_cosine", "half_cosine_floor", "steps"])
def test_never_rises_after_warm_up(schedule: str) -> None:
    settings = TrainSettings(iterations=300, warmup=0.1, schedule=schedule)  # type: ignore[arg-type]
    factors = [learning_rate_factor(step, settings) for step in range(30, 301)]
    assert factors == sorted(factors, reverse=True)
