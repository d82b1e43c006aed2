"""One training step on the device; nothing in it waits for the host."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from semifine.engine.averaging import update_teacher
from semifine.engine.devices import Fabric
from semifine.engine.history import LabelHistory
from semifine.engine.meters import NumberMeter, PseudoLabelMeter
from semifine.engine.nonfinite import NonFiniteWatch, undone_unless
from semifine.methods.base import Batch, Method, Progress
from semifine.models.networks import Networks

StepFunction = Callable[[Batch, Progress], None]


@dataclass(frozen=True)
class TrainStep:
    """Forward, backward, optimiser, average and meters, always the same operations in the same order."""

    fabric: Fabric
    method: Method
    networks: Networks
    optimiser: Any
    classifier: nn.Module
    teacher: nn.Module | None
    ema: float
    numbers: NumberMeter
    pseudo_labels: PseudoLabelMeter
    history: LabelHistory
    watch: NonFiniteWatch
    skips: bool
    """Whether a batch whose loss is not finite leaves no trace in the network."""

    def __call__(self, batch: Batch, progress: Progress) -> None:
        self.optimiser.zero_grad()
        finite: list[Tensor] = []
        with undone_unless(self.classifier, finite) if self.skips else nullcontext():
            result = self.method(self.networks, batch, progress)
            self.fabric.backward(result.loss)
            finite.append(self.watch.see(result.loss))
        self.optimiser.step()
        if self.teacher is not None:
            update_teacher(self.teacher, self.classifier, self.ema)
        self.numbers.update(result.numbers)
        if result.pseudo_labels is not None and batch.index is not None:
            self.pseudo_labels.update(result.pseudo_labels, batch.index)
            self.history.update(result.pseudo_labels, batch.index)

    def read_numbers(self) -> dict[str, float]:
        """Means since the last reading; here the host waits for the device."""
        return {**self.numbers.read(), **self.pseudo_labels.read()}
