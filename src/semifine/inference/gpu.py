"""Inference on a GPU: the evaluation transform, and the network with CUDA graphs."""

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

from semifine.augment.crops import center_crop, crop_and_resize
from semifine.augment.image_batch import CHANNELS, ImageTable, create_image_batch
from semifine.augment.settings import oversampling
from semifine.data.boxes import Photo
from semifine.data.decode import Pixels, shrunk_size, try_decode_file
from semifine.data.decode_pool import PackedImages, Reasons, decode_in_processes, pack_images, supports_processes
from semifine.data.store import ImageStore
from semifine.inference.network import ImageClassifier, InferenceNetwork
from semifine.inference.preprocess import DecodedGroup, batched, decode_batches

MAX_PIXELS = 1_000_000
"""Larger images, which take long to upload, are shrunk by the process that decodes them."""
LARGE_GPU = 16 << 30
"""GPU memory in bytes from which larger groups of photos are uploaded at a time."""
MIN_FILES_FOR_PROCESSES = 500
"""Starting decoding processes pays from this number of files."""


class GpuPreprocessor:
    """The evaluation transform on a GPU.

    The pixels equal the pixels of ``CpuPreprocessor`` up to rounding: a test allows a difference of 1 of 255 in few
    pixels.

    Args:
        image_size: Side of the square that the network sees.
        stored_side: Larger images are first shrunk to this shorter side.
        device: The GPU; tests also use the CPU.
    """

    def __init__(self, image_size: int, stored_side: int, device: torch.device) -> None:
        self.image_size = image_size
        self.stored_side = stored_side
        self.group_size = 64 if _total_memory(device) >= LARGE_GPU else 32  # a group takes dozens of small kernels
        self._device = torch.empty(0, device=device).device  # "cuda" becomes "cuda:0", like the device of tensors
        # A separate stream with high priority: copies do not wait for the kernels of the network.
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None
        self._store: ImageStore | None = None
        self._table: ImageTable | None = None

    def decode_file(self, photo: Photo) -> Pixels | str:
        """Shrinks only crops, and images that are too large to upload."""
        return try_decode_file(photo, self.stored_side, MAX_PIXELS)

    def decode_files(self, photos: Iterable[Photo], workers: int) -> Iterator[DecodedGroup]:
        """Decodes many files in processes, because threads would compete with the threads that feed the GPU."""
        rest = iter(photos)
        first = list(islice(rest, MIN_FILES_FOR_PROCESSES))
        all_photos = chain(first, rest)
        if len(first) < MIN_FILES_FOR_PROCESSES or not supports_processes():
            return decode_batches(all_photos, self.decode_file, self, workers)
        return decode_in_processes(
            batched(all_photos, self.group_size),
            self._upload_group,
            shorter_side=self.stored_side,
            full_size_pixels=MAX_PIXELS,
            group_size=self.group_size,
            workers=workers,
        )

    def collate(self, images: Sequence[Pixels]) -> tuple[Tensor, PackedImages]:
        return self._upload(pack_images(images))

    def transform(self, collated: tuple[Tensor, PackedImages]) -> Sequence[Tensor]:
        """Returns the images in the order before packing, after the GPU has finished them."""
        with torch.cuda.stream(self._stream):
            squares = self._center_crop(*self._shrink(*collated))
        if self._stream is not None:
            self._stream.synchronize()
        in_order = dict(zip(collated[1].order, squares, strict=True))
        return [in_order[index] for index in range(len(squares))]

    def transform_stored(self, store: ImageStore, rows: NDArray[np.int64]) -> Sequence[Tensor]:
        if self._store is not store or self._table is None:
            self._store, self._table = store, ImageTable.from_store(store)
        return self._center_crop(store.pixels, self._table.take(rows))

    def _upload_group(self, packed: PackedImages, errors: Reasons) -> DecodedGroup:
        return DecodedGroup(self._upload(packed), errors)

    def _upload(self, packed: PackedImages) -> tuple[Tensor, PackedImages]:
        """Copies the pixels to the GPU; the host memory is reused for other images."""
        with torch.cuda.stream(self._stream):
            return torch.from_numpy(packed.pixels).to(self._device, copy=True), packed

    def _shrink(self, pixels: Tensor, packed: PackedImages) -> tuple[Tensor, ImageTable]:
        """Shrinks images as ``data.decode.shrink`` does, all images of one size together."""
        shrunk, sizes, start = [pixels[:0]], np.zeros((len(packed.shapes), 2), np.int64), 0
        for shape, group in groupby(range(len(packed.shapes)), packed.shapes.__getitem__):
            index = list(group)
            end = start + len(index) * shape[0] * shape[1] * CHANNELS
            images = pixels[start:end].view(len(index), *shape, CHANNELS)
            sizes[index] = size = shrunk_size(shape, self.stored_side)
            shrunk.append((images if size == shape else _resize(images, size)).reshape(-1))
            start = end
        lengths = sizes.prod(axis=1) * CHANNELS
        return torch.cat(shrunk), ImageTable(lengths.cumsum() - lengths, sizes[:, 0], sizes[:, 1])

    def _center_crop(self, pixels: Tensor, table: ImageTable) -> list[Tensor]:
        """Resizes and crops the images of a table to ``(S, S, 3)`` uint8, those with equal oversampling together."""
        size = self.image_size
        samples = np.array([oversampling(shorter, size) for shorter in np.minimum(table.height, table.width).tolist()])
        squares: dict[int, Tensor] = {}
        for oversample in np.unique(samples).tolist():
            rows: NDArray[np.int64] = np.flatnonzero(samples == oversample)
            part = table.take(rows)
            crops = crop_and_resize(
                create_image_batch(pixels, part, self._device, oversample), center_crop(part, size), size
            )
            rounded = crops.add_(0.5).to(torch.uint8).permute(0, 2, 3, 1).contiguous()
            squares |= zip(rows.tolist(), rounded.unbind(), strict=True)
        return [squares[row] for row in range(len(samples))]


