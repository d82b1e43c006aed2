"""Parts that methods share."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class RingBuffer(nn.Module):
    """The last ``len(rows)`` rows that were pushed; ``slot`` is the place of the oldest, which goes next."""

    rows: Tensor
    slot: Tensor

    def __init__(self, rows: Tensor) -> None:
        super().__init__()
        self.register_buffer("rows", rows)
        self.register_buffer("slot", torch.zeros((), dtype=torch.int64))

    @torch.no_grad()
    def push(self, rows: Tensor) -> None:
        """Replaces the oldest rows. Shapes: (n, D) with n at most the length of the ring."""
        assert len(rows) <= len(self.rows), "a batch must fit into its queue"
        places = (self.slot + torch.arange(len(rows), device=rows.device)).remainder_(len(self.rows))
        self.rows.index_copy_(0, places, rows.to(self.rows.dtype))
        self.slot.add_(len(rows)).remainder_(len(self.rows))
