"""Which means of speed a run takes, and where its images lie."""

from __future__ import annotations

import pytest
import torch

from semifine.errors import UserError
from semifine.methods.fixmatch import FixMatch
from semifine.training import loader
from semifine.training.compile import choose_acceleration
from semifine.training.loader import choose_storage_device, place_store
from tests.conftest import open_dataset, tiny_settings

CPU, CUDA = torch.device("cpu"), torch.device("cuda", 0)
GIB = 2**30


class Restless(FixMatch):
    """A method whose steps differ."""

    name = "restless"
    cuda_graph_safe = False


def settings(**more: object):
    return tiny_settings("fixmatch", **more).train


def test_a_long_run_on_a_gpu_is_compiled_and_recorded() -> None:
    chosen = choose_acceleration(settings(iterations=20_000), FixMatch, CUDA, "bf16", 1)
    assert chosen.compiled
    assert chosen.graphs
    assert chosen.notes == []


def test_a_short_run_is_recorded_only() -> None:
    chosen = choose_acceleration(settings(iterations=500), FixMatch, CUDA, "bf16", 1)
    assert not chosen.compiled
    assert chosen.graphs


@pytest.mark.parametrize(
    ("method", "precision", "world_size", "reason"),
    [
        (Restless, "bf16", 1, "differ"),
        (FixMatch, "fp16", 1, "fp16"),
        (FixMatch, "bf16", 2, "several processes"),
    ],
)
def test_what_cannot_be_recorded_is_said(method: type, precision: str, world_size: int, reason: str) -> None:
    chosen = choose_acceleration(settings(iterations=500), method, CUDA, precision, world_size)
    assert not chosen.graphs
    (note,) = chosen.notes
    assert reason in note


def test_off_is_off_and_silent() -> None:
    wanted = settings(iterations=20_000, compile="off", cuda_graphs="off")
    chosen = choose_acceleration(wanted, FixMatch, CUDA, "bf16", 1)
    assert (chosen.compiled, chosen.graphs, chosen.notes) == (False, False, [])


def test_graphs_need_a_gpu() -> None:
    with pytest.raises(UserError, match="cuda_graphs is on, but the run is on the CPU"):
        choose_acceleration(settings(cuda_graphs="on"), FixMatch, CPU, "fp32", 1)


def test_images_go_to_the_fastest_place_with_room() -> None:
    assert choose_storage_device(10 * GIB, free_gpu=80 * GIB, free_host=64 * GIB) == "gpu"
    assert choose_storage_device(30 * GIB, free_gpu=40 * GIB, free_host=64 * GIB) == "host"
    assert choose_storage_device(60 * GIB, free_gpu=40 * GIB, free_host=64 * GIB) == "disk"


def test_a_store_on_the_gpu_needs_a_gpu() -> None:
    store = open_dataset(tiny_settings()).store
    with pytest.raises(UserError, match="store is gpu, but the run is on the CPU"):
        place_store(store, "gpu", CPU)
    copied, sentence = place_store(store, "host", CPU)
    assert torch.equal(copied.pixels, store.pixels)
    assert copied.pixels.data_ptr() != store.pixels.data_ptr()
    assert "in memory" in sentence


def test_a_store_in_memory_needs_room_there(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_dataset(tiny_settings()).store
    monkeypatch.setattr(loader, "free_host_memory", lambda: store.nbytes - 1)
    with pytest.raises(UserError, match=r"store is host, but the images take .* choose --store disk"):
        place_store(store, "host", CPU)
