"""DST: pseudo-labels train a head of their own, against the worst case of their errors (Chen et al., NeurIPS 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax

from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import Batch, PseudoLabels
from semifine.methods.fixmatch import FixMatch, FixMatchSettings, WeightedLosses
from semifine.models.forward import Output

PSEUDO, WORST = "pseudo", "worst"
"""Names of the additional heads."""


@dataclass(frozen=True)
class DSTSettings(FixMatchSettings):
    weight_worst: float = setting(1.0, "weight of the worst-case loss", low=0)
    reversal: float = setting(0.1, "factor of the reversed gradient of the worst-case loss in the features", low=0)
    width: int = setting(1024, "width of the hidden layer of both additional heads", low=1)


class DST(FixMatch):
    """loss = L_L(h) + lambda L_U(h_pseudo) + weight_worst L_worst(h_worst).

    The head h learns from labels only and makes the pseudo-labels, which train the features through the head h_pseudo.
    The head h_worst is right on labeled images and wrong on pseudo-labeled ones, as far as the features allow it. Its
    gradient is reversed before the features, which therefore learn to avoid this worst case.

    The paper maximizes L_U(h_worst) - L_L(h_worst). L_U has no upper bound, so h_worst minimizes
    L_L(h_worst) - log(1 - p_worst(phat)) instead, as the released code does. Its gradient reaches the features with the
    factor ``reversal``, to which the released code raises it slowly from 0; here it is constant.
    """

    name = "dst"
    title = "DST"
    color = "purple"
    line_style = "--"
    summary = "FixMatch with an independent head for pseudo-labels and a worst-case head"
    Settings = DSTSettings

    @classmethod
    def class_heads(cls, settings: Any, feature_dim: int, num_classes: int) -> nn.ModuleDict:
        def head() -> list[nn.Module]:
            return [
                nn.Linear(feature_dim, settings.width),
                nn.ReLU(inplace=True),
                nn.Linear(settings.width, num_classes),
            ]

        return nn.ModuleDict(
            {PSEUDO: nn.Sequential(*head()), WORST: nn.Sequential(ReversedGradient(settings.reversal), *head())}
        )

    def unlabeled_loss(self, strong: Output, pseudo: PseudoLabels) -> Tensor:
        logits = self.levers.adjust_unlabeled(strong.heads[PSEUDO])
        return soft_cross_entropy(logits, pseudo.target, pseudo.accepted)

    def further_losses(self, labeled: Output, strong: Output, pseudo: PseudoLabels, batch: Batch) -> WeightedLosses:
        wrong = disparity_loss(strong.heads[WORST], pseudo.target.argmax(dim=1), pseudo.accepted)
        worst = supervised_cross_entropy(labeled.heads[WORST], batch.label) + wrong
        return {"worst": (self.settings.weight_worst, worst)}


class ReversedGradient(nn.Module):
    """Returns its input; the gradient changes its sign and is multiplied by a factor.

    Args:
        factor: The factor.

    Example::

        >>> features = torch.ones(2, requires_grad=True)
        >>> ReversedGradient(0.5)(features).sum().backward()
        >>> features.grad
        tensor([-0.5000, -0.5000])
    """

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Tensor) -> Tensor:
        value = features.detach()
        return value + self.factor * (value - features)


def disparity_loss(logits: Tensor, prediction: Tensor, accepted: Tensor) -> Tensor:
    """Computes -1/B sum_i w_i log(1 - softmax(z_i)_c) with c the prediction: small if the logits predict other classes.

    Args:
        logits: (B, K) logits z.
        prediction: (B,) predicted classes.
        accepted: (B,) weights w.

    Example:
        >>> disparity_loss(torch.zeros(1, 2), torch.tensor([0]), torch.ones(1))
        tensor(0.6931)
    """
    log_probs = log_softmax(logits.float(), dim=1)
    others = torch.scatter(log_probs, 1, prediction[:, None], -torch.inf)
    return -(others.logsumexp(dim=1) * accepted).mean()
