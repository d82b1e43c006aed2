"""FixMatch: confident predictions on weak views become hard labels for strong views (Sohn et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from semifine.config.schema import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    hard_pseudo_labels,
    predicted_probabilities,
)
from semifine.models.networks import Networks


@dataclass(frozen=True)
class FixMatchSettings:
    threshold: float = setting(0.95, "confidence from which a prediction becomes a label (tau)", low=0)
    weight: float = setting(1.0, "weight of the unlabelled loss (lambda)", low=0)


class FixMatch(Method):
    """loss = L_s + lambda 1/(mu B) sum [conf >= tau] CE(phat, f(strong(u)))."""

    name = "fixmatch"
    summary = "hard labels where the prediction on the weak view is confident"
    capturable = True
    Settings = FixMatchSettings
    unlabelled_views = ("weak", "strong")

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        labelled, weak, strong = networks(
            batch.labelled["weak"], batch.unlabelled["weak"], batch.unlabelled["strong"], without_gradient=(1,)
        )
        supervised = supervised_cross_entropy(labelled.logits, batch.label)
        pseudo = self.pseudo_labels(predicted_probabilities(weak.logits))
        consistency = soft_cross_entropy(strong.logits, pseudo.target, pseudo.accepted)
        loss = supervised + self.settings.weight * consistency
        numbers = {
            "loss": loss.detach(),
            "loss_labelled": supervised.detach(),
            "loss_unlabelled": consistency.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, numbers, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return hard_pseudo_labels(probs, self.settings.threshold)
