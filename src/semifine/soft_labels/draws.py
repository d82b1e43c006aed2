"""Random draws by hashing, so that every rank and device draws alike without any generator state."""

import torch
from torch import Tensor

from semifine.soft_labels.similarity import PAD


def draw_medoids(sizes: Tensor, k_max: int, num_classes: int, seed: int, step: Tensor | int) -> Tensor:
    """k classes without replacement for each k in ``sizes``: those with the smallest hashes.

    A hash and no random generator: all ranks and devices draw the same classes at the same step without exchanging
    anything, inside a CUDA graph too, and a restart needs no generator state.
    Shapes: sizes (rows,) -> (rows, k_max), padded with -1.
    """
    classes = torch.arange(num_classes, device=sizes.device)
    key = hashed(seed, step, sizes.unsqueeze(1), classes) * num_classes + classes  # unique, so no ties
    order = key.argsort(dim=1)[:, :k_max]
    return order.masked_fill(torch.arange(k_max, device=sizes.device) >= sizes.unsqueeze(1), PAD)


def hashed(*values: Tensor | int) -> Tensor:
    """A 31-bit hash of several integers, the same on every device. Shapes: broadcast -> int64."""
    state: Tensor | int = 0
    for value in values:
        state = _mix(state + value)
    return torch.as_tensor(state)


def _mix(value: Tensor | int) -> Tensor | int:
    """Mix 31 bits (xor-shift and multiply); the products stay below 2^58, so nothing overflows."""
    value = value & 0x7FFFFFFF
    for _ in range(2):
        value = ((value ^ (value >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return value ^ (value >> 16)
