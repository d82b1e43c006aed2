"""Images seen on a GPU: the CPU does nothing but decode, on all cores; what else is to do to the pixels is done there.

The GPU's own JPEG decoder is left alone: bit by bit, training's images are libjpeg's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, groupby, islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from semifine.data.decode_pool import Reasons, decode_in_processes, processes_can_share
from semifine.data.packing import Packed, pack
from semifine.data.reading import Pixels, decode_or_reason, shrunk_size
from semifine.inference.gathering import Group, gather_items, several
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import oversampling
from semifine.views.crops import centre_crop, render_crop
from semifine.views.images import CHANNELS, ImageTable, image_batch

MOST_PIXELS = 1_000_000
"""Larger images, which would take much memory and time to move, are shrunk where they are decoded."""
ROOMY = 16 << 30
"""Memory of a GPU where many photos may wait."""
MANY = 500
"""From this number of files on it pays to start processes."""


class DeviceSight:
    """Levels are those of ``HostSight`` but for rounding: a test allows one of 255, of few pixels."""

    def __init__(self, known: Knowledge, device: torch.device) -> None:
        self.known = known
        self._device = device
        self.together = 64 if _memory(device) >= ROOMY else 32  # each time takes dozens of small operations
        # A stream of its own, before others: small copies wait for what is before them, which must not be the network's
        # work.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def decode_file(self, file: str) -> Pixels | str:
        """Nothing is shrunk that the GPU can shrink."""
        return decode_or_reason(file, self.known.stored_side, MOST_PIXELS)

    def gather_files(self, files: Iterable[str], workers: int) -> Iterator[Group]:
        """Threads share one interpreter, which the threads that feed the GPU need: many files are for processes."""
        rest = iter(files)
        first = list(islice(rest, MANY))
        all_files = chain(first, rest)
        if len(first) < MANY or not processes_can_share():
            return gather_items(all_files, self.decode_file, self, workers)
        return decode_in_processes(
            several(all_files, self.together),
            self._take,
            shorter_side=self.known.stored_side,
            left_alone=MOST_PIXELS,
            most=self.together,
            workers=workers,
        )

    def gather(self, images: Sequence[Pixels]) -> tuple[Tensor, Packed]:
        return self._moved(pack(images))

    def views(self, gathered: tuple[Tensor, Packed]) -> Sequence[Tensor]:
        """Of each image, in the order before they were packed; they are there on return."""
        with torch.cuda.stream(self._stream):
            views = self._squares(*self._shrunk(*gathered))
        if self._stream is not None:
            self._stream.synchronize()
        in_order = dict(zip(gathered[1].places, views, strict=True))
        return [in_order[place] for place in range(len(views))]

    def _take(self, packed: Packed, reasons: Reasons) -> Group:
        return Group(self._moved(packed), reasons)

    def _moved(self, packed: Packed) -> tuple[Tensor, Packed]:
        """The levels on the GPU; others may write to the memory where they were."""
        with torch.cuda.stream(self._stream):
            return torch.from_numpy(packed.levels).to(self._device, copy=True), packed

    def _shrunk(self, levels: Tensor, packed: Packed) -> tuple[Tensor, ImageTable]:
        """As ``data.reading.shrink``, images of one size together: Pillow's antialiased bicubic is torch's."""
        small, sizes, start = [levels[:0]], np.zeros((len(packed.shapes), 2), np.int64), 0
        for shape, alike in groupby(range(len(packed.shapes)), packed.shapes.__getitem__):
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


def _memory(device: torch.device) -> int:
    """Of a GPU, in bytes."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def _resized(stack: Tensor, size: tuple[int, int]) -> Tensor:
    """(n, H, W, 3) levels -> those of another height and width; along each axis rounded to levels, as Pillow does."""
    levels = stack.permute(0, 3, 1, 2).float()
    for between in ((stack.shape[1], size[1]), size):
        levels = interpolate(levels, between, mode="bicubic", antialias=True).add_(0.5).clamp_(0, 255).floor_()
    return levels.to(torch.uint8).permute(0, 2, 3, 1)
