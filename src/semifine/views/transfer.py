"""Moves many small host arrays to a device in one copy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
