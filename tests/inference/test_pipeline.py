"""Decoding, the network and what is made of its logits overlap, in order and in bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from semifine.data.parallel import IN_FLIGHT_PER_WORKER
from semifine.inference.calibration import Logits
from semifine.inference.pipeline import BATCHES_AHEAD, GROUPS_AHEAD, answer
from semifine.inference.prediction import ModelMetadata
from semifine.inference.preprocess import CpuPreprocessor, Group, Pixels, decode_batches

KNOWN = ModelMetadata(("a", "b"), 2, 2, (0.0,) * 3, (1.0,) * 3, "none")  # type: ignore[arg-type]
SIGHT = CpuPreprocessor(KNOWN)
BATCH = 8


def decode(item: int) -> Pixels | str:
    """The item itself as a gray image; every fifth cannot be read."""
    return f"item {item}" if item % 5 == 0 else np.full((2, 2, 3), item % 256, np.uint8)


def gathered(items: Iterable[int], workers: int) -> Iterator[Group]:
    return decode_batches(items, decode, SIGHT, workers)


def first_level(views: Sequence[Any]) -> Logits:
    return np.array([[view[0, 0, 0], 0] for view in views], np.float32)


@pytest.mark.parametrize("count", [0, 1, 5, 8, 100])
def test_answers_come_in_the_order_of_the_items(count: int) -> None:
    items, levels, problems = 0, [], []
    for answered in answer(first_level, SIGHT, gathered(range(count), 3), BATCH):
        assert answered.size == min(BATCH, count - items)
        assert len(answered.logits) == answered.size - len(answered.problems)
        problems += [(items + place, reason) for place, reason in answered.problems.items()]
        items += answered.size
        levels += answered.logits[:, 0].tolist()
    assert levels == [item for item in range(count) if item % 5]
    assert problems == [(item, f"item {item}") for item in range(0, count, 5)]


def test_an_endless_stream_is_read_a_bounded_part_ahead() -> None:
    begun = 0

    def endless() -> Iterator[int]:
        nonlocal begun
        while True:
            begun += 1
            yield begun

    workers = 2
    answers = answer(first_level, SIGHT, gathered(endless(), workers), BATCH)
    for done in range(1, 20):
        next(answers)
        groups_ahead = workers * IN_FLIGHT_PER_WORKER + GROUPS_AHEAD + 1
        assert begun <= done * BATCH + (BATCHES_AHEAD + 1) * BATCH + groups_ahead * CpuPreprocessor.together
    answers.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-order")]


def test_the_network_runs_while_earlier_answers_are_used() -> None:
    second = threading.Event()
    calls = 0

    def network(views: Sequence[Any]) -> Logits:
        nonlocal calls
        calls += 1
        if calls == 2:
            second.set()
        return first_level(views)

    answers = answer(network, SIGHT, gathered(range(100), 2), BATCH)
    next(answers)
    assert second.wait(5), "the second batch does not wait for the use of the first"


def test_what_goes_wrong_in_the_network_is_told() -> None:
    def network(views: Sequence[Any]) -> Logits:
        raise MemoryError(f"{len(views)} views")

    with pytest.raises(MemoryError, match="views"):
        next(answer(network, SIGHT, gathered(range(100), 2), BATCH))
