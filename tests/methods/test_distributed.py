"""Two ranks with half of each batch have the same state as one process with the whole batch."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from semifine.methods.base import Batch, Progress
from tests.methods.one_step import LABEL, LABELED, UNLABELED, make_batch, make_linear_networks, make_method

STEPS, WORLD = 6, 2
CASES = [
    ("flexmatch", {"threshold": 0.3}),
    ("simmatch", {}),
    ("moco", {"groups": 1}),
    ("soc", {"similarity": "pseudo_features"}),
    ("soc", {"similarity": "labeled_features"}),
    ("freematch", {"decay": 0.5}),
    ("softmatch", {"decay": 0.5}),
    ("fixmatch", {"align": 1.0, "align_to": "em", "threshold": 0.2}),
]


def make_case(case: int):
    name, settings = CASES[case]
    method = make_method(name, **settings)
    if "similarity" in settings:
        method.centroids = type(method.centroids)(6, 12)
    return method


def batches(method) -> list[Batch]:
    """Returns batches in which an image may occur twice, on one rank or on both."""
    generator = torch.Generator().manual_seed(0)
    result = []
    for seed in range(STEPS):
        labeled = torch.randint(0, LABELED, (4,), generator=generator)
        index = torch.randint(0, UNLABELED // 6, (8,), generator=generator)
        result.append(replace(make_batch(method, seed), index=index, labeled_index=labeled, label=LABEL[labeled]))
    return result


def part_of_rank(batch: Batch, rank: int) -> Batch:
    def split(values: torch.Tensor) -> torch.Tensor:
        return values.chunk(WORLD)[rank]

    return Batch(
        {name: split(view) for name, view in batch.labeled.items()},
        split(batch.label),
        {name: split(view) for name, view in batch.unlabeled.items()},
        split(batch.index),
        split(batch.labeled_index),
    )


def run_rank(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD)
    for case in range(len(CASES)):
        method, networks = make_case(case), make_linear_networks()
        for step, batch in enumerate(batches(method)):
            method(networks, part_of_rank(batch, rank), Progress(step, STEPS))
        torch.save(method.state_dict(), f"{folder}/case{case}-rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(run_rank, args=(str(folder),), nprocs=WORLD)
    return folder


@pytest.mark.parametrize("case", range(len(CASES)), ids=lambda case: "-".join(map(str, CASES[case])))
def test_two_ranks_have_the_state_of_one_process(case: int, folder: Path) -> None:
    single, networks = make_case(case), make_linear_networks()
    for step, batch in enumerate(batches(single)):
        single(networks, batch, Progress(step, STEPS))
    for rank in range(WORLD):
        state = torch.load(folder / f"case{case}-rank{rank}.pt", weights_only=True)
        torch.testing.assert_close(state, dict(single.state_dict()), rtol=1e-4, atol=1e-6)
