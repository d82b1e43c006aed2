"""Estimates of memory and time before training."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from semifine.models.classifier import create_classifier
from semifine.training.estimates import (
    benchmark_throughput,
    count_effective_images,
    format_duration,
    format_memory_estimate,
    format_time_estimate,
    relative_step_cost,
)
from semifine.training.fit import fit
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
    monkeypatch.setattr("semifine.training.estimates.MIN_STEPS_TO_BENCHMARK", 4)
    fit(settings, tmp_path / "tried", display=Display(), started=0.0)
    messages = "".join(capsys.readouterr())
    assert 0 < messages.index("time: about") < messages.index("first step done")
    weights = [load_file(tmp_path / run / "checkpoints" / "last" / "model.safetensors") for run in ("short", "tried")]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
