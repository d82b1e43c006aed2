"""Collective operations over the processes of a training; with a single process they do nothing."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor


def world_size() -> int:
    """Number of processes that share every batch.

    Example::

        >>> world_size()
        1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """Index of this process, 0 to ``world_size() - 1``.

    Example:
        >>> rank()
        0
    """
    return dist.get_rank() if world_size() > 1 else 0


def all_gather(part: Tensor) -> Tensor:
    """Concatenates the tensors of all processes in rank order.

    Args:
        part: (B, ...), the same shape in every process.

    Returns:
        (world_size * B, ...).

    Example::

        >>> all_gather(torch.tensor([1, 2]))
        tensor([1, 2])
    """
    if world_size() == 1:
        return part
    parts = [torch.empty_like(part) for _ in range(world_size())]
    dist.all_gather(parts, part.contiguous())
    return torch.cat(parts)


def all_reduce_sum(values: Tensor) -> Tensor:
    """Sums a tensor over all processes; the argument is not changed.

    Example::

        >>> all_reduce_sum(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if world_size() > 1:
        values = values.clone()
        dist.all_reduce(values)
    return values


def all_reduce_mean(values: Tensor) -> Tensor:
    """Averages a tensor over all processes; the gradient passes to the own part.

    Processes average their gradients, so a loss of the result has the same gradient as in a single process.

    Example::

        >>> all_reduce_mean(torch.tensor([1.0, 2.0]))
        tensor([1., 2.])
    """
    if world_size() == 1:
        return values
    own = values.detach()
    return all_reduce_sum(own) / world_size() + (values - own)


def last_occurrence(index: Tensor, mask: Tensor | None = None) -> Tensor:
    """Position of the last entry with the same index, for each entry of a batch.

    A sample can occur twice in a batch. If every occurrence writes the value of the last one, the order of the writes
    does not matter.

    Args:
        index: (B,) sample indices.
        mask: (B,) bool; only entries where it is True count.

    Returns:
        (B,) positions; -1 if no entry with this index counts.

    Example::

        >>> last_occurrence(torch.tensor([7, 8, 7]))
        tensor([2, 1, 2])
    """
    same = index.unsqueeze(1) == index.unsqueeze(0)
    if mask is not None:
        same = same & mask
    positions = torch.arange(len(index), device=index.device)
    return torch.where(same, positions, -1).amax(dim=1)
