"""The remaining time, the phase timer, and the profiler."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semifine.devices import peak_gpu_bytes
from semifine.errors import Interrupted
from semifine.runs.folder import RunFolder
from semifine.training import profiling
from semifine.training.fabric import Fabric, StopRequest
from semifine.training.fit import fit
from semifine.training.profiling import (
    ACTIVE,
    SKIPPED,
    WARMUP,
    PhaseTimer,
    TimeEstimator,
    profile_steps,
)
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def test_time_estimate_is_logged_once_and_excludes_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 104.0, 106.0, 106.0, 108.0])  # the first step ends at 100
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: next(clock))
    messages: list[str] = []
    estimator = TimeEstimator(messages.append, 104, torch.device("cpu"))
    for step in range(1, 8):
        estimator.update(step)
    assert messages == ["2 s per step: about 3 min for the remaining 100 steps"]


@pytest.mark.parametrize(("total", "messages"), [(5, ["2 s per step: about 2 s for the remaining 1 step"]), (4, [])])
def test_time_estimate_of_one_and_no_remaining_step(
    total: int, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert logged_estimates(monkeypatch, total, steps=[1, 2, 3, 4]) == messages


def test_time_estimate_weights_steps_by_their_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 of 104 steps are left: 50 like those that were measured, and 50 that take seven times as long."""
    cheap = logged_estimates(monkeypatch, 104, steps=[1, 2, 3, 4], labeled_steps=54, full_cost=7)
    assert cheap == ["2 s per step on labeled images: about 13 min for the remaining 100 steps"]
    full = logged_estimates(monkeypatch, 104, steps=[61, 62, 63, 64], labeled_steps=54, full_cost=7)
    assert full == ["2 s per step: about 80 s for the remaining 40 steps"]


def logged_estimates(monkeypatch: pytest.MonkeyPatch, total: int, steps: list[int], **kinds: float) -> list[str]:
    """Returns the estimates for steps that take two seconds each."""
    clock = [0.0]
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: clock[0])
    messages: list[str] = []
    estimator = TimeEstimator(messages.append, total, torch.device("cpu"), **kinds)
    for step in steps:
        clock[0] += 2
        estimator.update(step)
    return messages


STEPS = SKIPPED + WARMUP + ACTIVE


def run_profiler(steps: int, folder: Path) -> str:
    messages: list[str] = []
    with profile_steps(folder, messages.append) as after_step:
        for _ in range(steps):
            sum(range(100))
            after_step()
    return "\n".join(messages)


def test_profiler_writes_trace_and_table(tmp_path: Path) -> None:
    messages = run_profiler(STEPS + 3, tmp_path / "profile")
    assert (tmp_path / "profile" / "trace.json.gz").stat().st_size > 0
    assert "Self CPU" in messages
    assert "trace.json.gz" in messages


def test_profiler_reports_a_run_that_is_too_short(tmp_path: Path) -> None:
    assert f"needs {STEPS} steps" in run_profiler(3, tmp_path / "profile")


@pytest.mark.parametrize("is_first", [True, False])
def test_only_the_first_process_is_profiled(is_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fabric, "is_global_zero", property(lambda _: is_first))
    fit(tiny_settings("supervised", iterations=1), tmp_path / "run", display=Display(quiet=True), profile=True)
    assert (tmp_path / "run" / "profile").exists() == is_first


def test_every_second_is_counted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(profiling.time, "perf_counter", lambda: now)
    spent = PhaseTimer()
    now = 107.0
    spent.start_steps(started=101.0)
    now = 110.0
    with spent.measure("evaluation"):
        now = 112.0
    now = 113.0
    assert spent.lap() == 4, "three before the evaluation and one after it"
    with spent.measure("saving"):
        now = 113.5
    now = 114.5
    assert spent.lap() == 1
    assert spent.seconds == {"start_up": 6, "steps": 5, "evaluation": 2, "saving": 0.5}
    assert spent.training == 7.5
    spent.start_steps(started=None)
    assert spent.lap() == 0, "the time before a resume does not count in the first interval"


def test_resumed_run_adds_to_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path / "run")
    settings = tiny_settings(log_every=4)
    with monkeypatch.context() as patch:
        patch.setattr(StopRequest, "signal_number", property(lambda _: 15, lambda *_: None), raising=False)
        with pytest.raises(Interrupted):  # after the first step
            fit(settings, folder.path, display=Display(quiet=True))
    take = PhaseTimer.lap
    monkeypatch.setattr(PhaseTimer, "lap", lambda spent: take(spent) and 3.0)
    result = fit(settings, folder.path, resume=True, display=Display(quiet=True))
    assert all(seconds > 0 for seconds in result["time"].values())
    assert result["seconds"] == pytest.approx(sum(result["time"].values()) - result["time"]["start_up"], abs=0.05)
    assert result["peak_gpu_bytes"] is None, "trained on a CPU"
    records = [record for record in folder.read_metrics() if record["kind"] == "train"]
    assert [record["step"] for record in records] == [4, 8, 12]
    assert [record["step_seconds"] for record in records] == [1, 0.75, 0.75], "three steps, then four and four"
    for record in records:
        assert record["images_per_second"] * record["step_seconds"] == pytest.approx(12), "4 labeled, 8 unlabeled"


def test_peak_gpu_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1000 + device.index)
    assert peak_gpu_bytes(torch.device("cuda", 1)) == 1001
    assert peak_gpu_bytes(torch.device("cpu")) is None
