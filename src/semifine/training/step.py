"""One training step on the device, its CUDA graph, and the guard against non-finite losses."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semifine.distributed import all_reduce_sum
from semifine.errors import UserError
from semifine.methods.base import Batch, Method, Progress
from semifine.training.fabric import Fabric
from semifine.training.meters import AverageMeter, PseudoLabelMeter
from semifine.training.sample_stats import LabelHistory
from semifine.training.state import TrainState

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
        finite = all_reduce_sum((~torch.isfinite(loss.detach())).long()) == 0
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


StepFunction = Callable[[Batch, Progress], None]


@dataclass(frozen=True)
class TrainStep:
    """Forward, backward, optimizer, average and meters, always the same operations in the same order."""

    fabric: Fabric
    method: Method
    train_state: TrainState
    numbers: AverageMeter
    pseudo_labels: PseudoLabelMeter
    history: LabelHistory
    watch: NonFiniteWatch
    skips: bool
    """Whether a batch whose loss is not finite leaves no trace; it takes a copy of the state at every step."""

    def __call__(self, batch: Batch, progress: Progress) -> None:
        if not self.skips:
            self._train(batch, progress)
            return
        before = copied(self._state())
        finite = self._train(batch, progress)
        restore_unless(finite, self._state(), before)

    def _train(self, batch: Batch, progress: Progress) -> Tensor:
        """Whether the loss was finite, as a boolean on the device."""
        self.train_state.optimizer.zero_grad()
        result = self.method(self.train_state.networks, batch, progress)
        self.fabric.backward(result.loss)
        finite = self.watch.see(result.loss)
        self.train_state.optimizer.step()
        self.train_state.average()
        self.numbers.update(result.metrics)
        if result.pseudo_labels is not None and batch.index is not None:
            self.pseudo_labels.update(result.pseudo_labels, batch.index)
            self.history.update(result.pseudo_labels, batch.index)
        return finite

    def _state(self) -> dict[str, Tensor]:
        """All that a step changes, but for the watch over it."""
        parts = {
            "learner": self.train_state.state(),
            "method": dict(self.method.named_buffers()),
            "history": dict(self.history.named_buffers()),
            "numbers": self.numbers.sums(),
            "pseudo_labels": self.pseudo_labels.sums(),
        }
        return {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}

    def read_numbers(self) -> dict[str, float]:
        """Means since the last reading; here the host waits for the device."""
        return {**self.numbers.read(), **self.pseudo_labels.read()}


WARM_UP = 3
"""Steps before the recording: lazy set-ups, compilation and the choice of algorithms happen in them."""


class GraphedStep:
    """Runs a step as it is a few times, records it, and replays the recording from then on.

    A graph has its own copy of the batch, at fixed addresses. Where a step cannot be recorded, it goes on as it
    is, and says so once.
    """

    def __init__(self, step: StepFunction, log: Callable[[str], None]) -> None:
        self._step = step
        self._log = log
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._batch: Batch | None = None
        self._works = True

    def __call__(self, batch: Batch, progress: Progress) -> None:
        self._calls += 1
        if self._calls <= WARM_UP or not self._works:
            self._step(batch, progress)
            return
        if self._graph is None and not self._record(batch, progress):
            self._step(batch, progress)
            return
        assert self._graph is not None
        assert self._batch is not None
        torch._foreach_copy_(self._batch.tensors(), batch.tensors(), non_blocking=True)
        self._graph.replay()

    def _record(self, batch: Batch, progress: Progress) -> bool:
        self._batch = batch.clone()
        graph = torch.cuda.CUDAGraph()
        # On the stream that trains, so that gradients are added up on no other one.
        torch.cuda.synchronize()
        try:
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._step(self._batch, progress)
        except RuntimeError as error:
            self._works = False
            self._batch = None
            reason = str(error).strip().splitlines()[0]
            self._log(f"The step cannot be a CUDA graph ({reason}); training goes on without one.")
            return False
        self._graph = graph
        return True
