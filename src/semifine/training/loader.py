"""Training batches, augmented on the device and prefetched, and the storage of the images."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.augment.image_batch import upload
from semifine.augment.random_numbers import create_generator
from semifine.config import TrainSettings
from semifine.config.train_settings import seed_for
from semifine.data.catalog import Catalog, Split
from semifine.data.samplers import IndexSampler, balanced_samples
from semifine.data.store import ImageStore
from semifine.devices import free_host_memory
from semifine.errors import UserError
from semifine.features.activations import Views
from semifine.methods.base import Batch, Method, Mixing
from semifine.training.estimates import format_bytes

# Seeds are derived from these names, so another spelling would change every recorded run.
LABELED, UNLABELED = "labelled", "unlabelled"  # codespell:ignore


def check_images(catalog: Catalog, method: type[Method]) -> None:
    """Raises ``UserError`` if the data set has no images of a kind that the method needs."""
    if not len(catalog.rows(Split.LABELED)):
        raise UserError(f"{catalog.name} has no labeled images; add some.")
    if catalog.labels_optional and len(np.unique(catalog.label[catalog.rows(Split.LABELED)])) < 2:
        raise UserError(f"{catalog.name} has labels of one class only; label images of at least two classes.")
    if method.unlabeled_views and not len(catalog.rows(Split.UNLABELED)):
        raise UserError(
            f"{catalog.name} has no unlabeled images, which the method '{method.name}' needs; "
            "add some, or choose --method supervised."
        )


def check_mixup(settings: TrainSettings, method: type[Method]) -> None:
    """Raises ``UserError`` if the images are to be mixed and the method does not mix them."""
    for option in ("mixup", "cutmix"):
        if getattr(settings, option) and not method.supports_mixup:
            raise UserError(f"The method '{method.name}' does not support {option}; omit --{option}.")
    if settings.cutmix and settings.trained_stages is not None:
        raise UserError("--cutmix mixes images, and frozen stages replace them by activations; omit --cutmix.")


def view_versions(settings: TrainSettings, method: Method | type[Method]) -> dict[str, dict[str, int]]:
    """Returns how many versions of each view are cached, by stream. Views that make labels need fewer versions."""
    labeled = dict.fromkeys(method.labeled_views, settings.labeled_versions)
    weak, strong = max(1, settings.unlabeled_versions - 1), settings.unlabeled_versions
    unlabeled = {view: weak if view == "weak" else strong for view in method.unlabeled_views}
    return {LABELED: labeled, UNLABELED: unlabeled}


CUTMIX_SHARE = 0.5
"""Share of the steps that use CutMix if mixup is enabled, too."""


def cutmix_box(side: int, share: float, row: int, column: int) -> NDArray[np.int64]:
    """Returns first and last row (exclusive), first and last column (exclusive) of the box of CutMix.

    Args:
        side: Side of the square images.
        share: Share of the image that the box covers before it is clipped to the image.
        row: Row of the center.
        column: Column of the center.

    Example:
        >>> cutmix_box(8, share=0.25, row=1, column=4).tolist()
        [0, 3, 2, 6]
    """
    size = int(side * np.sqrt(share))
    before, after = size // 2, (size + 1) // 2
    return np.array([row - before, row + after, column - before, column + after], np.int64).clip(0, side)


class BatchLoader:
    """Batches as a pure function of the step, so that a resumed run sees the same batches.

    Args:
        catalog: The images and their labels.
        pipeline: Creates augmented views on the device.
        method: Determines the views and whether unlabeled images are used.
        settings: Batch sizes, seeds and the steps on labeled images only.
        device: Device of the batches.
        rank: Index of this process.
        world_size: Number of processes, which share every batch.
    """

    def __init__(
        self,
        catalog: Catalog,
        pipeline: Views,
        method: Method,
        settings: TrainSettings,
        device: torch.device,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self._pipeline = pipeline
        self._method = method
        self._device = device
        self._mixup, self._cutmix = settings.mixup, settings.cutmix
        self._image_size = settings.image_size
        self._mixing_seed = seed_for("views", settings)
        self._share = {"rank": rank, "world_size": world_size}
        self._labeled_rows = catalog.rows(Split.LABELED)
        self._unlabeled_rows = catalog.rows(Split.UNLABELED)
        self._label = catalog.label[self._labeled_rows]
        self._labeled_samples = np.arange(len(self._label))
        if settings.balance and method.labeled_views:
            self._labeled_samples = balanced_samples(self._label, seed_for("order", settings, LABELED))
        # A method without labeled images (MoCo) has no steps on labeled images only.
        self.full_steps = settings.full_steps if method.labeled_views else range(settings.iterations)
        self._labeled_sampler = IndexSampler(
            len(self._labeled_samples), settings.batch_size, seed_for("order", settings, LABELED), **self._share
        )
        if method.unlabeled_views:
            self._unlabeled_sampler = IndexSampler(
                len(self._unlabeled_rows),
                settings.batch_size * settings.mu,
                seed_for("order", settings, UNLABELED),
                **self._share,
            )

    def batch(self, step: int) -> Batch:
        """Returns this process's part of the batch of a step, on the device."""
        labeled_index = self._labeled_samples[self._labeled_sampler.batch(step).numpy()]
        labeled = self._pipeline.augment(
            self._labeled_rows[labeled_index], self._method.labeled_views, step, LABELED, **self._share
        )
        indices = {"label": self._label[labeled_index], "labeled_index": labeled_index}
        labeled_mixing = self._draw_labeled_mixing(step, len(labeled_index))
        if not self._has_unlabeled(step):
            sent = upload(indices, self._device)
            return Batch(labeled, sent["label"], labeled_index=sent["labeled_index"], labeled_mixing=labeled_mixing)
        index = self._unlabeled_sampler.batch(step).numpy()
        unlabeled = self._pipeline.augment(
            self._unlabeled_rows[index], self._method.unlabeled_views, step, UNLABELED, **self._share
        )
        sent = upload(indices | {"index": index}, self._device)
        return Batch(
            labeled,
            sent["label"],
            unlabeled,
            sent["index"],
            sent["labeled_index"],
            labeled_mixing,
            self._draw_mixing(step, UNLABELED, len(index)),
        )

    def _draw_mixing(self, step: int, stream: str, count: int) -> Mixing | None:
        """Returns the pairs of images to mix, as a function of the seed and the step; None without mixup."""
        if not self._mixup:
            return None
        generator = create_generator(self._mixing_seed, step, f"{stream}/mixup/{self._share['rank']}")
        weight = np.float32(generator.beta(self._mixup, self._mixup))
        sent = upload({"weight": np.array([weight]), "index": generator.permutation(count)}, self._device, narrow=False)
        return Mixing(sent["weight"][0].float(), sent["index"].long())

    def _draw_labeled_mixing(self, step: int, count: int) -> Mixing | None:
        """Returns the pairs of labeled images to mix; if both are enabled, half of the steps use CutMix."""
        mixup = self._draw_mixing(step, LABELED, count)
        if not self._cutmix:
            return mixup
        generator = create_generator(self._mixing_seed, step, f"{LABELED}/cutmix/{self._share['rank']}")
        if mixup is not None and generator.random() >= CUTMIX_SHARE:
            empty = torch.zeros(4, dtype=torch.int64, device=self._device)
            return Mixing(mixup.weight, mixup.index, empty, mixup.weight)  # one CUDA graph serves both kinds of steps
        side, share = self._image_size, 1 - generator.beta(self._cutmix, self._cutmix)
        box = cutmix_box(side, share, *generator.integers(side, size=2).tolist())
        weight = 1 - (box[1] - box[0]) * (box[3] - box[2]) / side**2
        numbers = {
            "weight": np.array([weight, 1.0], np.float32),
            "index": np.concatenate([box, generator.permutation(count)]),
        }
        sent = upload(numbers, self._device, narrow=False)
        return Mixing(sent["weight"][0], sent["index"][4:].long(), sent["index"][:4].long(), sent["weight"][1])

    def rows(self, step: int) -> NDArray[np.int64]:
        """Returns the catalog rows of the batch of a step over all processes, labeled images first."""
        samples = self._labeled_samples[_global_batch(self._labeled_sampler, step)]
        labeled: NDArray[np.int64] = self._labeled_rows[samples]
        if not self._has_unlabeled(step):
            return labeled
        return np.concatenate([labeled, self._unlabeled_rows[_global_batch(self._unlabeled_sampler, step)]])

    def _has_unlabeled(self, step: int) -> bool:
        return bool(self._method.unlabeled_views) and step in self.full_steps


