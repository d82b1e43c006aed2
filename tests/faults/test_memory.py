"""Exhausted host memory; see test_damaged_runs.py for GPU memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from semifine.cli.main import main
from semifine.errors import OutOfMemory
from semifine.methods.fixmatch import FixMatch
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def allocate_huge_tensor(*_: object) -> None:
    torch.empty(2**50, dtype=torch.uint8)


def allocate_huge_array(*_: object) -> None:
    np.empty(2**50, np.uint8)


def fail_to_pin_memory(*_: object) -> None:
    raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("exhausted", "sentence"),
    [
        (allocate_huge_tensor, "Out of host memory: lower --batch-size, .* --store disk"),
        (allocate_huge_array, "Out of host memory: lower --batch-size, .* --store disk"),
        (fail_to_pin_memory, "Out of GPU memory: lower --batch-size, .* --store host"),
    ],
)
def test_the_error_names_the_settings_to_lower(
    exhausted: Callable[..., None], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixMatch, "forward", exhausted)
    with pytest.raises(OutOfMemory, match=sentence):
        fit(tiny_settings("fixmatch"), tmp_path / "run", display=Display(quiet=True))


def test_other_errors_are_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(FixMatch, "forward", fail)
    with pytest.raises(RuntimeError, match="shapes differ"):
        fit(tiny_settings("fixmatch"), tmp_path / "run", display=Display(quiet=True))


def test_commands_end_without_a_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("semifine.cli.list.run", allocate_huge_tensor)
    assert main(["list"]) == OutOfMemory.exit_code
    assert "Out of host memory" in capsys.readouterr().err
