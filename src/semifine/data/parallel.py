"""Runs work in threads and returns the results in order."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")

IN_FLIGHT_PER_WORKER = 4
"""Results per worker that may wait for an earlier one."""


def map_in_order(
    function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int, in_flight: int | None = None
) -> Iterator[ResultT]:
    """Applies a function to items in threads, with bounded memory.

    Pillow, NumPy and PyTorch release the GIL, so threads run in parallel.

    Args:
        function: Called once for each item.
        items: The items. At most ``in_flight`` of them are read ahead, so the iterable may be endless.
        workers: Number of threads.
        in_flight: Maximum number of items that are started before their result is returned; by default
            ``IN_FLIGHT_PER_WORKER`` per worker.

    Example:
        >>> list(map_in_order(abs, [-3, 2, -1], workers=2))
        [3, 2, 1]
    """
    limit = in_flight or workers * IN_FLIGHT_PER_WORKER
    pool = ThreadPoolExecutor(workers, thread_name_prefix="in-order")
    waiting: deque[Future[ResultT]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) >= limit:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def usable_cores() -> int:
    """Number of CPU cores that this process may use; fewer than the machine has in some containers."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
