"""The augmentation pipeline: normalized views of stored images."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

import numpy as np
import torch
from torch import Tensor

from semifine.augment.image_batch import ImageStore, ImageTable, IntArray, image_batch
from semifine.augment.random_numbers import BatchRandom, generator
from semifine.augment.settings import AugmentSettings
from semifine.augment.views import find_view

LARGEST_SHRINK = 1.5
"""Images shrunk by more than this, in the middle of the store, are oversampled against aliasing."""
MOST_OVERSAMPLE = 4


class AugmentPipeline:
    """Makes views of the rows of a store, on one device.

    What a sample looks like depends on its row, its place in the global batch, the seed, the step, the
    stream and the name of the view, and on nothing else: neither on earlier calls nor on how the batch
    is split over ranks. On the GPU no call waits for the device.
    """

    def __init__(
        self,
        store: ImageStore,
        settings: AugmentSettings,
        seed: int,
        device: torch.device | str = "cpu",
        channels_last: bool = True,
    ) -> None:
        """The store's pixels may lie on the device, or on the host: then each batch's bytes are sent."""
        self.settings = settings
        self.device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", as tensors call it
        self._seed = seed
        self._pixels = store.pixels
        self._table = ImageTable.of(store)
        self._oversample = _oversample(self._table, settings.size)
        self._memory_format = torch.channels_last if channels_last else torch.contiguous_format
        mean, std = (torch.tensor(per_channel).view(1, 3, 1, 1) for per_channel in (settings.mean, settings.std))
        self._scale, self._shift = (1 / (255 * std)).to(self.device), (-mean / std).to(self.device)

    def __call__(
        self,
        view: str,
        rows: IntArray | Tensor,
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> Tensor:
        """One view of each row; see :meth:`make`."""
        return self.make(rows, (view,), step, stream, rank, world_size)[view]

    @torch.no_grad()
    def make(
        self,
        rows: IntArray | Tensor,
        views: Sequence[str],
        step: int,
        stream: str,
        rank: int = 0,
        world_size: int = 1,
    ) -> dict[str, Tensor]:
        """Several views of the same rows: name -> (N, 3, size, size) float32, normalized.

        ``rows`` (N,) are this rank's rows, on the host; random numbers are drawn for the global batch of
        N * world_size rows. The name "strong:2" asks for a second view of the kind "strong".
        """
        if not views:
            return {}
        makers = {name: find_view(name) for name in views}
        host_rows = np.asarray(rows, dtype=np.int64)
        table = self._table.take(host_rows)
        if (table.height == 0).any():
            raise ValueError(f"Row {host_rows[table.height == 0][0]} of the store has no image.")
        images = image_batch(self._pixels, table, self.device, self._oversample)
        made: dict[str, Tensor] = {}
        for name, maker in makers.items():
            numbers = generator(self._seed, step, f"{stream}/{name}")
            random = BatchRandom(numbers, len(host_rows), rank, world_size)
            made[name] = self._normalize(maker(images, random, self.settings))
        return made

    def _normalize(self, views: Tensor) -> Tensor:
        normalized = torch.addcmul(self._shift, views.float(), self._scale)
        return normalized.contiguous(memory_format=self._memory_format)


def _oversample(table: ImageTable, size: int) -> int:
    """How many samples a pixel averages along each axis; one for the whole store, so no view depends on
    which other images share its batch."""
    shorter = np.minimum(table.height, table.width)
    shrink = float(np.median(shorter[shorter > 0])) / size if shorter.any() else 1.0
    return min(max(1, ceil(shrink / LARGEST_SHRINK)), MOST_OVERSAMPLE)
