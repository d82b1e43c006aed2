"""A network that any thread may ask, mostly with the CPU in the place of the GPU."""

from __future__ import annotations

import threading
from typing import cast

import numpy as np
import pytest
import torch
from torch import Tensor

from semifine.data.parallel import map_in_order
from semifine.inference.gpu import GpuNetwork
from semifine.inference.view_classifier import ViewClassifier


class Witness:
    """Its logits are the first levels of the views; it notes who asks, and for how many."""

    def __init__(self, most: float = float("inf")) -> None:
        self.most = most
        """What its numbers must not be above in half precision."""
        self.threads: set[int] = set()
        self.sizes: list[int] = []
        self.in_half: list[bool] = []

    def __call__(self, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        self.threads.add(threading.get_ident())
        self.sizes.append(len(levels))
        self.in_half.append(torch.is_autocast_enabled(levels.device.type))
        logits = levels[:, 0, 0, :2].float()
        if self.in_half[-1]:
            logits = logits.masked_fill(logits > self.most, float("inf"))
        return logits, logits, logits


class Waiting(Witness):
    """Looks at its numbers on their way, which no recording can hold."""

    def __call__(self, levels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        assert levels.max().item() >= 0
        return super().__call__(levels)


def network_of(witness: Witness, device: str = "cpu") -> GpuNetwork:
    return GpuNetwork(cast(ViewClassifier, witness), torch.device(device))


def views(*levels: int) -> list[Tensor]:
    return [torch.full((4, 4, 3), level, dtype=torch.uint8) for level in levels]


def test_every_view_has_its_logits_whatever_their_number() -> None:
    network = network_of(Witness())
    for count in (3, 8, 1, 7, 20):
        found = network.logits(views(*range(count)))
        np.testing.assert_array_equal(found, np.repeat(np.arange(count, dtype=np.float32)[:, None], 2, axis=1))


def test_numbers_of_images_repeat() -> None:
    witness = Witness()
    network = network_of(witness)
    for count in (1, 3, 100, 7, 16, 2, 1, 100, 5):
        network.logits(views(*range(count)))
    assert witness.sizes == [1, 4, 128, 128, 128, 4, 1, 128, 128]


def test_one_thread_makes_all_calls() -> None:
    witness = Witness()
    network = network_of(witness)
    found = list(map_in_order(lambda level: network.logits(views(level))[0, 0], range(50), workers=4))
    assert found == list(range(50))
    assert len(witness.threads) == 1
    assert witness.threads != {threading.get_ident()}


def test_logits_too_large_for_half_precision_are_asked_for_again_once() -> None:
    witness = Witness(most=9)
    network = network_of(witness)
    for level in (5, 200, 6):
        assert network.logits(views(level))[0, 0] == level
    assert witness.in_half == [True, True, False, False]


def test_what_goes_wrong_is_told() -> None:
    with pytest.raises(RuntimeError, match="stack"):
        network_of(Witness()).logits([torch.zeros(4, 4, 3), torch.zeros(5, 5, 3)])


@pytest.mark.gpu
def test_what_comes_back_on_a_gpu_is_recorded() -> None:
    witness = Witness()
    network = network_of(witness, "cuda")
    for first in (5, 90, 7, 200):
        for count in (1, 4, 16, 3):
            levels = range(first, first + count)
            assert network.logits(views(*levels))[:, 1].tolist() == list(levels)
    assert witness.sizes == [1, 4, 16, 4, 1, 16]  # the first time as it is, the second time for the recording


@pytest.mark.gpu
def test_recordings_in_half_precision_end_with_it() -> None:
    witness = Witness(most=9)
    network = network_of(witness, "cuda")
    for level in (5, 6, 200, 7, 201, 8):
        assert network.logits(views(level))[0, 0] == level
    assert witness.in_half == [True, True, False, False]


@pytest.mark.gpu
def test_a_network_that_cannot_be_recorded_goes_on_as_it_is() -> None:
    witness = Waiting()
    network = network_of(witness, "cuda")
    for count in (4, 4, 4, 16, 16):
        assert network.logits(views(*range(count)))[:, 0].tolist() == list(range(count))
    assert witness.sizes == [4, 4, 4, 16, 16]


@pytest.mark.gpu
def test_several_networks_are_recorded_side_by_side() -> None:
    networks = [network_of(Witness(), "cuda") for _ in range(4)]

    def ask(network: GpuNetwork) -> list[list[float]]:
        return [network.logits(views(*range(count)))[:, 0].tolist() for count in (8, 8, 16, 16, 8)]

    for found in map_in_order(ask, networks * 5, workers=4):
        assert found == [list(range(count)) for count in (8, 8, 16, 16, 8)]
