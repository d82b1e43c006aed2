"""The next step's views are made while the current step trains."""

from __future__ import annotations

import time
from collections import deque

import torch

from semifine.engine.feed import Feed
from semifine.methods.base import Batch

STEPS_AHEAD = 2
"""How many steps the host may be ahead of the GPU: enough to keep it busy, and no more memory than that."""


class Prefetcher:
    """Batches of a feed; on a GPU they are made on a stream of their own, one step ahead."""

    def __init__(self, feed: Feed, device: torch.device) -> None:
        self.feed = feed
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._next: tuple[int, Batch] | None = None
        self._finished: deque[torch.cuda.Event] = deque()
        self._seconds = 0.0

    def take(self, step: int) -> Batch:
        """The batch of a step, ready for the current stream."""
        if self._stream is None:
            return self._make(step)
        if self._next is None or self._next[0] != step:
            self.prepare(step)
        assert self._next is not None
        batch, self._next = self._next[1], None
        current = torch.cuda.current_stream()
        current.wait_stream(self._stream)
        for tensor in batch.tensors():
            tensor.record_stream(current)
        return batch

    def prepare(self, step: int) -> None:
        """Begins to make the batch of a coming step."""
        if self._stream is None:
            return
        self._stay_near()
        with torch.cuda.stream(self._stream):
            self._next = step, self._make(step)

    def take_seconds(self) -> float:
        """How long the host was busy with making batches since the last time."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _make(self, step: int) -> Batch:
        start = time.perf_counter()
        batch = self.feed.batch(step)
        self._seconds += time.perf_counter() - start
        return batch

    def _stay_near(self) -> None:
        finished = torch.cuda.Event()
        finished.record()
        self._finished.append(finished)
        if len(self._finished) > STEPS_AHEAD:
            self._finished.popleft().synchronize()
