"""ABC: an auxiliary classifier that learns from equally many images of each class (Lee et al., NeurIPS 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

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
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.methods.components import hashed_uniform
from semifine.models.forward import Networks

BASE = "base"
"""Name of the head that FixMatch trains. The classifier of the run is the auxiliary balanced one."""


@dataclass(frozen=True)
class ABCSettings:
    threshold: float = setting(0.95, "smallest confidence of an accepted pseudo-label (tau)", low=0)
    weight: float = setting(1.0, "weight of FixMatch's unlabeled loss on the additional head", low=0)
    weight_balanced: float = setting(1.0, "weight of the unlabeled loss of the balanced classifier", low=0)


class ABC(Method):
    """loss = L_FixMatch(h_base) + 1/B sum M(x) CE(y, f(x)) + 1/(mu B) sum M(u) [max q >= tau] CE(q, f(strong(u))).

    f is the auxiliary balanced classifier on the same features, and q its prediction on the weak view. M(x) is 1 with
    probability N_min / N_y, where N_c is the number of labeled images of class c. M(u) uses the predicted class. Its
    probability decreases linearly over the run from 1 to N_min / N_c, so that no class is missing at first.

    Differences to the paper: one strong view instead of two. M is drawn by a hash of the seed, the step and the image.
    """

    name = "abc"
    title = "ABC"
    color = "sky"
    line_style = "-."
    summary = "FixMatch with an auxiliary classifier that learns from balanced classes, for long tails"
    Settings = ABCSettings
    unlabeled_views = ("weak", "strong")
    cuda_graph_safe = True

    kept_share: Tensor
    """(K,) N_min / N_c."""
    steps: Tensor
    """Number of steps with unlabeled images."""

    def __init__(self, settings: ABCSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.register_buffer("kept_share", kept_shares(info.label, info.num_classes), persistent=False)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    @classmethod
    def class_heads(cls, settings: Any, feature_dim: int, num_classes: int) -> nn.ModuleDict:  # noqa: ARG003
        return nn.ModuleDict({BASE: nn.Linear(feature_dim, num_classes)})

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:
        labeled, weak, strong = networks(
            batch.labeled["weak"], batch.unlabeled["weak"], batch.unlabeled["strong"], without_gradient=(1,)
        )
        # FixMatch
        base = hard_pseudo_labels(predicted_probabilities(weak.heads[BASE]), self.settings.threshold)
        base_labeled = supervised_cross_entropy(labeled.heads[BASE], batch.label)
        base_unlabeled = soft_cross_entropy(strong.heads[BASE], base.target, base.accepted)

        # The balanced classifier
        assert batch.index is not None
        assert batch.labeled_index is not None
        chosen = self._draw(batch.labeled_index, self.kept_share[batch.label], stream=0)
        supervised = (cross_entropy(labeled.logits.float(), batch.label, reduction="none") * chosen).mean()
        probs = predicted_probabilities(weak.logits)
        pseudo = self.pseudo_labels(probs)
        fraction = (self.steps / progress.total).clamp(max=1)
        share = torch.lerp(torch.ones_like(self.kept_share), self.kept_share, fraction)
        drawn = self._draw(batch.index, share[probs.argmax(dim=1)], stream=1)
        pseudo = PseudoLabels(probs, pseudo.target, pseudo.accepted * drawn)
        consistency = soft_cross_entropy(strong.logits, pseudo.target, pseudo.accepted)
        self.steps.add_(1)

        loss = base_labeled + self.settings.weight * base_unlabeled
        loss = loss + supervised + self.settings.weight_balanced * consistency
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "loss_base": (base_labeled + base_unlabeled).detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return soft_pseudo_labels(probs, self.settings.threshold)

    def _draw(self, index: Tensor, probability: Tensor, stream: int) -> Tensor:
        """Returns (B,) 1 with the given probabilities, else 0, as a function of step and image."""
        return (hashed_uniform(self.info.seed, self.steps, stream, index) < probability).float()


def kept_shares(label: Tensor | None, num_classes: int) -> Tensor:
    """Returns (K,) N_min / N_c, the share of the images of each class that balances the classes.

    Classes without labels count as one label; without any labels, all shares are 1.

    Example:
        >>> kept_shares(torch.tensor([0, 0, 0, 0, 1]), num_classes=2)
        tensor([0.2500, 1.0000])
    """
    if label is None:
        return torch.ones(num_classes)
    counts = torch.bincount(label, minlength=num_classes).clamp(min=1)
    return counts.amin() / counts
