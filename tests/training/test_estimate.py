"""Memory and time are told before and shortly after the start."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from semifine.models.classifier import create_classifier
from semifine.training import estimate
from semifine.training.estimate import (
    TimeEstimator,
    benchmark_throughput,
    relative_step_cost,
    count_effective_images,
    format_duration,
    format_memory_estimate,
    format_time_estimate,
)
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings


def test_memory_counts_network_images_and_activations() -> None:
    network = nn.Sequential(  # 270 weights; two layers of 10 x 32 x 32 numbers, those in place or idle not counted
        nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.ReLU(), nn.ReLU(inplace=True), nn.Identity()
    )
    sentence = format_memory_estimate(network, 32, 1000, has_average=True, number_bytes=4, stored_bytes=5_000_000)
    assert "a step of 1000 learning images 82 MB" in sentence
    assert "decoded images 5 MB" in sentence
    assert sentence.startswith("memory: about 87 MB")


def test_the_network_is_left_as_it_was() -> None:
    network = create_classifier("test_resnet", 5, 32).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    format_memory_estimate(network, 32, 8, has_average=False, number_bytes=2, stored_bytes=0)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_pace_is_said_once_and_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 104.0, 106.0, 106.0, 108.0])  # the first step ends at 100
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: next(clock))
    said: list[str] = []
    time_estimator = TimeEstimator(said.append, 104, torch.device("cpu"))
    for step in range(1, 8):
        time_estimator.update(step)
    assert said == ["2 s a step: about 3 min for the 100 steps that are left"]


@pytest.mark.parametrize(("total", "said"), [(5, ["2 s a step: about 2 s for the 1 step that is left"]), (4, [])])
def test_the_last_step_is_one_and_no_step_is_nothing(
    total: int, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert paces(monkeypatch, total, steps=[1, 2, 3, 4]) == said


def test_steps_that_see_more_images_count_for_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """100 of 104 steps are left: 50 like those that were measured, and 50 that take seven times as long."""
    cheap = paces(monkeypatch, 104, steps=[1, 2, 3, 4], labeled_only=54, full_cost=7)
    assert cheap == ["2 s a step of labeled images alone: about 13 min for the 100 steps that are left"]
    full = paces(monkeypatch, 104, steps=[61, 62, 63, 64], labeled_only=54, full_cost=7)
    assert full == ["2 s a step: about 80 s for the 40 steps that are left"]


def paces(monkeypatch: pytest.MonkeyPatch, total: int, steps: list[int], **kinds: float) -> list[str]:
    """What is said of steps that take two seconds each."""
    clock = [0.0]
    monkeypatch.setattr(estimate.time, "perf_counter", lambda: clock[0])
    said: list[str] = []
    time_estimator = TimeEstimator(said.append, total, torch.device("cpu"), **kinds)
    for step in steps:
        clock[0] += 2
        time_estimator.update(step)
    return said


def test_times_read_well() -> None:
    assert [format_duration(seconds) for seconds in (40, 600, 9000)] == ["about 40 s", "about 10 min", "about 2.5 hours"]


def test_a_trial_leaves_the_network_and_the_random_numbers_alone() -> None:
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


def test_images_of_steps_weigh_by_what_they_cost() -> None:
    settings = tiny_settings(batch_size=4, mu=2, forward="split").train
    assert count_effective_images(10, 0, settings, 2) == 40
    assert count_effective_images(0, 10, settings, 2) == pytest.approx(10 * (4 + 8 + 8 / 3)), "a label costs a forward pass"
    assert count_effective_images(0, 10, tiny_settings(batch_size=4, mu=2, forward="joint").train, 2) == 10 * (4 + 8 + 8)
    assert count_effective_images(0, 10, settings, 0) == 40
    assert relative_step_cost(settings, 2) == pytest.approx((4 + 8 + 8 / 3) / 4)
    assert relative_step_cost(settings, 0) == 1


def test_a_long_time_comes_with_advice() -> None:
    assert format_time_estimate(600, 200) == "time: about 10 min for 200 steps, judging by the network alone"
    assert format_time_estimate(90_000, 200).endswith("fewer --iterations shorten it")


def test_the_time_is_said_before_the_first_step_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings("fixmatch", iterations=4)
    fit(settings, tmp_path / "short", display=Display(), started=0.0)
    assert "time: about" not in "".join(capsys.readouterr())
    monkeypatch.setattr("semifine.training.fit.MIN_STEPS_TO_BENCHMARK", 4)
    fit(settings, tmp_path / "tried", display=Display(), started=0.0)
    said = "".join(capsys.readouterr())
    assert 0 < said.index("time: about") < said.index("first step done")
    weights = [load_file(tmp_path / run / "checkpoints" / "last" / "model.safetensors") for run in ("short", "tried")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
