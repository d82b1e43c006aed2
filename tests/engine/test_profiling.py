"""--profile: a trace and a table of some steps."""

from __future__ import annotations

from pathlib import Path

from semifine.engine.profiling import ACTIVE, SKIPPED, WARM_UP, profiling

STEPS = SKIPPED + WARM_UP + ACTIVE


def profile_steps(steps: int, folder: Path) -> str:
    said: list[str] = []
    with profiling(folder, said.append) as after_step:
        for _ in range(steps):
            sum(range(100))
            after_step()
    return "\n".join(said)


def test_a_trace_and_a_table_are_left(tmp_path: Path) -> None:
    said = profile_steps(STEPS + 3, tmp_path / "profile")
    assert (tmp_path / "profile" / "trace.json.gz").stat().st_size > 0
    assert "Self CPU" in said
    assert "trace.json.gz" in said


def test_a_run_that_is_too_short_says_so(tmp_path: Path) -> None:
    assert f"takes {STEPS} steps" in profile_steps(3, tmp_path / "profile")