def _global_batch(sampler: IndexSampler, step: int) -> NDArray[np.int64]:
    return np.asarray(IndexSampler(sampler.num_samples, sampler.batch_size, sampler.seed).batch(step))


MAX_STEPS_AHEAD = 2
"""Steps that the host may be ahead of the GPU: enough to keep it busy, with little extra memory."""


class Prefetcher:
    """Prepares the batch of the next step on a separate CUDA stream while the current step runs.

    On the CPU, it makes each batch when it is taken.
    """

    def __init__(self, loader: BatchLoader, device: torch.device) -> None:
        self.loader = loader
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._next: tuple[int, Batch] | None = None
        self._finished: deque[torch.cuda.Event] = deque()
        self._seconds = 0.0

    def take(self, step: int) -> Batch:
        """Returns the batch of a step, ready for use on the current stream."""
        if self._stream is None:
            return self._load(step)
        if self._next is None or self._next[0] != step:
            self.prefetch(step)
        assert self._next is not None
        batch, self._next = self._next[1], None
        current = torch.cuda.current_stream()
        current.wait_stream(self._stream)
        for tensor in batch.tensors():
            tensor.record_stream(current)
        return batch

    def prefetch(self, step: int) -> None:
        """Starts to make the batch of a step; does nothing on the CPU."""
        if self._stream is None:
            return
        self._wait_if_far_ahead()
        with torch.cuda.stream(self._stream):
            self._next = step, self._load(step)

    def pop_seconds(self) -> float:
        """Returns the time that the host spent on batches since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def _load(self, step: int) -> Batch:
        start = time.perf_counter()
        batch = self.loader.batch(step)
        self._seconds += time.perf_counter() - start
        return batch

    def _wait_if_far_ahead(self) -> None:
        finished = torch.cuda.Event()
        finished.record()
        self._finished.append(finished)
        if len(self._finished) > MAX_STEPS_AHEAD:
            self._finished.popleft().synchronize()


StorageDevice = Literal["auto", "gpu", "host", "disk"]

GPU_SHARE = 0.4
"""Fraction of the free GPU memory that the images may use; the network needs the rest."""
HOST_SHARE = 0.5
"""Fraction of the free host memory that the images may use."""


def place_store(store: ImageStore, storage: StorageDevice, device: torch.device) -> tuple[ImageStore, str]:
    """Moves the decoded images to their storage device.

    Args:
        store: The decoded images.
        storage: The setting ``store``.
        device: Device of the run.

    Returns:
        The moved store, and a note for the user, which may be empty.
    """
    size, free_host = format_bytes(store.nbytes), free_host_memory()
    if device.type != "cuda":
        if storage == "gpu":
            raise UserError("store is gpu, but the run is on the CPU; choose --store auto, host or disk.")
        return (_in_memory(store, free_host), f"{size} of images in memory") if storage == "host" else (store, "")
    free_gpu = torch.cuda.mem_get_info(device)[0]
    if storage == "auto":
        storage = choose_storage_device(store.nbytes, free_gpu, free_host)
    if storage == "gpu":
        if store.nbytes >= free_gpu:
            raise UserError(
                f"store is gpu, but the images need {size} and the GPU has {format_bytes(free_gpu)} free; "
                "choose --store host or a smaller --store-size."
            )
        return store.to(device), f"{size} of images on the GPU ({format_bytes(free_gpu)} were free)"
    if storage == "host":
        note = f"{size} of images in memory ({format_bytes(free_host)} were free)"
        return _in_memory(store, free_host), f"{note}; the GPU has {format_bytes(free_gpu)} free"
    return store, f"{size} of images read from disk; {format_bytes(free_host)} of memory are free"


def choose_storage_device(size: int, free_gpu: int, free_host: int) -> StorageDevice:
    """Returns the fastest device with enough free memory for ``size`` bytes.

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
    """Returns the store with a copy of the pixels in host memory.

    The copy is not pinned. torch would lock up to twice its size, and the scattered images of a batch reach the GPU
    through a small pinned buffer anyway.
    """
    if store.nbytes >= free:
        raise UserError(
            f"store is host, but the images need {format_bytes(store.nbytes)} and {format_bytes(free)} of memory are "
            "free; choose --store disk or a smaller --store-size."
        )
    return replace(store, pixels=store.pixels.clone())
