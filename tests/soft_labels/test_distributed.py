"""Two ranks with half of each batch have the same state as one process with the whole batch."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from semifine.soft_labels import OFFICIAL_CODE, SoftLabelSelector
from tests.soft_labels.streams import random_stream

K, M, BATCH, STEPS, WORLD = 8, 12, 10, 8, 2
CASES = [{}, {**OFFICIAL_CODE, "window": 4}]


def stream():
    return random_stream(STEPS, BATCH, M, K, torch.Generator().manual_seed(0))


def create_selector(case):
    return SoftLabelSelector(K, M, **{"window": 4, "alpha": 2.0, **CASES[case]})


def run_rank(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    half = slice(rank * BATCH // WORLD, (rank + 1) * BATCH // WORLD)
    for case in range(len(CASES)):
        selector = create_selector(case)
        labels = [selector(probs[half], index[half]) for probs, index in stream()]
        torch.save((selector.state_dict(), labels), os.path.join(folder, f"case{case}-rank{rank}.pt"))
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=WORLD)
    return folder


@pytest.mark.parametrize("case", range(len(CASES)))
def test_two_ranks_have_the_state_of_one_process(case, folder):
    single = create_selector(case)
    expected = [single(probs, index) for probs, index in stream()]
    labels = []
    for rank in range(WORLD):
        state, rank_labels = torch.load(folder / f"case{case}-rank{rank}.pt", weights_only=True)
        assert state.keys() == single.state_dict().keys()
        for name, value in single.state_dict().items():
            assert torch.equal(state[name], value), (rank, name)
        labels.append(rank_labels)
    for step, soft in enumerate(expected):
        assert torch.equal(torch.cat([rank_labels[step] for rank_labels in labels]), soft)
