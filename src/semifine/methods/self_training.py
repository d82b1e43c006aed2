"""Self-training by distillation: a student learns the predictions of a trained teacher (as in Su et al., 2021)."""

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
    teacher: str | None = setting(None, "run folder or weights file of the teacher, a trained network", is_path=True)
    weight: float = setting(
        0.7, "weight of the distillation loss (alpha); the supervised loss has weight 1 - alpha", low=0, high=1
    )
    temperature: float = setting(
        1.0, "temperature of the distillation loss (T); values above 1 soften the predictions", low=1e-6
    )


class SelfTraining(Method):
    """loss = (1 - alpha) L_s + alpha T^2/(B + B_u) sum_all KL(teacher || student).

    The distillation loss covers labeled and unlabeled images. Teacher and student get the same weak views.
    """

    name = "self_training"
    title = "Self-Training"
    color = "sky"
    summary = "distillation: learns the predictions of a network that was trained on the labeled images"
    supports_frozen_stages = False  # the teacher takes images
    Settings = SelfTrainingSettings
    unlabeled_views = ("weak",)
    cuda_graph_safe = True

    @classmethod
    def frozen_network(cls, settings: Any) -> str:
        if not settings.teacher:
            raise UserError(
                "The method 'self_training' needs a trained network; set --method.teacher to its run folder or weights "
                "file."
            )
        return str(settings.teacher)

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        views = batch.labeled["weak"], batch.unlabeled["weak"]
        labeled, unlabeled = networks(*views)
        teacher_labeled, teacher_unlabeled = networks.forward_frozen(*views)
        supervised = supervised_cross_entropy(labeled.logits, batch.label)
        distillation = distillation_loss(
            torch.cat([labeled.logits, unlabeled.logits]),
            torch.cat([teacher_labeled.logits, teacher_unlabeled.logits]),
            self.settings.temperature,
        )
        loss = (1 - self.settings.weight) * supervised + self.settings.weight * distillation
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": distillation.detach(),
        }
        return StepResult(loss, metrics, self.pseudo_labels(predicted_probabilities(teacher_unlabeled.logits)))

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return soft_pseudo_labels(probs, threshold=0.0)
