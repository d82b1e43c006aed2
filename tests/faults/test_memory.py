"""Out of host memory; see test_damaged_runs.py for GPU memory."""

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


def too_large_a_tensor(*_: object) -> None:
    torch.empty(2**50, dtype=torch.uint8)


def too_large_an_array(*_: object) -> None:
    np.empty(2**50, np.uint8)


def full_pinned_memory(*_: object) -> None:
    raise RuntimeError("CUDA error: out of memory")


@pytest.mark.parametrize(
    ("exhausted", "sentence"),
    [
        (too_large_a_tensor, "Out of host memory: lower --batch-size, .* --store disk"),
        (too_large_an_array, "Out of host memory: lower --batch-size, .* --store disk"),
        (full_pinned_memory, "Out of GPU memory: lower --batch-size, .* --store host"),
    ],
)
def test_a_training_says_what_to_lower(
    exhausted: Callable[..., None], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FixMatch, "forward", exhausted)
    with pytest.raises(OutOfMemory, match=sentence):
        fit(tiny_settings("fixmatch"), tmp_path / "run", display=Display(quiet=True))


def test_other_errors_stay_what_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: object) -> None:
        raise RuntimeError("shapes differ")

    monkeypatch.setattr(FixMatch, "forward", wrong)
    with pytest.raises(RuntimeError, match="shapes differ"):
        fit(tiny_settings("fixmatch"), tmp_path / "run", display=Display(quiet=True))


def test_no_command_answers_with_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("semifine.cli.list.run", too_large_a_tensor)
    assert main(["list"]) == OutOfMemory.exit_code
    assert "Out of host memory" in capsys.readouterr().err
