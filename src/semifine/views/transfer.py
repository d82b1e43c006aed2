"""Moves many small host arrays to a device in few copies."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def upload(arrays: Mapping[str, NDArray[np.generic]], device: torch.device) -> dict[str, Tensor]:
    """The arrays on ``device``, under the same keys and with the same shapes; float64 becomes float32.

    To a GPU all arrays of one dtype travel in one pinned, non-blocking copy: a hundred tiny copies would
    cost more than the work that they describe.
    """
    prepared = {key: _narrow(array) for key, array in arrays.items()}
    if device.type == "cpu":
        return {key: torch.from_numpy(array) for key, array in prepared.items()}
    sent: dict[str, Tensor] = {}
    for dtype in {array.dtype for array in prepared.values()}:
        group = {key: array for key, array in prepared.items() if array.dtype == dtype}
        packed = torch.from_numpy(np.concatenate([array.ravel() for array in group.values()]))
        if device.type == "cuda":
            packed = packed.pin_memory()
        parts = torch.split(packed.to(device, non_blocking=True), [array.size for array in group.values()])
        sent |= {key: part.view(group[key].shape) for key, part in zip(group, parts, strict=True)}
    return sent


def _narrow(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return np.ascontiguousarray(array, dtype=np.float32 if array.dtype == np.float64 else array.dtype)
