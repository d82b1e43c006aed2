"""FixMatch: confident predictions on weak views are the hard labels of strong views (Sohn et al., 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    DataInfo,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    hard_pseudo_labels,
    soft_pseudo_labels,
)
from semifine.methods.levers import Levers, LeverSettings
from semifine.models.forward import Networks, Output

WeightedLosses = dict[str, tuple[float, Tensor]]
"""Weights and values of losses by name."""


@dataclass(frozen=True)
class FixMatchSettings(LeverSettings):
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

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.levers = Levers(settings, info)
        self.needs_ema = self.levers.needs_ema  # type: ignore[misc]  # depends on the settings

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        labeled, weak, strong = self.levers.forward_views(
            networks, batch.labeled["weak"], batch.unlabeled["weak"], batch.unlabeled["strong"]
        )
        supervised = self.labeled_loss(labeled.logits, batch.label, progress)
        assert batch.index is not None
        pseudo = self.train_labels(self.levers.predict(weak.logits), batch.index)
        consistency = self.unlabeled_loss(strong, pseudo)
        loss = supervised + self.settings.weight * consistency
        metrics = {
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        for name, (weight, value) in self.further_losses(labeled, strong, pseudo, batch).items():
            loss = loss + weight * value
            metrics[f"loss_{name}"] = value.detach()
        return StepResult(loss, {"loss": loss.detach(), **metrics}, pseudo)

    def labeled_loss(self, logits: Tensor, label: Tensor, progress: Progress) -> Tensor:  # noqa: ARG002
        """Returns the loss L_s of the labeled images. Shapes: (B, K), (B,) -> ()."""
        return supervised_cross_entropy(self.levers.adjust_labeled(logits), label)

    def unlabeled_loss(self, strong: Output, pseudo: PseudoLabels) -> Tensor:
        """Returns the loss of the strong views with their pseudo-labels."""
        return soft_cross_entropy(self.levers.adjust_unlabeled(strong.logits), pseudo.target, pseudo.accepted)

    def further_losses(self, labeled: Output, strong: Output, pseudo: PseudoLabels, batch: Batch) -> WeightedLosses:  # noqa: ARG002
        """Returns weight and value of additional losses by name. Default: none."""
        return {}

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:  # noqa: ARG002
        """Returns the pseudo-labels of a training step, of (B, K) probabilities after the levers.

        Subclasses may update their state here.
        """
        return self.make_labels(probs)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return replace(self.make_labels(self.levers.correct(probs)), probs=probs)

    def make_labels(self, probs: Tensor) -> PseudoLabels:
        """Returns the pseudo-labels of (B, K) probabilities after the levers, without changing the state."""
        if self.settings.labels == "hard":
            return hard_pseudo_labels(probs, self.settings.threshold)
        pseudo = soft_pseudo_labels(probs, self.settings.threshold)
        return replace(pseudo, target=self.levers.sharpen(pseudo.target))
