"""Work in processes whose results come in the order of the items: for work that keeps Python's interpreter busy."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

import torch
from torch.utils.data import DataLoader, Dataset

from semifine.data.in_order import usable_cores
from semifine.errors import UserError

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

IN_FLIGHT_PER_WORKER = 2
SHARED_MEMORY = "/dev/shm"


def processes_can(result_bytes: int, workers: int) -> bool:
    """Whether the system can fork, and has the shared memory for the results under way (Docker gives 64 MB)."""
    if "fork" not in multiprocessing.get_all_start_methods() or not os.path.isdir(SHARED_MEMORY):
        return False
    room = os.statvfs(SHARED_MEMORY)
    return room.f_bavail * room.f_frsize > workers * IN_FLIGHT_PER_WORKER * result_bytes


def map_in_processes(function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int) -> Iterator[ResultT]:
    """``function`` of each item; tensors come back in shared memory.

    The processes are forks of this one: they start in no time, and ``function`` may be any. It must leave GPUs alone.
    """
    loader: DataLoader[ResultT] = DataLoader(
        _Calls(function),
        batch_size=None,
        sampler=items,
        num_workers=min(workers, usable_cores()),  # torch warns of more
        prefetch_factor=IN_FLIGHT_PER_WORKER,
        collate_fn=_as_it_is,
        multiprocessing_context="fork",
        generator=torch.Generator(),  # the seed that it draws for the workers is not taken from everybody's
    )
    try:
        yield from loader
    except RuntimeError as error:
        if not str(error).startswith("DataLoader worker"):
            raise
        raise UserError(
            "A process that decodes images was ended from outside, perhaps for want of memory. Go on with --resume, "
            "with fewer --workers if it happens again."
        ) from error


class _Calls(Dataset[ResultT], Generic[ItemT, ResultT]):
    """A function in the form of a data set, whose keys are the items."""

    def __init__(self, function: Callable[[ItemT], ResultT]) -> None:
        self._function = function

    def __getitem__(self, item: ItemT) -> ResultT:
        return self._function(item)


def _as_it_is(result: ResultT) -> ResultT:
    return result
