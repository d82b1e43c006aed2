"""What the time of a run goes into, on a clock that the test turns."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from semifine.devices import peak_gpu_bytes
from semifine.errors import Interrupted
from semifine.runs.folder import RunFolder
from semifine.training import progress
from semifine.training.fit import fit
from semifine.training.interruption import StopRequest
from semifine.training.progress import Display, PhaseTimer
from tests.conftest import tiny_settings


def test_every_second_is_booked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(progress.time, "perf_counter", lambda: now)
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
    assert spent.lap() == 0, "what was spent before a resume is no part of the first interval"


def test_a_resumed_run_adds_to_its_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_memory_of_a_gpu_is_what_was_held_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1000 + device.index)
    assert peak_gpu_bytes(torch.device("cuda", 1)) == 1001
    assert peak_gpu_bytes(torch.device("cpu")) is None
