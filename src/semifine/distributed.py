"""Collective operations over processes: rank, gather, sum."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def gather(part: Tensor) -> Tensor:
    """The parts (B, ...) of all ranks, joined in rank order; all ranks must give the same shape."""
    if world_size() == 1:
        return part
    everyone = [torch.empty_like(part) for _ in range(world_size())]
    dist.all_gather(everyone, part.contiguous())
    return torch.cat(everyone)


def last_of_each(index: Tensor, counts: Tensor | None = None) -> Tensor:
    """(B,) the last place in the batch with the same index, among those that count; -1 where there is none.

    The same sample may occur twice in a batch. If each of its places writes what the last one holds, the order
    of the writes does not matter. Shapes: index (B,), counts (B,) bool.
    """
    same = index.unsqueeze(1) == index.unsqueeze(0)
    if counts is not None:
        same = same & counts
    place = torch.arange(len(index), device=index.device)
    return torch.where(same, place, -1).amax(dim=1)


def world_size() -> int:
    """The number of processes that share every batch."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
