"""Losses that are not finite numbers: noticed on the device, told when numbers are read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from semifine.engine.meters import sum_over_processes
from semifine.errors import UserError

NEVER = -1
SHOWN_PATHS = 5


class NonFiniteWatch(nn.Module):
    """Remembers the first step whose loss was not finite, and how many there were, without a wait for the device.

    Processes share their gradients, so a loss that is not finite in one of them counts in all. Its buffers are part of
    a checkpoint, so that a resumed run counts on.
    """

    first: Tensor
    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self._step: Tensor
        self.register_buffer("_step", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("first", torch.full((), NEVER))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def begin_at(self, step: int) -> None:
        self._step.fill_(step)

    def forget(self) -> None:
        """What was skipped so far is no reason to stop."""
        self.first.fill_(NEVER)
        self.count.zero_()

    def see(self, loss: Tensor) -> Tensor:
        """Counts one step; whether its loss is finite in every process."""
        finite = sum_over_processes((~torch.isfinite(loss.detach())).long()) == 0
        self.first.copy_(torch.where(~finite & (self.first == NEVER), self._step, self.first))
        self.count.add_(~finite)
        self._step.add_(1)
        return finite

    def read(self) -> tuple[int | None, int]:
        """The first such step, or None, and the number of them; the host waits here."""
        first, count = torch.stack([self.first, self.count]).tolist()
        return (None if first == NEVER else first), count


def nonfinite_error(step: int, paths: Sequence[str]) -> UserError:
    """What a person can do about a loss that ended the run; ``paths`` are the images of its batch."""
    return UserError(
        f"The loss of step {step} is not a finite number; its batch of {len(paths)} images begins with "
        f"{', '.join(paths[:SHOWN_PATHS])}. "
        "Nothing of it is saved: look at these images, then begin another run with a lower --lr, or go on with "
        "--resume --on-nonfinite skip, which leaves such batches out."
    )


def copied(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in state.items()}


@torch.no_grad()
def restore_unless(finite: Tensor, state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Writes what was before over the state, unless ``finite``; the host does not look which.

    What the very first step makes has nothing to go back to: momentum and sums began at zero, and the window of
    transitions, which only then gets its width, at none.
    """
    for name, value in state.items():
        old = before.get(name)
        if old is None:
            old = torch.zeros_like(value)
        if old.shape == value.shape:
            torch.where(finite, value, old, out=value)
