"""Decoding, the network and the use of its logits overlap, in order and in bounded memory."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from semifine.data.parallel import IN_FLIGHT_PER_WORKER
from semifine.inference.calibration import Logits
from semifine.inference.pipeline import MAX_BATCHES_AHEAD, MAX_GROUPS_AHEAD, run_inference
from semifine.inference.preprocess import CpuPreprocessor, DecodedGroup, Pixels, decode_batches

PREPROCESSOR = CpuPreprocessor(image_size=2, stored_side=2)
NUM_CLASSES = 2
BATCH_SIZE = 8


def decode(item: int) -> Pixels | str:
    """Returns the item as a gray image; every fifth item is unreadable."""
    return f"item {item}" if item % 5 == 0 else np.full((2, 2, 3), item % 256, np.uint8)


def decode_groups(items: Iterable[int], workers: int) -> Iterator[DecodedGroup]:
    return decode_batches(items, decode, PREPROCESSOR, workers)


def first_value(images: Sequence[Any]) -> Logits:
    return np.array([[image[0, 0, 0], 0] for image in images], np.float32)


@pytest.mark.parametrize("count", [0, 1, 5, 8, 100])
def test_logits_keep_the_order_of_the_items(count: int) -> None:
    position, values, errors = 0, [], []
    for batch in run_inference(first_value, PREPROCESSOR, decode_groups(range(count), 3), NUM_CLASSES, BATCH_SIZE):
        assert batch.size == min(BATCH_SIZE, count - position)
        assert len(batch.logits) == batch.size - len(batch.errors)
        errors += [(position + index, error) for index, error in batch.errors.items()]
        position += batch.size
        values += batch.logits[:, 0].tolist()
    assert values == [item for item in range(count) if item % 5]
    assert errors == [(item, f"item {item}") for item in range(0, count, 5)]


def test_an_endless_stream_is_read_ahead_within_bounds() -> None:
    started = 0

    def endless() -> Iterator[int]:
        nonlocal started
        while True:
            started += 1
            yield started

    workers = 2
    batches = run_inference(first_value, PREPROCESSOR, decode_groups(endless(), workers), NUM_CLASSES, BATCH_SIZE)
    for done in range(1, 20):
        next(batches)
        groups_ahead = workers * IN_FLIGHT_PER_WORKER + MAX_GROUPS_AHEAD + 1
        assert (
            started
            <= done * BATCH_SIZE + (MAX_BATCHES_AHEAD + 1) * BATCH_SIZE + groups_ahead * CpuPreprocessor.group_size
        )
    batches.close()  # type: ignore[attr-defined]
    time.sleep(0.1)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("in-order")]


def test_the_network_runs_while_earlier_logits_are_used() -> None:
    second = threading.Event()
    calls = 0

    def network(images: Sequence[Any]) -> Logits:
        nonlocal calls
        calls += 1
        if calls == 2:
            second.set()
        return first_value(images)

    batches = run_inference(network, PREPROCESSOR, decode_groups(range(100), 2), NUM_CLASSES, BATCH_SIZE)
    next(batches)
    assert second.wait(5), "the second batch must not wait until the first one is used"


def test_errors_of_the_network_reach_the_caller() -> None:
    def network(images: Sequence[Any]) -> Logits:
        raise MemoryError(f"{len(images)} images")

    with pytest.raises(MemoryError, match="images"):
        next(run_inference(network, PREPROCESSOR, decode_groups(range(100), 2), NUM_CLASSES, BATCH_SIZE))