def _total_memory(device: torch.device) -> int:
    """Memory of a GPU in bytes, 0 for a CPU."""
    return torch.cuda.get_device_properties(device).total_memory if device.type == "cuda" else 0


def _resize(images: Tensor, size: tuple[int, int]) -> Tensor:
    """Resizes images ``(n, H, W, 3)`` with antialiasing and rounds after each axis, as Pillow does."""
    pixels = images.permute(0, 3, 1, 2).float()
    for target in ((images.shape[1], size[1]), size):
        pixels = interpolate(pixels, target, mode="bicubic", antialias=True).add_(0.5).clamp_(0, 255).floor_()
    return pixels.to(torch.uint8).permute(0, 2, 3, 1)


_CAPTURE_LOCK = Lock()
"""PyTorch captures all graphs of a process on one stream."""


class GpuNetwork:
    """A network for predictions from any number of threads.

    cuDNN searches for its kernels again in every thread and for every batch size, which takes a second or more.
    Therefore one thread makes all calls, with few different batch sizes. From its second use on, a batch size is
    replayed as a CUDA graph, because hundreds of kernel launches would occupy Python.
    """

    def __init__(self, classifier: ImageClassifier, device: torch.device) -> None:
        self._network = InferenceNetwork(classifier, device, half=True)
        self._device = device
        self._sizes: set[int] = set()
        self._graphs: dict[int, _Graph] = {}
        self._can_capture = device.type == "cuda"
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="network")

    def logits(self, images: Sequence[Tensor]) -> NDArray[np.float32]:
        """N images, ``(S, S, 3)`` uint8 each -> logits ``(N, K)``."""
        return self._thread.submit(self._logits, images).result()

    @torch.inference_mode()
    def _logits(self, images: Sequence[Tensor]) -> NDArray[np.float32]:
        count = len(images)
        size = self._padded_size(count)
        is_new = size not in self._sizes
        self._sizes.add(size)
        batch = torch.stack([*images, *[images[-1]] * (size - count)]).to(self._device)
        logits = self._forward(batch) if is_new else self._replay(batch)
        if self._network.half and not np.isfinite(logits).all():
            self._network.half = False
            self._graphs.clear()
            logits = self._forward(batch)
        return logits[:count]

    def _forward(self, batch: Tensor) -> NDArray[np.float32]:
        return _to_numpy(self._launch(batch))

    def _launch(self, batch: Tensor) -> Tensor:
        return self._network.forward(batch).logits

    def _replay(self, batch: Tensor) -> NDArray[np.float32]:
        """The logits of a batch of a size that has been used before."""
        if self._can_capture and len(batch) not in self._graphs:
            try:
                self._graphs[len(batch)] = _Graph(self._launch, batch)
            except RuntimeError:  # the network synchronizes with the host, or the memory does not suffice
                self._can_capture = False
        graph = self._graphs.get(len(batch))
        return _to_numpy(graph.replay(batch)) if graph else self._forward(batch)

    def _padded_size(self, count: int) -> int:
        """The smallest batch size used so far that fits, else the next power of two."""
        fitting = [size for size in self._sizes if size >= count]
        return min(fitting) if fitting else 1 << (count - 1).bit_length()


class _Graph:
    """The forward pass of one batch size as a CUDA graph."""

    def __init__(self, launch: Callable[[Tensor], Tensor], batch: Tensor) -> None:
        self._batch = batch.clone()
        self._graph = torch.cuda.CUDAGraph()
        # "thread_local": other threads copy images and wait for them during the capture.
        with _CAPTURE_LOCK, torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._logits = launch(self._batch)

    def replay(self, batch: Tensor) -> Tensor:
        """Returns logits that are valid until the next replay."""
        self._batch.copy_(batch)
        self._graph.replay()
        return self._logits


def _to_numpy(logits: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = logits.cpu().numpy()
    return array
