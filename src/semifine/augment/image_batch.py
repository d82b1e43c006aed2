"""The batch of stored images that views are sampled from, and its upload to a device in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]


ALIGNMENT = 16
"""Bytes; a kernel compiled for aligned arrays then serves all of them."""


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device, narrow: bool = True) -> dict[str, Tensor]:
    """The arrays on ``device``, under the same keys and with the same shapes; ``narrow`` makes float64 float32.

    To a GPU all of them travel in one pinned, non-blocking copy: a hundred tiny copies would cost more than
    the work that they describe.
    """
    prepared = {key: _prepare(array, narrow) for key, array in arrays.items()}
    tensors = {key: torch.from_numpy(array) for key, array in prepared.items()}
    if device.type == "cpu":
        return tensors
    packed = pack_bytes(prepared, pinned=device.type == "cuda").to(device, non_blocking=True)
    return unpack_bytes(packed, tensors)


def pack_bytes(arrays: Mapping[str, NDArray[np.generic]], pinned: bool = False) -> Tensor:
    """The bytes of contiguous arrays one after the other, each aligned."""
    packed = torch.empty(sum(_room(array.nbytes) for array in arrays.values()), dtype=torch.uint8, pin_memory=pinned)
    room, start = packed.numpy(), 0
    for array in arrays.values():
        room[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        start += _room(array.nbytes)
    return packed


def unpack_bytes(packed: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the keys, types and shapes of ``like``, whose arrays were packed, in the memory of ``packed``."""
    unpacked, start = {}, 0
    for key, tensor in like.items():
        unpacked[key] = packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _room(tensor.nbytes)
    return unpacked


def _room(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _prepare(array: NDArray[np.generic], narrow: bool) -> NDArray[np.generic]:
    return np.ascontiguousarray(array, dtype=np.float32 if narrow and array.dtype == np.float64 else array.dtype)


CHANNELS = 3


class ImageStore(Protocol):
    """All images of a dataset: RGB, height x width x 3, one after the other in one flat buffer."""

    @property
    def pixels(self) -> Tensor:
        """Flat uint8 buffer."""
        ...

    @property
    def offset(self) -> Tensor:
        """(rows,) int64: where each image starts in ``pixels``, in bytes."""
        ...

    @property
    def height(self) -> Tensor:
        """(rows,) heights in pixels; 0 where there is no image."""
        ...

    @property
    def width(self) -> Tensor:
        """(rows,) widths in pixels."""
        ...


@dataclass(frozen=True)
class ImageTable:
    """Where each image of a store lies, held on the host."""

    offset: IntArray
    height: IntArray
    width: IntArray

    @classmethod
    def of(cls, store: ImageStore) -> ImageTable:
        """Reads the table of a store once; the store's tensors may live on any device."""
        columns = (store.offset, store.height, store.width)
        return cls(*(column.cpu().numpy().astype(np.int64) for column in columns))

    def take(self, rows: IntArray | slice) -> ImageTable:
        """The table of some rows, in their order."""
        return ImageTable(self.offset[rows], self.height[rows], self.width[rows])


class Layout(NamedTuple):
    """What the sampling needs to know of N images, each (N, 1, 1), of the integer type that indexes pixels.

    ``right`` and ``down`` are the steps to a pixel's neighbors in the buffer; they are zero in an image
    that is one pixel wide or high. ``last_left`` and ``last_top`` are the last pixels that have such
    neighbors.
    """

    offset: Tensor
    height: Tensor
    width: Tensor
    right: Tensor
    down: Tensor
    last_left: Tensor
    last_top: Tensor


@dataclass(frozen=True)
class ImageBatch:
    """The N images of a batch.

    ``pixels`` is flat uint8 on the device, ``columns`` (7, N, 1, 1) the entries of a :class:`Layout`
    there; ``table`` holds the images' sizes on the host, where the random draws need them. A view's
    pixel averages ``oversample`` samples along each axis.
    """

    pixels: Tensor
    columns: Tensor
    table: ImageTable
    oversample: int = 1

    def __len__(self) -> int:
        """The number of images."""
        return len(self.table.offset)

    @property
    def device(self) -> torch.device:
        """Where the views are made."""
        return self.pixels.device

    @property
    def layout(self) -> Layout:
        """The columns by name."""
        return Layout(*self.columns.unbind())

    def take(self, samples: IntArray, on_device: Tensor) -> ImageBatch:
        """Some of the images; ``on_device`` (n,) is a copy of ``samples`` there."""
        return replace(self, columns=self.columns.index_select(1, on_device), table=self.table.take(samples))

    def part(self, some: slice) -> ImageBatch:
        """A run of the images."""
        return replace(self, columns=self.columns[:, some], table=self.table.take(some))


def image_batch(pixels: Tensor, table: ImageTable, device: torch.device, oversample: int = 1) -> ImageBatch:
    """A batch over ``pixels``; the images' bytes are moved first where they are not on ``device``."""
    if pixels.device != device:
        pixels, table = pack(pixels, table, device)
    width, height = table.width, table.height
    right, down = CHANNELS * (width > 1), CHANNELS * width * (height > 1)
    last = np.maximum(width - 2, 0), np.maximum(height - 2, 0)
    index_type = np.int32 if pixels.numel() < 2**31 else np.int64
    columns = np.stack([table.offset, height, width, right, down, *last]).astype(index_type)
    return ImageBatch(pixels, upload({"columns": columns[..., None, None]}, device)["columns"], table, oversample)


def pack(pixels: Tensor, table: ImageTable, device: torch.device) -> tuple[Tensor, ImageTable]:
    """The bytes of the table's images alone, in one copy to ``device``, and their new table.

    Whole images are copied, not bytes by their index: an index takes eight times the bytes that it moves. torch gives
    out a pinned buffer again only when the copy from it has ended, and waits for none.
    """
    lengths = table.height * table.width * CHANNELS
    buffer = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=device.type == "cuda")
    ends = table.offset + lengths
    images = [pixels[start:end] for start, end in zip(table.offset.tolist(), ends.tolist(), strict=True)]
    torch.cat([pixels[:0], *images], out=buffer)
    packed = ImageTable(np.cumsum(lengths) - lengths, table.height, table.width)
    return buffer.to(device, non_blocking=True), packed
