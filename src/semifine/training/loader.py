"""The batch loader: which samples come next, their views on the device, one step ahead."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.augment.image_batch import upload
from semifine.augment.pipeline import AugmentPipeline
from semifine.config import TrainSettings
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Catalog, Split
from semifine.data.samplers import IndexSampler
from semifine.data.store import ImageStore
from semifine.devices import free_host_memory
from semifine.errors import UserError
from semifine.methods.base import Batch, Method
from semifine.training.estimate import format_bytes

# Names of the random streams: seeds are derived from them, so another spelling would change every recorded run.
LABELED, UNLABELED = "labelled", "unlabelled"  # codespell:ignore


def check_images(catalog: Catalog, method: type[Method]) -> None:
    """Raises where there is nothing that the method could learn from; to be asked before the method is made."""
    if not len(catalog.rows(Split.LABELED)):
        raise UserError(f"{catalog.name} has no labeled images to learn from.")
    if method.unlabeled_views and not len(catalog.rows(Split.UNLABELED)):
        raise UserError(
            f"{catalog.name} has no unlabeled images, which the method '{method.name}' learns from; "
            "add some, or choose --method supervised."
        )


class BatchLoader:
    """Batches as a pure function of the step, so that a resumed run sees what it would have seen."""

    def __init__(
        self,
        catalog: Catalog,
        views: AugmentPipeline,
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
        self._labeled_rows = catalog.rows(Split.LABELED)
        self._unlabeled_rows = catalog.rows(Split.UNLABELED)
        self._label = catalog.label[self._labeled_rows]
        # a method without labeled images has nothing to begin with but the unlabeled ones
        self.supervised_steps = settings.supervised_steps if method.labeled_views else 0
        self._labeled = self._stream(len(self._labeled_rows), settings.batch_size, seed_for("order", settings, LABELED))
        if method.unlabeled_views:
            size = settings.batch_size * settings.mu
            seed = seed_for("order", settings, UNLABELED)
            self._unlabeled = self._stream(len(self._unlabeled_rows), size, seed)

    def _stream(self, num_samples: int, batch_size: int, seed: int) -> IndexSampler:
        return IndexSampler(num_samples, batch_size, seed, **self._share)

    def batch(self, step: int) -> Batch:
        """The batch of a step, on the device."""
        position = np.asarray(self._labeled.batch(step))
        labeled = self._views.make(
            self._labeled_rows[position], self._method.labeled_views, step, LABELED, **self._share
        )
        numbers = {"label": self._label[position], "position": position}
        if not self._method.unlabeled_views or step < self.supervised_steps:
            sent = upload(numbers, self._device)
            return Batch(labeled, sent["label"], labeled_index=sent["position"])
        index = np.asarray(self._unlabeled.batch(step))
        unlabeled = self._views.make(
            self._unlabeled_rows[index], self._method.unlabeled_views, step, UNLABELED, **self._share
        )
        sent = upload(numbers | {"index": index}, self._device)
        return Batch(labeled, sent["label"], unlabeled, sent["index"], sent["position"])

    def rows(self, step: int) -> NDArray[np.int64]:
        """The rows of the catalog that a step's batch is made of, in all processes, labeled ones first."""
        labeled: NDArray[np.int64] = self._labeled_rows[_whole_batch(self._labeled, step)]
        if not self._method.unlabeled_views or step < self.supervised_steps:
            return labeled
        return np.concatenate([labeled, self._unlabeled_rows[_whole_batch(self._unlabeled, step)]])


def _whole_batch(stream: IndexSampler, step: int) -> NDArray[np.int64]:
    return np.asarray(IndexSampler(stream.num_samples, stream.batch_size, stream.seed).batch(step))


STEPS_AHEAD = 2
"""How many steps the host may be ahead of the GPU: enough to keep it busy, and no more memory than that."""


class Prefetcher:
    """Batches of a feed; on a GPU they are made on a stream of their own, one step ahead."""

    def __init__(self, loader: BatchLoader, device: torch.device) -> None:
        self.loader = loader
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
        batch = self.loader.batch(step)
        self._seconds += time.perf_counter() - start
        return batch

    def _stay_near(self) -> None:
        finished = torch.cuda.Event()
        finished.record()
        self._finished.append(finished)
        if len(self._finished) > STEPS_AHEAD:
            self._finished.popleft().synchronize()


StorageDevice = Literal["auto", "gpu", "host", "disk"]

GPU_SHARE = 0.4
"""Share of the free GPU memory that the images may take; the network needs the rest."""
HOST_SHARE = 0.5


def place_store(store: ImageStore, placement: StorageDevice, device: torch.device) -> tuple[ImageStore, str]:
    """Moves the images to the GPU or to memory, or leaves them on disk; also returns a note about it."""
    size, free_host = format_bytes(store.nbytes), free_host_memory()
    if device.type != "cuda":
        if placement == "gpu":
            raise UserError("store is gpu, but the run is on the CPU; choose --store auto, host or disk.")
        return (_in_memory(store, free_host), f"{size} of images in memory") if placement == "host" else (store, "")
    free_gpu = torch.cuda.mem_get_info(device)[0]
    if placement == "auto":
        placement = choose_storage_device(store.nbytes, free_gpu, free_host)
    if placement == "gpu":
        if store.nbytes >= free_gpu:
            raise UserError(
                f"store is gpu, but the images take {size} and the GPU has {format_bytes(free_gpu)} free; "
                "choose --store host or a smaller --store-size."
            )
        return store.to(device), f"{size} of images on the GPU ({format_bytes(free_gpu)} were free)"
    if placement == "host":
        note = f"{size} of images in memory ({format_bytes(free_host)} were free)"
        return _in_memory(store, free_host), f"{note}; the GPU has {format_bytes(free_gpu)} free"
    return store, f"{size} of images read from disk; {format_bytes(free_host)} of memory are free"


def choose_storage_device(size: int, free_gpu: int, free_host: int) -> StorageDevice:
    """The fastest device with enough room.

    Example:
        >>> choose_storage_device(10 * 10**9, free_gpu=80 * 10**9, free_host=64 * 10**9)
        'gpu'
        >>> choose_storage_device(50 * 10**9, free_gpu=80 * 10**9, free_host=64 * 10**9)
        'disk'
    """
    if size <= GPU_SHARE * free_gpu:
        return "gpu"
    return "host" if size <= HOST_SHARE * free_host else "disk"


def _in_memory(store: ImageStore, free: int) -> ImageStore:
    """A copy of the pixels in memory.

    The copy is not pinned: torch would lock up to twice its size, and the images of a batch, which are scattered,
    reach the GPU through a small pinned buffer anyway.
    """
    if store.nbytes >= free:
        raise UserError(
            f"store is host, but the images take {format_bytes(store.nbytes)} and {format_bytes(free)} of memory are "
            "free; choose --store disk or a smaller --store-size."
        )
    return replace(store, pixels=store.pixels.clone())
