"""Supervised learning on the labeled images only: the baseline."""

from __future__ import annotations

from typing import Any, ClassVar

from semifine.methods.base import Batch, DataInfo, Group, Method, Progress, StepResult
from semifine.methods.levers import LabeledLeverSettings, Levers
from semifine.models.forward import Networks


class Supervised(Method):
    """loss = 1/B sum CE(y, f(weak(x))).

    Other methods use it for steps on labeled images only, with their own settings.
    """

    name = "supervised"
    title = "Supervised"
    color = "black"
    group: ClassVar[Group] = "baseline"
    summary = "cross-entropy on the labeled images only (baseline)"
    cuda_graph_safe = True
    supports_mixup = True
    Settings: ClassVar[type] = LabeledLeverSettings

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.levers = Levers(settings, info)

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        (labeled,) = networks(batch.labeled_images("weak"))
        loss = batch.labeled_loss(self.levers.adjust_labeled(labeled.logits))
        # During supervised_warmup the network may have heads of another method. DistributedDataParallel needs a
        # gradient of every parameter, so their gradient is zero.
        for output in labeled.heads.values():
            loss = loss + 0.0 * output.sum()
        return StepResult(loss, {"loss": loss.detach()})
