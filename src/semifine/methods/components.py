"""Components shared by several methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from semifine.soft_labels.clustering import hash_integers


class RingBuffer(nn.Module):
    """Ring buffer of the most recently pushed rows.

    Args:
        rows: (length, D) initial content.

    Example::

        >>> buffer = RingBuffer(torch.zeros(3, 1))
        >>> buffer.push(torch.tensor([[1.0], [2.0]]))
        >>> buffer.rows.squeeze(1)
        tensor([1., 2., 0.])
    """

    rows: Tensor
    """(length, D) content."""
    slot: Tensor
    """Index of the oldest row, which the next push reslots first."""

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows)
        self.register_buffer("slot", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """Reslots the oldest rows. Shapes: rows (n, D) with n at most the length of the buffer."""
        assert len(rows) <= len(self.rows), "rows must fit into the buffer"
        slots = (self.slot + torch.arange(len(rows), device=rows.device)).remainder_(len(self.rows))
        self.rows.index_copy_(0, slots, rows.to(self.rows.dtype))
        self.slot.add_(len(rows)).remainder_(len(self.rows))


HASH_RANGE = 2**31


def hashed_uniform(*values: Tensor | int) -> Tensor:
    """Returns uniform random numbers in [0, 1) as a function of integers, such as seed, step and index of an image.

    The numbers are the same on all devices and in all processes, and a CUDA graph draws new ones for every step.
    Shapes: broadcast -> float32.

    Example:
        >>> hashed_uniform(0, torch.arange(3)).unique().numel()
        3
    """
    return (hash_integers(*values) / HASH_RANGE).float().clamp_max(1 - 2**-24)


def hashed_beta(concentration: float, *values: Tensor | int, proposals: int = 32) -> Tensor:
    """Returns draws from Beta(a, a) as a function of integers, by Johnk's algorithm with a fixed number of proposals.

    Shapes: broadcast -> float32. With a up to 1, no proposal is accepted in less than one of 1e8 draws; they are 0.5.

    Example:
        >>> draws = hashed_beta(0.75, 0, torch.arange(1000))
        >>> bool((draws.mean() - 0.5).abs() < 0.05)
        True
    """
    *start, last = values
    rounds = torch.arange(proposals, device=last.device if isinstance(last, Tensor) else None)
    last = last[..., None] if isinstance(last, Tensor) else last
    x, y = (hashed_uniform(*start, last, rounds, part).double() ** (1 / concentration) for part in (0, 1))
    accepted = (x + y <= 1) & (x + y > 0)
    first = accepted.int().argmax(dim=-1, keepdim=True)
    draw = torch.where(accepted, x / (x + y), 0.5).gather(-1, first)
    return draw.squeeze(-1).float()
