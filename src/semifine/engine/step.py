"""One training step on the device; nothing in it waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from torch import Tensor

from semifine.engine.devices import Fabric
from semifine.engine.history import LabelHistory
from semifine.engine.learner import Learner
from semifine.engine.meters import NumberMeter, PseudoLabelMeter
from semifine.engine.nonfinite import NonFiniteWatch, undone_unless
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
    """Whether a batch whose loss is not finite leaves no trace in the network."""

    def __call__(self, batch: Batch, progress: Progress) -> None:
        self.learner.optimiser.zero_grad()
        finite: list[Tensor] = []
        with undone_unless(self.learner.classifier, finite) if self.skips else nullcontext():
            result = self.method(self.learner.networks, batch, progress)
            self.fabric.backward(result.loss)
            finite.append(self.watch.see(result.loss))
        self.learner.optimiser.step()
        self.learner.average()
        self.numbers.update(result.numbers)
        if result.pseudo_labels is not None and batch.index is not None:
            self.pseudo_labels.update(result.pseudo_labels, batch.index)
            self.history.update(result.pseudo_labels, batch.index)

    def read_numbers(self) -> dict[str, float]:
        """Means since the last reading; here the host waits for the device."""
        return {**self.numbers.read(), **self.pseudo_labels.read()}
