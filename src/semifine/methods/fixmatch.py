"""FixMatch: confident predictions on weak views are the hard labels of strong views (Sohn et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    hard_pseudo_labels,
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.models.forward import Networks


@dataclass(frozen=True)
class FixMatchSettings:
    threshold: float = setting(0.95, "smallest confidence of an accepted pseudo-label (tau)", low=0)
    weight: float = setting(1.0, "weight of the unlabeled loss (lambda)", low=0)
    labels: Literal["hard", "soft"] = setting("hard", "hard: the predicted class; soft: the predicted probabilities")


class FixMatch(Method):
    """loss = L_s + lambda 1/(mu B) sum [conf >= tau] CE(phat, f(strong(u))).

    With ``labels="soft"`` the target is p, as in Variant 3 of the SoC paper.
    """

    name = "fixmatch"
    title = "FixMatch"
    color = "vermilion"
    summary = "hard labels for strong views from confident predictions on weak views"
    Settings: ClassVar[type] = FixMatchSettings
    unlabeled_views = ("weak", "strong")
    cuda_graph_safe = True

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        labeled, weak, strong = networks(
            batch.labeled["weak"], batch.unlabeled["weak"], batch.unlabeled["strong"], without_gradient=(1,)
        )
        supervised = supervised_cross_entropy(labeled.logits, batch.label)
        assert batch.index is not None
        pseudo = self.train_labels(predicted_probabilities(weak.logits), batch.index)
        consistency = soft_cross_entropy(strong.logits, pseudo.target, pseudo.accepted)
        loss = supervised + self.settings.weight * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, metrics, pseudo)

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:  # noqa: ARG002
        """Returns the pseudo-labels of a training step. Subclasses may update their state here."""
        return self.pseudo_labels(probs)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        make_labels = hard_pseudo_labels if self.settings.labels == "hard" else soft_pseudo_labels
        return make_labels(probs, self.settings.threshold)
