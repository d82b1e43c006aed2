"""Estimates of memory and time, the phase timer, and the profiler."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from semifine.devices import peak_gpu_bytes
from semifine.errors import Interrupted
from semifine.models.classifier import create_classifier
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
    benchmark_throughput,
    count_effective_images,
    format_duration,
    format_memory_estimate,
    format_time_estimate,
    profile_steps,
    relative_step_cost,
)
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def test_memory_estimate_counts_network_images_and_activations() -> None:
    network = nn.Sequential(  # 270 weights, two layers with 10 x 32 x 32 activations
        nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.ReLU(), nn.ReLU(inplace=True), nn.Identity()
    )
    sentence = format_memory_estimate(network, 32, 1000, has_ema=True, bytes_per_value=4, stored_bytes=5_000_000)
    assert "activations of 1000 images per step 82 MB" in sentence
    assert "decoded images 5 MB" in sentence
    assert sentence.startswith("memory: about 87 MB")


def test_memory_estimate_does_not_change_the_network() -> None:
    network = create_classifier("test_resnet", 5, 32).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    format_memory_estimate(network, 32, 8, has_ema=False, bytes_per_value=2, stored_bytes=0)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


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


def test_format_duration() -> None:
    assert [format_duration(seconds) for seconds in (40, 600, 9000)] == [
        "about 40 s",
        "about 10 min",
        "about 2.5 hours",
    ]


def test_benchmark_changes_neither_network_nor_random_state() -> None:
    network = create_classifier("test_resnet", 5, 32)
    network.head = nn.Sequential(nn.Dropout(), network.head)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    random = torch.get_rng_state()
    seconds = benchmark_throughput(network, 32, 8, torch.device("cpu"), nullcontext)
    assert seconds is not None
    assert 0 < seconds < 60
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())


def test_effective_images_are_weighted_by_cost() -> None:
    settings = tiny_settings(batch_size=4, mu=2, forward="split").train
    assert count_effective_images(10, 0, settings, 2) == 40
    assert count_effective_images(0, 10, settings, 2) == pytest.approx(10 * (4 + 8 + 8 / 3)), (
        "a view without gradient costs a forward pass"
    )
    assert count_effective_images(0, 10, tiny_settings(batch_size=4, mu=2, forward="joint").train, 2) == 10 * (
        4 + 8 + 8
    )
    assert count_effective_images(0, 10, settings, 0) == 40
    assert relative_step_cost(settings, 2) == pytest.approx((4 + 8 + 8 / 3) / 4)
    assert relative_step_cost(settings, 0) == 1


def test_long_time_estimate_includes_advice() -> None:
    assert format_time_estimate(600, 200) == "time: about 10 min for 200 steps, estimated from the network alone"
    assert format_time_estimate(90_000, 200).endswith("fewer --iterations, shorten it")


def test_time_is_estimated_before_the_first_step_without_changing_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings("fixmatch", iterations=4)
    fit(settings, tmp_path / "short", display=Display(), started=0.0)
    assert "time: about" not in "".join(capsys.readouterr())
    monkeypatch.setattr("semifine.training.fit.MIN_STEPS_TO_BENCHMARK", 4)
    fit(settings, tmp_path / "tried", display=Display(), started=0.0)
    messages = "".join(capsys.readouterr())
    assert 0 < messages.index("time: about") < messages.index("first step done")
    weights = [load_file(tmp_path / run / "checkpoints" / "last" / "model.safetensors") for run in ("short", "tried")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())


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
