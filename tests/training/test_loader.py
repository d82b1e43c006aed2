"""Where the decoded images are stored."""

from __future__ import annotations

import pytest
import torch

from semifine.errors import UserError
from semifine.training import loader
from semifine.training.loader import choose_storage_device, place_store
from tests.conftest import open_dataset, tiny_settings

CPU = torch.device("cpu")
GIB = 2**30


def test_auto_storage_is_the_fastest_with_enough_memory() -> None:
    assert choose_storage_device(10 * GIB, free_gpu=80 * GIB, free_host=64 * GIB) == "gpu"
    assert choose_storage_device(30 * GIB, free_gpu=40 * GIB, free_host=64 * GIB) == "host"
    assert choose_storage_device(60 * GIB, free_gpu=40 * GIB, free_host=64 * GIB) == "disk"


def test_gpu_storage_needs_a_gpu() -> None:
    store = open_dataset(tiny_settings()).store
    with pytest.raises(UserError, match="store is gpu, but the run is on the CPU"):
        place_store(store, "gpu", CPU)
    copied, sentence = place_store(store, "host", CPU)
    assert torch.equal(copied.pixels, store.pixels)
    assert copied.pixels.data_ptr() != store.pixels.data_ptr()
    assert "in memory" in sentence


def test_host_storage_needs_enough_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    store = open_dataset(tiny_settings()).store
    monkeypatch.setattr(loader, "free_host_memory", lambda: store.nbytes - 1)
    with pytest.raises(UserError, match=r"store is host, but the images need .* choose --store disk"):
        place_store(store, "host", CPU)
