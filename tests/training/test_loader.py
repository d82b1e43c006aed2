"""Where the decoded images are stored."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from semifine.data.catalog import Split
from semifine.errors import UserError
from semifine.methods.base import DataInfo, NoSettings
from semifine.methods.supervised import Supervised
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


def test_balanced_batches_draw_each_class_equally_often() -> None:
    for balance in (False, True):
        settings = tiny_settings("supervised", balance=balance)
        dataset = open_dataset(settings)
        rows = dataset.catalog.rows(Split.LABELED)
        label, truth = dataset.catalog.label.copy(), dataset.catalog.truth.copy()
        label[rows] = truth[rows] = [0] * 12 + [1, 1, 1, 2, 2, 3]
        catalog = replace(dataset.catalog, label=label, truth=truth)
        batches = loader.BatchLoader(catalog, NoViews(), Supervised(NoSettings(), info()), settings.train, CPU)
        drawn = [batches.batch(step) for step in range(12)]  # 48 labels: one epoch of balanced ones
        counts = np.bincount(torch.cat([batch.label for batch in drawn]).numpy())
        assert counts.tolist() == ([12] * 4 if balance else counts.tolist())
        assert balance or counts[0] > 24
        for step, batch in enumerate(drawn):
            assert batch.labeled_index is not None
            assert (rows[batch.labeled_index] == batches.rows(step)).all()
            assert (label[batches.rows(step)] == batch.label.numpy()).all()


class NoViews:
    """Augments nothing."""

    def augment(self, *_: object, **__: object) -> dict[str, torch.Tensor]:
        return {}


def info() -> DataInfo:
    return DataInfo(num_classes=6, num_labeled=18, num_unlabeled=0)
