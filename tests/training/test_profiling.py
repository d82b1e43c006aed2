"""--profile: a trace and a table of some steps."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.training.estimate import ACTIVE, SKIPPED, WARM_UP, profile_steps
from semifine.training.fabric import Fabric
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings

STEPS = SKIPPED + WARM_UP + ACTIVE


def run_profiler(steps: int, folder: Path) -> str:
    said: list[str] = []
    with profile_steps(folder, said.append) as after_step:
        for _ in range(steps):
            sum(range(100))
            after_step()
    return "\n".join(said)


def test_a_trace_and_a_table_are_left(tmp_path: Path) -> None:
    said = run_profiler(STEPS + 3, tmp_path / "profile")
    assert (tmp_path / "profile" / "trace.json.gz").stat().st_size > 0
    assert "Self CPU" in said
    assert "trace.json.gz" in said


def test_a_run_that_is_too_short_says_so(tmp_path: Path) -> None:
    assert f"takes {STEPS} steps" in run_profiler(3, tmp_path / "profile")


@pytest.mark.parametrize("is_first", [True, False])
def test_of_several_processes_only_the_first_is_watched(
    is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fabric, "is_global_zero", property(lambda _: is_first))
    fit(tiny_settings("supervised", iterations=1), tmp_path / "run", display=Display(quiet=True), profile=True)
    assert (tmp_path / "run" / "profile").exists() == is_first
