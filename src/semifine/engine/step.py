"""One training step on the device; nothing in it waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from semifine.engine.devices import Fabric
from semifine.engine.history import LabelHistory
from semifine.engine.learner import Learner
from semifine.engine.meters import NumberMeter, PseudoLabelMeter
from semifine.engine.nonfinite import NonFiniteWatch, copied, restore_unless
from semifine.methods.base import Batch, Method, Progress

StepFunction = Callable[[Batch, Progress], None]


@dataclass(frozen=True)
class TrainStep:
    """Forward, backward, optimiser, average and meters, always the same operations in the same order."""

    fabric: Fabric
    method: Method
    learner: Learner
    numbers: NumberMeter
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
        self.learner.optimiser.zero_grad()
        result = self.method(self.learner.networks, batch, progress)
        self.fabric.backward(result.loss)
        finite = self.watch.see(result.loss)
        self.learner.optimiser.step()
        self.learner.average()
        self.numbers.update(result.numbers)
        if result.pseudo_labels is not None and batch.index is not None:
            self.pseudo_labels.update(result.pseudo_labels, batch.index)
            self.history.update(result.pseudo_labels, batch.index)
        return finite

    def _state(self) -> dict[str, Tensor]:
        """All that a step changes, but for the watch over it."""
        parts = {
            "learner": self.learner.state(),
            "method": dict(self.method.named_buffers()),
            "history": dict(self.history.named_buffers()),
            "numbers": self.numbers.sums(),
            "pseudo_labels": self.pseudo_labels.sums(),
        }
        return {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}

    def read_numbers(self) -> dict[str, float]:
        """Means since the last reading; here the host waits for the device."""
        return {**self.numbers.read(), **self.pseudo_labels.read()}
