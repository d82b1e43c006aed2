"""The batch loader: which samples come next, their views on the device, one step ahead."""

from __future__ import annotations

import time
from collections import deque

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.augment import ViewMaker, upload
from semifine.config import TrainSettings
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Catalog, Split
from semifine.data.samplers import IndexStream
from semifine.errors import UserError
from semifine.methods.base import Batch, Method


def check_images(catalog: Catalog, method: type[Method]) -> None:
    """Raises where there is nothing that the method could learn from; to be asked before the method is made."""
    if not len(catalog.rows(Split.LABELLED)):
        raise UserError(f"{catalog.name} has no labelled images to learn from.")
    if method.unlabelled_views and not len(catalog.rows(Split.UNLABELLED)):
        raise UserError(
            f"{catalog.name} has no unlabelled images, which the method '{method.name}' learns from; "
            "add some, or choose --method supervised."
        )


class Feed:
    """Batches as a pure function of the step, so that a resumed run sees what it would have seen."""

    def __init__(
        self,
        catalog: Catalog,
        views: ViewMaker,
        method: Method,
        settings: TrainSettings,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._views = views
        self._method = method
        self._device = device
        self._share = {"rank": rank, "world_size": world_size}
        self._labelled_rows = catalog.rows(Split.LABELLED)
        self._unlabelled_rows = catalog.rows(Split.UNLABELLED)
        self._label = catalog.label[self._labelled_rows]
        # a method without labelled images has nothing to begin with but the unlabelled ones
        self.labelled_only_steps = settings.labelled_only_steps if method.labelled_views else 0
        self._labelled = self._stream(
            len(self._labelled_rows), settings.batch_size, seed_for("order", settings, "labelled")
        )
        if method.unlabelled_views:
            size = settings.batch_size * settings.mu
            seed = seed_for("order", settings, "unlabelled")
            self._unlabelled = self._stream(len(self._unlabelled_rows), size, seed)

    def _stream(self, num_samples: int, batch_size: int, seed: int) -> IndexStream:
        return IndexStream(num_samples, batch_size, seed, **self._share)

    def batch(self, step: int) -> Batch:
        """The batch of a step, on the device."""
        position = np.asarray(self._labelled.batch(step))
        labelled = self._views.make(
            self._labelled_rows[position], self._method.labelled_views, step, "labelled", **self._share
        )
        numbers = {"label": self._label[position], "position": position}
        if not self._method.unlabelled_views or step < self.labelled_only_steps:
            sent = upload(numbers, self._device)
            return Batch(labelled, sent["label"], labelled_index=sent["position"])
        index = np.asarray(self._unlabelled.batch(step))
        unlabelled = self._views.make(
            self._unlabelled_rows[index], self._method.unlabelled_views, step, "unlabelled", **self._share
        )
        sent = upload(numbers | {"index": index}, self._device)
        return Batch(labelled, sent["label"], unlabelled, sent["index"], sent["position"])

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of the catalog that a step's batch is made of, in all processes, labelled ones first."""
        labelled: NDArray[np.int64] = self._labelled_rows[_whole_batch(self._labelled, step)]
        if not self._method.unlabelled_views or step < self.labelled_only_steps:
            return labelled
        return np.concatenate([labelled, self._unlabelled_rows[_whole_batch(self._unlabelled, step)]])


def _whole_batch(stream: IndexStream, step: int) -> NDArray[np.int64]:
    return np.asarray(IndexStream(stream.num_samples, stream.batch_size, stream.seed).batch(step))


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
