"""Batches of stored images, and the upload of arrays to a device in one copy."""

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

CHANNELS = 3


class ImageStore(Protocol):
    """All images of a data set: RGB, height x width x 3, one after the other in a flat buffer."""

    @property
    def pixels(self) -> Tensor:
        """Flat uint8 buffer."""
        ...

    @property
    def offset(self) -> Tensor:
        """(rows,) int64 offset in bytes of each image in ``pixels``."""
        ...

    @property
    def height(self) -> Tensor:
        """(rows,) heights in pixels; 0 for a row without an image."""
        ...

    @property
    def width(self) -> Tensor:
        """(rows,) widths in pixels."""
        ...


@dataclass(frozen=True)
class ImageTable:
    """Offsets and sizes of images, on the host."""

    offset: IntArray
    height: IntArray
    width: IntArray

    @classmethod
    def from_store(cls, store: ImageStore) -> ImageTable:
        """Copies the columns of a store from any device."""
        columns = (store.offset, store.height, store.width)
        return cls(*(column.cpu().numpy().astype(np.int64) for column in columns))

    def take(self, rows: IntArray | slice) -> ImageTable:
        """Returns the table of the given rows, in their order."""
        return ImageTable(self.offset[rows], self.height[rows], self.width[rows])


class Layout(NamedTuple):
    """Memory layout of N images. Each tensor is (N, 1, 1), in the integer type that indexes the pixels."""

    offset: Tensor
    height: Tensor
    width: Tensor
    right: Tensor
    """Distance to the right neighbor of a pixel in the buffer; 0 if the image is one pixel wide."""
    down: Tensor
    """Distance to the lower neighbor; 0 if the image is one pixel high."""
    last_left: Tensor
    """Last column with a right neighbor."""
    last_top: Tensor
    """Last row with a lower neighbor."""


@dataclass(frozen=True)
class ImageBatch:
    """The N images of a batch.

    Args:
        pixels: Flat uint8 buffer on the device.
        columns: (7, N, 1, 1) the tensors of a :class:`Layout` on the device.
        table: Offsets and sizes on the host, where random parameters are drawn.
        oversample: Number of samples along each axis that are averaged per output pixel.
    """

    pixels: Tensor
    columns: Tensor
    table: ImageTable
    oversample: int = 1

    def __len__(self) -> int:
        return len(self.table.offset)

    @property
    def device(self) -> torch.device:
        return self.pixels.device

    @property
    def layout(self) -> Layout:
        return Layout(*self.columns.unbind())

    def take(self, rows: IntArray, device_rows: Tensor) -> ImageBatch:
        """Returns the given images; ``device_rows`` is a copy of ``rows`` on the device."""
        return replace(self, columns=self.columns.index_select(1, device_rows), table=self.table.take(rows))

    def chunk(self, rows: slice) -> ImageBatch:
        """Returns consecutive images without copying."""
        return replace(self, columns=self.columns[:, rows], table=self.table.take(rows))


def create_image_batch(pixels: Tensor, table: ImageTable, device: torch.device, oversample: int = 1) -> ImageBatch:
    """Creates a batch of the images of ``table``; uploads their pixels if they are on another device."""
    if pixels.device != device:
        pixels, table = upload_images(pixels, table, device)
    width, height = table.width, table.height
    right, down = CHANNELS * (width > 1), CHANNELS * width * (height > 1)
    last = np.maximum(width - 2, 0), np.maximum(height - 2, 0)
    index_type = np.int32 if pixels.numel() < 2**31 else np.int64
    columns = np.stack([table.offset, height, width, right, down, *last]).astype(index_type)
    return ImageBatch(pixels, upload({"columns": columns[..., None, None]}, device)["columns"], table, oversample)


def upload_images(pixels: Tensor, table: ImageTable, device: torch.device) -> tuple[Tensor, ImageTable]:
    """Copies the images of ``table`` to ``device`` in one transfer; returns their pixels and their new table.

    Images are copied as slices, because an index of bytes takes eight times the memory of the bytes. PyTorch reuses a
    pinned buffer only after the copy from it has ended, so no wait is needed.
    """
    lengths = table.height * table.width * CHANNELS
    buffer = torch.empty(int(lengths.sum()), dtype=torch.uint8, pin_memory=device.type == "cuda")
    ends = table.offset + lengths
    images = [pixels[start:end] for start, end in zip(table.offset.tolist(), ends.tolist(), strict=True)]
    torch.cat([pixels[:0], *images], out=buffer)
    packed = ImageTable(np.cumsum(lengths) - lengths, table.height, table.width)
    return buffer.to(device, non_blocking=True), packed


ALIGNMENT = 16
"""Bytes. Triton compiles a kernel once if all its arrays are aligned alike."""


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device, narrow: bool = True) -> dict[str, Tensor]:
    """Copies arrays to a device.

    All arrays travel to a GPU in one pinned, non-blocking transfer, because many small transfers take longer than the
    kernels that read them.

    Args:
        arrays: Arrays by name.
        device: Target device.
        narrow: Convert float64 to float32.

    Returns:
        Tensors of the same names and shapes.

    Example::

        >>> upload({"label": np.array([3, 1])}, torch.device("cpu"))
        {'label': tensor([3, 1])}
    """
    prepared = {key: _prepare(array, narrow) for key, array in arrays.items()}
    tensors = {key: torch.from_numpy(array) for key, array in prepared.items()}
    if device.type == "cpu":
        return tensors
    packed = pack_bytes(prepared, pinned=device.type == "cuda").to(device, non_blocking=True)
    return unpack_bytes(packed, tensors)


def pack_bytes(arrays: Mapping[str, NDArray[np.generic]], pinned: bool = False) -> Tensor:
    """Concatenates the bytes of contiguous arrays, each aligned to ``ALIGNMENT``."""
    total = sum(_aligned_length(array.nbytes) for array in arrays.values())
    packed = torch.empty(total, dtype=torch.uint8, pin_memory=pinned)
    buffer, start = packed.numpy(), 0
    for array in arrays.values():
        buffer[start : start + array.nbytes] = array.reshape(-1).view(np.uint8)
        start += _aligned_length(array.nbytes)
    return packed


def unpack_bytes(packed: Tensor, like: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns views into ``packed`` with the names, types and shapes of ``like``; inverse of :func:`pack_bytes`."""
    unpacked, start = {}, 0
    for key, tensor in like.items():
        unpacked[key] = packed[start : start + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        start += _aligned_length(tensor.nbytes)
    return unpacked


def _aligned_length(length: int) -> int:
    return -(-length // ALIGNMENT) * ALIGNMENT


def _prepare(array: NDArray[np.generic], narrow: bool) -> NDArray[np.generic]:
    return np.ascontiguousarray(array, dtype=np.float32 if narrow and array.dtype == np.float64 else array.dtype)
