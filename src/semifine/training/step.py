"""One training step: forward, loss, backward, optimizer, EMA, statistics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from semifine.config import TrainSettings
from semifine.config.train_settings import seed_for
from semifine.distributed import all_reduce_sum
from semifine.errors import UserError
from semifine.methods.base import Batch, Method, Progress
from semifine.training.fabric import Fabric
from semifine.training.meters import AverageMeter, LabelHistory, PseudoLabelMeter
from semifine.training.state import TrainState


@dataclass(frozen=True)
class TrainStep:
    """Trains on one batch.

    Every call runs the same operations in the same order and never waits for the device, so it can be captured as a
    CUDA graph. The batch comes from ``loader.py`` with its images already augmented.
    """

    fabric: Fabric
    method: Method
    train_state: TrainState
    metrics: AverageMeter
    pseudo_labels: PseudoLabelMeter
    history: LabelHistory
    guard: NonFiniteGuard
    skip_nonfinite: bool
    """Undo the step if its loss is not finite. This copies the whole state in every step."""
    clip_grad: float | None = None
    """Largest norm of the gradient of all parameters."""

    def __call__(self, batch: Batch, progress: Progress) -> None:
        if not self.skip_nonfinite:
            self._train(batch, progress)
            return
        before = clone_tensors(self._tensors())
        finite = self._train(batch, progress)
        restore_unless(finite, self._tensors(), before)

    def _train(self, batch: Batch, progress: Progress) -> Tensor:
        """Returns whether the loss is finite, a bool scalar on the device."""
        # Forward and loss: the method runs the networks on the views of the batch (methods/soc.py, for example).
        self.train_state.optimizer.zero_grad()
        result = self.method(self.train_state.networks, batch, progress)

        # Backward
        self.fabric.backward(result.loss)
        finite = self.guard.update(result.loss)

        # Optimizer and EMA
        if self.clip_grad is not None:
            student, optimizer = self.train_state.student, self.train_state.optimizer
            self.fabric.clip_gradients(student, optimizer, max_norm=self.clip_grad, error_if_nonfinite=False)
        self.train_state.optimizer.step()
        self.train_state.update_ema()

        # Statistics
        self.metrics.update(result.metrics)
        if result.pseudo_labels is not None and batch.index is not None:
            self.pseudo_labels.update(result.pseudo_labels, batch.index)
            self.history.update(result.pseudo_labels, batch.index)
        return finite

    def _tensors(self) -> dict[str, Tensor]:
        """All tensors that a step changes, except the tensors of the guard."""
        parts = {
            "train_state": self.train_state.tensors(),
            "method": dict(self.method.named_buffers()),
            "history": dict(self.history.named_buffers()),
            "metrics": self.metrics.tensors(),
            "pseudo_labels": self.pseudo_labels.tensors(),
        }
        return {f"{part}.{name}": value for part, tensors in parts.items() for name, value in tensors.items()}


def seed_random_layers(settings: TrainSettings, step: int, rank: int) -> None:
    """Seeds the layers that draw random numbers in training (drop path), so that they depend on the step alone.

    The seed of a GPU is set without waiting for it; a CUDA graph reads the seed at each replay.
    """
    torch.manual_seed(seed_for("views", settings, f"layers {step} {rank}"))


NEVER = -1


class NonFiniteGuard(nn.Module):
    """Counts the steps whose loss is not finite and remembers the first one, without waiting for the device.

    Processes share their gradients, so a step counts if the loss of any process is not finite. The buffers are part of
    a checkpoint, so that a resumed run continues the count.
    """

    first: Tensor
    count: Tensor
    _step: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("_step", torch.zeros((), dtype=torch.int64), persistent=False)
        self.register_buffer("first", torch.full((), NEVER))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def start_at(self, step: int) -> None:
        """Sets the number of the next step."""
        self._step.fill_(step)

    def reset(self) -> None:
        """Forgets the steps counted so far."""
        self.first.fill_(NEVER)
        self.count.zero_()

    def update(self, loss: Tensor) -> Tensor:
        """Counts one step and returns whether its loss is finite in every process."""
        finite = all_reduce_sum((~torch.isfinite(loss.detach())).long()) == 0
        self.first.copy_(torch.where(~finite & (self.first == NEVER), self._step, self.first))
        self.count.add_(~finite)
        self._step.add_(1)
        return finite

    def read(self) -> tuple[int | None, int]:
        """Returns the first such step, or None, and the number of such steps. Waits for the device."""
        first, count = torch.stack([self.first, self.count]).tolist()
        return (None if first == NEVER else first), count


NUM_PATHS_IN_ERROR = 5


def nonfinite_error(step: int, paths: Sequence[str]) -> UserError:
    """Returns the error for a run that stops because of a non-finite loss; ``paths`` are the images of its batch."""
    return UserError(
        f"The loss of step {step} is not a finite number; its batch of {len(paths)} images begins with "
        f"{', '.join(paths[:NUM_PATHS_IN_ERROR])}. "
        "The step was not saved: check these images, then start another run with a lower --lr, or continue with "
        "--resume --on-nonfinite skip, which skips such batches."
    )


def clone_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns detached copies."""
    return {name: value.detach().clone() for name, value in tensors.items()}


@torch.no_grad()
def restore_unless(finite: Tensor, tensors: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> None:
    """Writes the values ``before`` back into ``tensors`` unless ``finite``, without waiting for the device.

    Tensors that the first step creates are reset to zero, which is how momentum and sums start. A tensor whose shape
    the step changed (the window of class transitions, empty until its width is known) keeps its values.

    Example:
        >>> weight, before = {"weight": torch.ones(2)}, {"weight": torch.zeros(2)}
        >>> restore_unless(torch.tensor(False), weight, before)
        >>> weight["weight"]
        tensor([0., 0.])
    """
    for name, value in tensors.items():
        old = before.get(name)
        if old is None:
            old = torch.zeros_like(value)
        if old.shape == value.shape:
            torch.where(finite, value, old, out=value)
