"""Losses that are not finite numbers: noticed on the device, told when numbers are read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from semifine.errors import UserError

NEVER = -1
SHOWN_PATHS = 5


class NonFiniteWatch:
    """Remembers the first step whose loss was not finite, and how many there were, without a wait for the device."""

    def __init__(self, device: torch.device) -> None:
        self._step = torch.zeros((), dtype=torch.int64, device=device)
        self._first = torch.full((), NEVER, dtype=torch.int64, device=device)
        self._count = torch.zeros((), dtype=torch.int64, device=device)

    def begin_at(self, step: int) -> None:
        self._step.fill_(step)

    def see(self, loss: Tensor) -> Tensor:
        """Counts one step; whether its loss is finite."""
        finite = torch.isfinite(loss.detach())
        self._first.copy_(torch.where(~finite & (self._first == NEVER), self._step, self._first))
        self._count.add_(~finite)
        self._step.add_(1)
        return finite

    def read(self) -> tuple[int | None, int]:
        """The first such step, or None, and the number of them; the host waits here."""
        first, count = torch.stack([self._first, self._count]).tolist()
        return (None if first == NEVER else first), count


def nonfinite_error(step: int, paths: Sequence[str]) -> UserError:
    """What a person can do about a loss that ended the run; ``paths`` are the images of its batch."""
    return UserError(
        f"The loss of step {step} is not a finite number; its batch of {len(paths)} images begins with "
        f"{', '.join(paths[:SHOWN_PATHS])}. "
        "The last checkpoint is from before it: lower --lr or look at these images and go on with --resume, or "
        "leave such batches out with --on-nonfinite skip."
    )


@contextmanager
def undone_unless(network: nn.Module, seen: list[Tensor]) -> Iterator[None]:
    """What one pass changes in the network, gradients and statistics, counts only if the loss in ``seen`` is finite."""
    buffers = list(network.buffers())
    before = [buffer.clone() for buffer in buffers]
    yield
    finite = seen[0]
    for buffer, old in zip(buffers, before, strict=True):
        buffer.copy_(torch.where(finite, buffer, old))
    for parameter in network.parameters():
        if parameter.grad is not None:
            parameter.grad.copy_(torch.where(finite, parameter.grad, torch.zeros_like(parameter.grad)))
