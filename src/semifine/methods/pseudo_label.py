"""Pseudo-Label: confident predictions are the labels of the same view (Lee, 2013; as in Su et al., 2021)."""

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
    threshold: float = setting(0.95, "confidence above which a prediction is a hard label", low=0)
    factor: float = setting(10.0, "weight of a pseudo-labeled image relative to a labeled one", low=0)
    ramp: float = setting(
        0.1, "fraction of the run over which the weight of the unlabeled loss increases", low=0, high=1
    )
    weight: float = setting(1.0, "weight of the unlabeled loss at the end of the ramp", low=0)
    second_pass: bool = setting(
        True, "compute the loss in a second forward pass, as in the released code; false: same gradients, half the cost"
    )


class PseudoLabel(Method):
    """loss = 1/(B + B_u) (sum_labeled CE + coef sum_unlabeled CE(target)).

    The target is ``factor`` times one-hot if the prediction is confident. Otherwise it is the prediction, so that the
    gradient is zero. coef = weight exp(-5 (1 - min(t / ramp, 1))^2).
    """

    name = "pseudo_label"
    title = "Pseudo-Label"
    color = "green"
    summary = "confident predictions are hard labels of the same view"
    Settings = PseudoLabelSettings
    unlabeled_views = ("weak",)
    cuda_graph_safe = True

    steps: Tensor
    """Number of steps with unlabeled images."""

    def __init__(self, settings: PseudoLabelSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        # A counter on the device instead of ``progress``, so that a CUDA graph can replay the step.
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        views = batch.labeled["weak"], batch.unlabeled["weak"]
        labeled, unlabeled = networks(*views)
        labeled_fraction = len(views[0]) / (len(views[0]) + len(views[1]))
        supervised = labeled_fraction * supervised_cross_entropy(labeled.logits, batch.label)
        pseudo = self.pseudo_labels(predicted_probabilities(unlabeled.logits))
        if self.settings.second_pass:
            _, unlabeled = networks(*views)
        consistency = (1 - labeled_fraction) * soft_cross_entropy(unlabeled.logits, self.targets(pseudo))
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
        """Returns (B, K) targets of the loss: hard labels are multiplied by ``factor``."""
        return pseudo.target * torch.where(pseudo.accepted > 0, self.settings.factor, 1.0)[:, None]


def ramp_up(step: Tensor, length: float) -> Tensor:
    """Returns exp(-5 (1 - min(t / length, 1))^2), which increases from e^-5 at step 0 to 1.

    Args:
        step: Scalar, number of completed steps t.
        length: Number of steps until the value is 1.

    Example:
        >>> ramp_up(torch.tensor(7), length=5)
        tensor(1.)
    """
    fraction = (step / max(length, 1e-9)).clamp(max=1)
    return torch.exp(-5 * (1 - fraction) ** 2)
