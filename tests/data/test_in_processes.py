"""Work in processes: in order, with any function, and with a clear word when one is killed."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
import torch

from semifine.data import in_processes
from semifine.data.in_processes import IN_FLIGHT_PER_WORKER, map_in_processes, processes_can
from semifine.errors import UserError

pytestmark = [
    pytest.mark.skipif(not processes_can(0, 1), reason="this system cannot fork"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]


@pytest.mark.parametrize("count", [0, 1, 3, 50])
def test_results_come_in_the_order_of_the_items(count: int) -> None:
    own = os.getpid()

    def work(item: list[int]) -> tuple[torch.Tensor, str, bool]:
        return torch.tensor(item) * 2, f"item {item[0]}", os.getpid() == own

    found = list(map_in_processes(work, ([item] for item in range(count)), workers=2))
    assert [int(doubled) for doubled, _, _ in found] == [2 * item for item in range(count)]
    assert [name for _, name, _ in found] == [f"item {item}" for item in range(count)]
    assert not any(here for _, _, here in found)


def test_an_endless_stream_is_read_a_bounded_part_ahead() -> None:
    begun = 0

    def endless() -> Iterator[int]:
        nonlocal begun
        while True:
            begun += 1
            yield begun

    results = map_in_processes(lambda item: item, endless(), workers=2)
    for done in range(1, 20):
        assert next(results) == done
        assert begun <= done + 2 * IN_FLIGHT_PER_WORKER
    results.close()  # type: ignore[attr-defined]


def test_nobody_elses_random_numbers_are_drawn() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    assert list(map_in_processes(lambda item: item, range(5), workers=2)) == list(range(5))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_goes_wrong_is_told() -> None:
    def work(item: int) -> int:
        if item == 3:
            raise ValueError(f"item {item} is wrong")
        return item

    with pytest.raises(ValueError, match="item 3 is wrong"):
        list(map_in_processes(work, range(5), workers=2))


def test_a_process_that_is_killed_is_told() -> None:
    def work(item: int) -> int:
        if item == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return item

    with pytest.raises(UserError, match="--resume"):
        list(map_in_processes(work, range(50), workers=2))


def test_processes_need_shared_memory_for_what_is_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    docker = SimpleNamespace(f_bavail=16384, f_frsize=4096)
    monkeypatch.setattr(in_processes.os, "statvfs", lambda _: docker)
    assert processes_can(1_000_000, workers=16)
    assert not processes_can(10_000_000, workers=16)


def test_processes_are_forked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_processes.multiprocessing, "get_all_start_methods", lambda: ["spawn"])
    assert not processes_can(0, 1)
