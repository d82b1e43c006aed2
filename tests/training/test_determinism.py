"""Separate seeds for weights, order, views and method, and the deterministic mode."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.config.train_settings import seed_for
from tests.conftest import tiny_settings

PURPOSES = ("weights", "order", "views", "method")


@pytest.mark.parametrize("changed", PURPOSES)
def test_separate_seed_changes_one_purpose_only(changed: str) -> None:
    common, own = (tiny_settings(**more).train for more in ({}, {f"seed_{changed}": 7}))
    for purpose in PURPOSES:
        assert (seed_for(purpose, own) == seed_for(purpose, common)) == (purpose != changed)


def test_separate_seeds_default_to_the_common_seed() -> None:
    first, second = tiny_settings(seed=1).train, tiny_settings(seed=2).train
    assert all(seed_for(purpose, first) != seed_for(purpose, second) for purpose in PURPOSES)
    seeds = [seed_for(purpose, first) for purpose in PURPOSES]
    assert len(set(seeds)) == len(PURPOSES)


def train_twice(folder: Path, *more: str) -> list[dict[str, Any]]:
    command = (
        "train --deterministic --iterations 6 --image-size 32 --batch-size 4 --mu 2 --data.genera 3 --quiet".split()
    )
    for name in ("first", "second"):
        subprocess.run(
            [sys.executable, "-m", "semifine", *command, *more, "--out", str(folder / name)],
            check=True,
            capture_output=True,
        )
    return [load_file(folder / name / "checkpoints/last/model.safetensors") for name in ("first", "second")]


def test_deterministic_mode_is_reproducible(tmp_path: Path) -> None:
    first, second = train_twice(tmp_path, "--device", "cpu")
    torch.testing.assert_close(first, second, rtol=0, atol=0)


@pytest.mark.gpu
def test_deterministic_mode_is_reproducible_on_a_gpu(tmp_path: Path) -> None:
    first, second = train_twice(tmp_path, "--device", "cuda", "--iterations", "60")
    torch.testing.assert_close(first, second, rtol=0, atol=0)
