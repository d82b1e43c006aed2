"""Images seen on a GPU: the CPU does nothing but decode, on all cores; what else is to do to the pixels is done there.

The GPU's own JPEG decoder is left alone: bit by bit, training's images are libjpeg's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, groupby, islice
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from semifine.data.in_order import map_in_order
from semifine.data.in_processes import map_in_processes, processes_can
from semifine.data.reading import decode_file, shrunk_size
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import Pixels, oversampling
from semifine.views.crops import centre_crop, render_crop
from semifine.views.images import CHANNELS, ImageTable, image_batch

MOST_PIXELS = 1_000_000
"""Larger images, which would take much memory and time to move, are shrunk where they are decoded."""
MANY = 1000
"""From this number of images on it pays to start processes."""

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


class Gathered(NamedTuple):
    """Images on their way to the GPU, in one piece."""

    levels: Tensor
    """Flat uint8, images of one size one after the other."""
    shapes: list[tuple[int, int]]
    """Heights and widths, in the order of the levels,"""
    places: list[int]
    """and where the images were before."""


class DeviceSight:
    """Levels are those of ``HostSight`` but for rounding: a test allows two of 255."""

    together = 32  # each time takes dozens of small operations on the GPU

    def __init__(self, known: Knowledge, device: torch.device) -> None:
        self.known = known
        self._device = device
        # A stream of its own: small copies wait for what is before them, which must not be the network's work.
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def decode_file(self, file: str) -> Pixels:
        """Nothing is shrunk that the GPU can shrink."""
        return decode_file(file, self.known.stored_side, MOST_PIXELS).pixels

    def files_in_order(
        self, function: Callable[[ItemT], ResultT], items: Iterable[ItemT], workers: int
    ) -> Iterator[ResultT]:
        """Threads share one interpreter, which the threads that feed the GPU need: many files are for processes."""
        groups = iter(items)
        first = list(islice(groups, MANY // self.together))
        all_groups = chain(first, groups)
        many = len(first) == MANY // self.together
        if many and processes_can(self.together * MOST_PIXELS * CHANNELS, workers):
            return map_in_processes(function, all_groups, workers)
        return map_in_order(function, all_groups, workers, in_flight=2 * workers)

    def gather(self, images: Sequence[Pixels]) -> Gathered:
        """One piece of memory for all of them."""
        places = sorted(range(len(images)), key=lambda place: images[place].shape)
        nothing = np.zeros(0, np.uint8)
        levels = np.concatenate([nothing, *(images[place].reshape(-1) for place in places)])
        shapes = [(images[place].shape[0], images[place].shape[1]) for place in places]
        return Gathered(torch.from_numpy(levels), shapes, places)

    def views(self, gathered: Gathered) -> Sequence[Tensor]:
        """Of each image, in the order before they were gathered; they are there on return."""
        with torch.cuda.stream(self._stream):
            views = self._squares(*self._shrunk(gathered))
        if self._stream is not None:
            self._stream.synchronize()
        in_order = dict(zip(gathered.places, views, strict=True))
        return [in_order[place] for place in range(len(views))]

    def _shrunk(self, gathered: Gathered) -> tuple[Tensor, ImageTable]:
        """As ``data.reading.shrink``, images of one size together: Pillow's antialiased bicubic is torch's."""
        levels = gathered.levels.to(self._device)
        small, sizes, start = [levels[:0]], np.zeros((len(gathered.shapes), 2), np.int64), 0
        for shape, alike in groupby(range(len(gathered.shapes)), gathered.shapes.__getitem__):
            places = list(alike)
            end = start + len(places) * shape[0] * shape[1] * CHANNELS
            stack = levels[start:end].view(len(places), *shape, CHANNELS)
            sizes[places] = size = shrunk_size(shape, self.known.stored_side)
            small.append((stack if size == shape else _resized(stack, size)).reshape(-1))
            start = end
        lengths = sizes.prod(axis=1) * CHANNELS
        return torch.cat(small), ImageTable(lengths.cumsum() - lengths, sizes[:, 0], sizes[:, 1])

    def _squares(self, pixels: Tensor, table: ImageTable) -> list[Tensor]:
        """(S, S, 3) each: the views of testing, rounded to whole levels."""
        size = self.known.image_size
        samples = np.array([oversampling(shorter, size) for shorter in np.minimum(table.height, table.width).tolist()])
        views: dict[int, Tensor] = {}
        for oversample in np.unique(samples).tolist():
            rows: NDArray[np.int64] = np.flatnonzero(samples == oversample)
            alike = table.take(rows)
            levels = render_crop(image_batch(pixels, alike, pixels.device, oversample), centre_crop(alike, size), size)
            squares = levels.add_(0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
            views |= zip(rows.tolist(), squares.unbind(), strict=True)
        return [views[row] for row in range(len(samples))]


def _resized(stack: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, H, W, 3) levels -> those of another height and width."""
    small = interpolate(stack.permute(0, 3, 1, 2).float(), size, mode="bicubic", antialias=True)
    return small.add_(0.5).clamp_(0, 255).to(torch.uint8).permute(0, 2, 3, 1)
