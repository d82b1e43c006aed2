"""Memory and time are told before and shortly after the start."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from semifine.engine import forecast
from semifine.engine.forecast import Pace, in_time, memory_sentence
from semifine.models.classifier import create_classifier


def test_memory_counts_network_images_and_activations() -> None:
    network = nn.Sequential(  # 270 weights; two layers of 10 x 32 x 32 numbers, those in place or idle not counted
        nn.Conv2d(3, 10, 3, padding=1, bias=False), nn.ReLU(), nn.ReLU(inplace=True), nn.Identity()
    )
    sentence = memory_sentence(network, 32, 1000, has_average=True, number_bytes=4, stored_bytes=5_000_000)
    assert "a step of 1000 learning images 82 MB" in sentence
    assert "decoded images 5 MB" in sentence
    assert sentence.startswith("memory: about 87 MB")


def test_the_network_is_left_as_it_was() -> None:
    network = create_classifier("test_resnet", 5, 32).train()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    memory_sentence(network, 32, 8, has_average=False, number_bytes=2, stored_bytes=0)
    assert network.training
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())


def test_the_pace_is_said_once_and_without_the_first_step(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([100.0, 102.0, 104.0, 106.0, 106.0, 108.0])  # the first step ends at 100
    monkeypatch.setattr(forecast.time, "perf_counter", lambda: next(clock))
    said: list[str] = []
    pace = Pace(said.append, 104, torch.device("cpu"))
    for step in range(1, 8):
        pace.step_done(step)
    assert said == ["2 s a step: about 3 min for the 100 steps that are left"]


def test_times_read_well() -> None:
    assert [in_time(seconds) for seconds in (40, 600, 9000)] == ["about 40 s", "about 10 min", "about 2.5 hours"]
