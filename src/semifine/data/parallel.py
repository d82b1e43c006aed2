"""Runs work in threads and returns results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

IN_FLIGHT_PER_WORKER = 4
"""Results that may wait for an earlier one, a worker."""


def map_in_order(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, in_flight: int | None = None
) -> Iterator[ResultT]:
    """``function`` of each item, in bounded memory. Pillow, numpy and torch let go of the GIL, so threads do.

    At most ``in_flight`` items are begun and not yet handed out.
    """
    most = in_flight or workers * IN_FLIGHT_PER_WORKER
    pool = ThreadPoolExecutor(workers, thread_name_prefix="in-order")
    waiting: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def usable_cores() -> int:
    """In a container fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
