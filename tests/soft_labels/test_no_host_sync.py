"""Without host_sync, no operation makes the host wait for a GPU.

This test checks the operations on a CPU; test_gpu.py checks them with CUDA.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from semifine.soft_labels import OFFICIAL_CODE, SoftLabelSelector, k_medoids
from tests.soft_labels.streams import random_counts, random_medoids, random_stream

SYNCHRONIZING = {
    "_local_scalar_dense",
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_dim",
    "unique_consecutive",
    "is_nonzero",
}
K, M = 10, 20


class SyncDetector(TorchDispatchMode):
    """Fails on operations whose values or shape the host must read."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in SYNCHRONIZING, name
        if name in ("index", "index_put", "index_put_"):
            assert all(index is None or index.dtype != torch.bool for index in args[1]), "index by a mask"
        return func(*args, **(kwargs or {}))


def test_detector_finds_synchronizing_operations():
    with SyncDetector(), pytest.raises(AssertionError):
        torch.ones(3).sum().item()
    with SyncDetector(), pytest.raises(AssertionError):
        torch.ones(3)[torch.ones(3) > 0]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"refresh": "all"},
        {"refresh": "oldest", "refresh_limit": 2},
        dict(OFFICIAL_CODE),
        {"medoid_init": "random", "tie": "random"},
        {"map": "exponential"},
        {"map": "fixed", "k": 3},
        {"alpha": K / (K - 2)},
    ],
    ids=str,
)
def test_step_does_not_synchronize(options, monkeypatch):
    for cpu_check in ("transitions._check_range", "selector.check_probabilities"):
        monkeypatch.setattr(f"semifine.soft_labels.{cpu_check}", lambda *_: None)
    selector = SoftLabelSelector(K, M, host_sync=False, **{"alpha": 2.0, **options, "window": 4})
    for probs, index in random_stream(7, 6, M, K, torch.Generator().manual_seed(0)):
        with SyncDetector():
            selector(probs, index)


@pytest.mark.parametrize("form", ["dense", "pairs"])
def test_clustering_does_not_synchronize(form):
    generator = torch.Generator().manual_seed(0)
    counts, medoids = random_counts(K, 3, generator), random_medoids([2, 5, 7], K, generator)
    with SyncDetector():
        k_medoids(counts, medoids, form=form, host_sync=False, candidate_pairs=torch.arange(K * K))
