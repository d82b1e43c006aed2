"""Exhausted host memory; see test_damaged_runs.py for GPU memory."""

from __future__ import annotations

import subprocess
import sys
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


@pytest.mark.parametrize("megabytes", [100, 700, 2900])
def test_a_limit_of_the_address_space_is_named(megabytes: int, tmp_path: Path) -> None:
    """Depending on the limit, PyTorch fails to load, aborts, or loads; then the command reports the missing run."""
    command = f"ulimit -v {megabytes * 1000}; exec {sys.executable} -m semifine evaluate {tmp_path / 'run'}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    expected = f"raise the limit of {megabytes * 1024e3 / 1e9:.1f} GB of address space (ulimit -v)"
    assert result.returncode in (2, 3), result.stderr
    assert (expected if result.returncode == 3 else "run is not a run folder") in result.stderr
    assert len(result.stderr.splitlines()) == 1, "no traceback"


def test_other_import_errors_are_unchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise ImportError("cannot import name 'x'")

    monkeypatch.setattr("semifine.cli.list.run", fail)
    with pytest.raises(ImportError, match="cannot import name 'x'"):
        main(["list"])
