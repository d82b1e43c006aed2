"""Cached activations equal the trunk on augmented images, and are drawn as a function of the step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from semifine.features.activations import CachedActivations

ROWS = np.array([2, 5, 7], np.int64)


class Pipeline:
    """Makes images whose pixels tell the row and a counter of the calls."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.calls = 0

    def augment(self, rows: np.ndarray, views: tuple[str, ...], step: int, stream: str) -> dict[str, Tensor]:  # noqa: ARG002
        self.calls += 1
        images = torch.from_numpy(rows).float()[:, None, None, None] + self.calls / 16
        return {view: images.expand(-1, 3, 4, 4) for view in views}


class Doubled(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return 2 * images


@pytest.fixture
def cached() -> CachedActivations:
    versions = {"unlabeled": {"weak": 1, "strong": 3}}
    return CachedActivations(Pipeline(), Doubled(), versions, {"unlabeled": ROWS}, seed=1)  # type: ignore[arg-type]


def drawn(cached: CachedActivations, step: int, view: str = "strong") -> list[float]:
    values = cached.augment(np.array([7, 2]), (view,), step, "unlabeled")[view]
    assert values.shape == (2, 3, 4, 4)
    assert values.dtype == torch.float32
    return values[:, 0, 0, 0].tolist()


def test_activations_are_those_of_the_rows(cached: CachedActivations) -> None:
    assert drawn(cached, 0, "weak") == [2 * (7 + 1 / 16), 2 * (2 + 1 / 16)], "weak is the first call"
    seven, two = drawn(cached, 0)
    assert seven in [2 * (7 + call / 16) for call in (2, 3, 4)]
    assert two in [2 * (2 + call / 16) for call in (2, 3, 4)]


def test_a_step_draws_the_same_versions_again_and_all_versions_occur(cached: CachedActivations) -> None:
    assert drawn(cached, 3) == drawn(cached, 3)
    assert {drawn(cached, step)[0] for step in range(40)} == {2 * (7 + call / 16) for call in (2, 3, 4)}


def test_memory_is_two_bytes_per_value(cached: CachedActivations) -> None:
    assert cached.nbytes == len(ROWS) * (1 + 3) * 3 * 4 * 4 * 2
