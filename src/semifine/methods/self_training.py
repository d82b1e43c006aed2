"""Self-training by distillation: a trained network labels every image softly for a new one (as Su et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from semifine.errors import UserError
from semifine.fields import setting
from semifine.losses import distillation_loss, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.models.forward import Networks


@dataclass(frozen=True)
class SelfTrainingSettings:
    teacher: str | None = setting(
        None, "run folder or weights file of the supervised network to learn from", is_path=True
    )
    weight: float = setting(
        0.7, "share of the teacher in the loss, the rest is that of the labels (alpha)", low=0, high=1
    )
    temperature: float = setting(1.0, "above 1 the teacher's predictions are softened", low=1e-6)


class SelfTraining(Method):
    """loss = (1 - alpha) L_s + alpha T^2/(B + B_u) sum_all KL(teacher || student).

    Teacher and student see the same weak views, labeled ones too.
    """

    name = "self_training"
    title = "Self-Training"
    color = "sky"
    summary = "learns the soft predictions of a network that was trained on the labeled images"
    Settings = SelfTrainingSettings
    unlabeled_views = ("weak",)
    cuda_graph_safe = True

    @classmethod
    def frozen_network(cls, settings: Any) -> str:
        if not settings.teacher:
            raise UserError(
                "The method 'self_training' learns from a trained network: name its run folder or weights file "
                "with --method.teacher."
            )
        return str(settings.teacher)

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        views = batch.labeled["weak"], batch.unlabeled["weak"]
        labeled, unlabeled = networks(*views)
        taught_labeled, taught = networks.forward_frozen(*views)
        supervised = supervised_cross_entropy(labeled.logits, batch.label)
        distillation = distillation_loss(
            torch.cat([labeled.logits, unlabeled.logits]),
            torch.cat([taught_labeled.logits, taught.logits]),
            self.settings.temperature,
        )
        loss = (1 - self.settings.weight) * supervised + self.settings.weight * distillation
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": distillation.detach(),
        }
        return StepResult(loss, metrics, self.pseudo_labels(predicted_probabilities(taught.logits)))

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return soft_pseudo_labels(probs, threshold=0.0)
