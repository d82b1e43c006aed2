"""Inference on a GPU: preprocessing and the network."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain, groupby, islice
from threading import Lock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import interpolate

from semifine.augment.crops import center_crop, render_crop
from semifine.augment.image_batch import CHANNELS, ImageTable, image_batch
from semifine.data.decode import Pixels, decode_or_reason, shrunk_size
from semifine.data.decode_pool import Reasons, decode_in_processes, processes_can_share
from semifine.data.decode_worker import Packed, pack
from semifine.inference.prediction import ModelMetadata
from semifine.inference.preprocess import Group, decode_batches, oversampling, several
from semifine.inference.view_classifier import ViewClassifier

MOST_PIXELS = 1_000_000
"""Larger images, which would take much memory and time to move, are shrunk where they are decoded."""
ROOMY = 16 << 30
"""Memory of a GPU where many photos may wait."""
MANY = 500
"""From this number of files on it pays to start processes."""


class GpuPreprocessor:
    """Levels are those of ``CpuPreprocessor`` but for rounding: a test allows one of 255, of few pixels."""

    def __init__(self, known: ModelMetadata, device: torch.device) -> None:
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
            return decode_batches(all_files, self.decode_file, self, workers)
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
            levels = render_crop(image_batch(pixels, alike, pixels.device, oversample), center_crop(alike, size), size)
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


_ONE_AT_A_TIME = Lock()
"""Torch records all graphs of a process on one stream."""


class GpuNetwork:
    """Answers in float16, which is nearer to float32 than bf16; in float32 from the first logits too large for it on.

    cuDNN looks for its kernels anew in every thread, and for every number of images, which takes a second or more. So
    one thread makes all calls, with few different numbers of images. What comes back is recorded as a CUDA graph, since
    hundreds of launches would keep Python busy that decoding and tables need.
    """

    def __init__(self, classifier: ViewClassifier, device: torch.device) -> None:
        self._classifier = classifier
        self._device = device
        self._in_half = True
        self._sizes: set[int] = set()
        self._recordings: dict[int, _Recording] = {}
        self._can_record = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        """N views, (S, S, 3) levels each -> (N, K)."""
        return self._thread.submit(self._logits, views).result()

    @torch.inference_mode()
    def _logits(self, views: Sequence[Tensor]) -> NDArray[np.float32]:
        count = len(views)
        size = self._steady_size(count)
        is_new = size not in self._sizes
        self._sizes.add(size)
        levels = torch.stack([*views, *[views[-1]] * (size - count)]).to(self._device)
        found = self._forward(levels) if is_new else self._again(levels)
        if self._in_half and not np.isfinite(found).all():
            self._in_half = False
            self._recordings.clear()
            found = self._forward(levels)
        return found[:count]

    def _forward(self, levels: Tensor) -> NDArray[np.float32]:
        return _on_host(self._launch(levels))

    def _launch(self, levels: Tensor) -> Tensor:
        with torch.autocast(self._device.type, torch.float16, enabled=self._in_half):
            logits: Tensor = self._classifier(levels)[1]
        return logits

    def _again(self, levels: Tensor) -> NDArray[np.float32]:
        """The logits of as many images as it had before."""
        if self._can_record and len(levels) not in self._recordings:
            try:
                self._recordings[len(levels)] = _Recording(self._launch, levels)
            except RuntimeError:  # of a network that waits for the GPU on its way, or for want of memory
                self._can_record = False
        recording = self._recordings.get(len(levels))
        return _on_host(recording.replay(levels)) if recording else self._forward(levels)

    def _steady_size(self, count: int) -> int:
        """A number of images that it had before, or else the next power of two."""
        known = [size for size in self._sizes if size >= count]
        return min(known) if known else 1 << (count - 1).bit_length()


class _Recording:
    """The network's work on so many images, at fixed addresses."""

    def __init__(self, launch: Callable[[Tensor], Tensor], levels: Tensor) -> None:
        self._levels = levels.clone()
        self._graph = torch.cuda.CUDAGraph()
        # Other threads go on meanwhile with what no recording may hold: they copy images and wait for them.
        with _ONE_AT_A_TIME, torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = launch(self._levels)

    def replay(self, levels: Tensor) -> Tensor:
        """Its result holds until the next one."""
        self._levels.copy_(levels)
        self._graph.replay()
        return self._logits


def _on_host(logits: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = logits.cpu().numpy()
    return found
