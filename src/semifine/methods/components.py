"""Components shared by several methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
