"""A network that any thread may call. Most tests run it on the CPU."""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from semifine.data.parallel import map_in_order
from semifine.inference.gpu import GpuNetwork
from semifine.inference.network import ImageClassifier


class RecordingNetwork:
    """Returns the first pixel values of the images as logits, and records threads and batch sizes."""

    def __init__(self, largest_half: float = float("inf")) -> None:
        self.largest_half = largest_half
        """Larger logits overflow in half precision."""
        self.threads: set[int] = set()
        self.sizes: list[int] = []
        self.in_half: list[bool] = []

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.threads.add(threading.get_ident())
        self.sizes.append(len(images))
        self.in_half.append(torch.is_autocast_enabled(images.device.type))
        logits = images[:, 0, 0, :2].float()
        if self.in_half[-1]:
            logits = logits.masked_fill(logits > self.largest_half, float("inf"))
        return logits, logits, logits


class SynchronizingNetwork(RecordingNetwork):
    """Synchronizes with the host, which a CUDA graph cannot contain."""

    def __call__(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert images.max().item() >= 0
        return super().__call__(images)


def network_of(network: RecordingNetwork, device: str = "cpu") -> GpuNetwork:
    return GpuNetwork(cast(ImageClassifier, network), torch.device(device))


def images(*values: int) -> list[Tensor]:
    return [torch.full((4, 4, 3), value, dtype=torch.uint8) for value in values]


def test_every_image_has_its_logits_for_any_batch_size() -> None:
    network = network_of(RecordingNetwork())
    for count in (3, 8, 1, 7, 20):
        found = network.logits(images(*range(count)))
        np.testing.assert_array_equal(found, np.repeat(np.arange(count, dtype=np.float32)[:, None], 2, axis=1))


def test_few_different_batch_sizes_are_used() -> None:
    recording = RecordingNetwork()
    network = network_of(recording)
    for count in (1, 3, 100, 7, 16, 2, 1, 100, 5):
        network.logits(images(*range(count)))
    assert recording.sizes == [1, 4, 128, 128, 128, 4, 1, 128, 128]


def test_one_thread_makes_all_calls() -> None:
    recording = RecordingNetwork()
    network = network_of(recording)
    found = list(map_in_order(lambda value: network.logits(images(value))[0, 0], range(50), workers=4))
    assert found == list(range(50))
    assert len(recording.threads) == 1
    assert recording.threads != {threading.get_ident()}


def test_logits_too_large_for_half_precision_are_computed_again_once() -> None:
    recording = RecordingNetwork(largest_half=9)
    network = network_of(recording)
    for value in (5, 200, 6):
        assert network.logits(images(value))[0, 0] == value
    assert recording.in_half == [True, True, False, False]


def test_errors_reach_the_caller() -> None:
    with pytest.raises(RuntimeError, match="stack"):
        network_of(RecordingNetwork()).logits([torch.zeros(4, 4, 3), torch.zeros(5, 5, 3)])


@pytest.mark.gpu
def test_repeated_batch_sizes_are_captured_on_a_gpu() -> None:
    recording = RecordingNetwork()
    network = network_of(recording, "cuda")
    for first in (5, 90, 7, 200):
        for count in (1, 4, 16, 3):
            values = range(first, first + count)
            assert network.logits(images(*values))[:, 1].tolist() == list(values)
    assert recording.sizes == [1, 4, 16, 4, 1, 16]  # the first time eagerly, the second time for the capture


@pytest.mark.gpu
def test_graphs_in_half_precision_are_discarded_with_it() -> None:
    recording = RecordingNetwork(largest_half=9)
    network = network_of(recording, "cuda")
    for value in (5, 6, 200, 7, 201, 8):
        assert network.logits(images(value))[0, 0] == value
    assert recording.in_half == [True, True, False, False]


@pytest.mark.gpu
def test_a_network_that_cannot_be_captured_runs_eagerly() -> None:
    recording = SynchronizingNetwork()
    network = network_of(recording, "cuda")
    for count in (4, 4, 4, 16, 16):
        assert network.logits(images(*range(count)))[:, 0].tolist() == list(range(count))
    assert recording.sizes == [4, 4, 4, 16, 16]


@pytest.mark.gpu
def test_several_networks_are_captured_concurrently() -> None:
    networks = [network_of(RecordingNetwork(), "cuda") for _ in range(4)]

    def logits(network: GpuNetwork) -> list[list[float]]:
        return [network.logits(images(*range(count)))[:, 0].tolist() for count in (8, 8, 16, 16, 8)]

    for found in map_in_order(logits, networks * 5, workers=4):
        assert found == [list(range(count)) for count in (8, 8, 16, 16, 8)]
