"""Pseudo-Label: confident predictions train the very view that they were made on (Lee, 2013; as Su et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import Batch, DataInfo, Method, Progress, PseudoLabels, StepResult, predicted_probabilities
from semifine.models.forward import Networks


@dataclass(frozen=True)
class PseudoLabelSettings:
    threshold: float = setting(0.95, "confidence above which a prediction becomes a hard label", low=0)
    factor: float = setting(10.0, "how much more than a labeled image a hard label pulls", low=0)
    ramp: float = setting(0.1, "share of the run over which the weight of the unlabeled loss rises", low=0, high=1)
    weight: float = setting(1.0, "weight of the unlabeled loss at the end of the ramp", low=0)
    second_pass: bool = setting(
        True, "released code: the labels train a second pass; without it gradients are the same, at half the cost"
    )


class PseudoLabel(Method):
    """loss = 1/(B + B_u) (sum_labeled CE + coef sum_unlabeled CE(target)).

    Both means run over the whole batch. The target is ``factor`` times one-hot where the network is confident, else
    the prediction itself, which has no gradient: a confident image pulls, another one does not.
    coef = weight exp(-5 (1 - min(t / ramp, 1))^2).
    """

    name = "pseudo_label"
    title = "Pseudo-Label"
    color = "green"
    summary = "confident predictions become hard labels of the same view"
    Settings = PseudoLabelSettings
    unlabeled_views = ("weak",)
    cuda_graph_safe = True

    steps: Tensor

    def __init__(self, settings: PseudoLabelSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        # on the device and not from ``progress``, so that a step is always the same operations
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        views = batch.labeled["weak"], batch.unlabeled["weak"]
        labeled, unlabeled = networks(*views)
        share = len(views[0]) / (len(views[0]) + len(views[1]))
        supervised = share * supervised_cross_entropy(labeled.logits, batch.label)
        pseudo = self.pseudo_labels(predicted_probabilities(unlabeled.logits))
        if self.settings.second_pass:
            _, unlabeled = networks(*views)
        consistency = (1 - share) * soft_cross_entropy(unlabeled.logits, self.targets(pseudo))
        coefficient = self.settings.weight * ramp_up(self.steps, self.settings.ramp * progress.total)
        loss = supervised + coefficient * consistency
        self.steps.add_(1)
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        confidence, prediction = probs.max(dim=1)
        accepted = confidence > self.settings.threshold
        hard = one_hot(prediction, probs.shape[1]).to(probs.dtype)
        return PseudoLabels(probs, torch.where(accepted[:, None], hard, probs), accepted.to(probs.dtype))

    def targets(self, pseudo: PseudoLabels) -> Tensor:
        """(B, K) what the loss sees: a hard label is ``factor`` times one-hot."""
        return pseudo.target * torch.where(pseudo.accepted > 0, self.settings.factor, 1.0)[:, None]


def ramp_up(step: Tensor, length: float) -> Tensor:
    """exp(-5 (1 - min(t / length, 1))^2): from e^-5 at step 0 to 1."""
    done = (step / max(length, 1e-9)).clamp(max=1)
    return torch.exp(-5 * (1 - done) ** 2)
