"""Mean Teacher: the network agrees with the average of its weights on another view (Tarvainen and Valpola, 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from semifine.fields import setting
from semifine.losses import supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    DataInfo,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.methods.levers import LabeledLeverSettings, Levers
from semifine.methods.pseudo_label import ramp_up
from semifine.models.forward import Networks


@dataclass(frozen=True)
class MeanTeacherSettings(LabeledLeverSettings):
    weight: float = setting(50.0, "weight of the consistency loss at the end of the ramp", low=0)
    ramp: float = setting(
        0.4, "fraction of the run over which the weight of the consistency loss increases", low=0, high=1
    )


class MeanTeacher(Method):
    """loss = L_s + w(t) 1/(mu B K) sum |softmax f(weak(u)) - softmax f'(weak'(u))|^2, with the averaged network f'.

    w(t) = weight exp(-5 (1 - min(t / ramp, 1))^2). Both networks get their own weak view. ``ema`` is the decay of the
    averaged network, whose batch norms use the statistics of the batch.

    The paper's consistency loss also covers the labeled images; here it covers the unlabeled ones.
    """

    name = "mean_teacher"
    title = "Mean Teacher"
    color = "green"
    line_style = "-."
    summary = "consistency with the predictions of the averaged network on another weak view"
    Settings = MeanTeacherSettings
    unlabeled_views = ("weak", "weak:2")
    needs_ema = True
    cuda_graph_safe = True

    steps: Tensor
    """Number of steps with unlabeled images."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.levers = Levers(settings, info)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        labeled, unlabeled = networks(batch.labeled["weak"], batch.unlabeled["weak"])
        (teacher,) = networks.forward_ema(batch.unlabeled["weak:2"])
        supervised = supervised_cross_entropy(self.levers.adjust_labeled(labeled.logits), batch.label)
        pseudo = self.pseudo_labels(predicted_probabilities(teacher.logits))
        consistency = mse_loss(torch.softmax(unlabeled.logits.float(), dim=1), pseudo.target)
        weight = self.settings.weight * ramp_up(self.steps, self.settings.ramp * progress.total)
        self.steps.add_(1)
        loss = supervised + weight * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return soft_pseudo_labels(probs, threshold=0.0)
