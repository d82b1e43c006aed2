"""UDA: sharpened predictions on weak views are the soft labels of strong views (Xie et al., NeurIPS 2020)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from semifine.distributed import all_reduce_sum, world_size
from semifine.fields import setting
from semifine.methods.base import DataInfo, Progress, PseudoLabels, soft_pseudo_labels
from semifine.methods.fixmatch import FixMatch
from semifine.methods.levers import LeverSettings


@dataclass(frozen=True)
class UDASettings(LeverSettings):
    sharpen: float = setting(
        2.5, "power to which soft labels are raised; 1 / sharpen is the temperature of the paper", low=0
    )
    threshold: float = setting(0.8, "smallest confidence of an accepted soft label (beta)", low=0)
    weight: float = setting(1.0, "weight of the unlabeled loss (lambda)", low=0)
    annealing: Literal["none", "linear", "log", "exp"] = setting(
        "none", "schedule of training signal annealing, which ignores labeled images that are predicted too well"
    )


class UDA(FixMatch):
    """loss = L_s + lambda 1/(mu B) sum [conf >= beta] CE(softmax(f(weak(u)) / T), f(strong(u))).

    With training signal annealing, L_s is the mean over labeled images whose probability of the true class is below
    alpha_t (1 - 1/K) + 1/K. alpha_t increases to 1: t for ``linear``, 1 - exp(-5 t) for ``log``, and exp(5 (t - 1)) for
    ``exp``, where t is the completed fraction of the run.

    The paper minimizes the divergence KL(q || p), which has the same gradient as the cross-entropy.
    """

    name = "uda"
    title = "UDA"
    color = "vermilion"
    line_style = "-."
    summary = "sharpened soft labels for strong views, and annealing of the labeled loss"
    Settings = UDASettings

    steps: Tensor
    """Number of steps with unlabeled images."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def labeled_loss(self, logits: Tensor, label: Tensor, progress: Progress) -> Tensor:
        if self.settings.annealing == "none":
            return super().labeled_loss(logits, label, progress)
        threshold = annealed_threshold(self.steps / progress.total, self.settings.annealing, self.info.num_classes)
        self.steps.add_(1)
        return annealed_cross_entropy(self.levers.adjust_labeled(logits), label, threshold)

    def make_labels(self, probs: Tensor) -> PseudoLabels:
        return replace(soft_pseudo_labels(probs, self.settings.threshold), target=self.levers.sharpen(probs))


def annealed_threshold(fraction: Tensor, schedule: Literal["linear", "log", "exp"], num_classes: int) -> Tensor:
    """Returns the largest probability of the true class with which a labeled image is in the loss.

    Args:
        fraction: Scalar, completed fraction of the run.
        schedule: How fast the threshold increases from 1/K to 1.
        num_classes: Number of classes K.

    Example:
        >>> annealed_threshold(torch.tensor(0.5), "linear", num_classes=2)
        tensor(0.7500)
    """
    alpha = {
        "linear": fraction,
        "log": 1 - torch.exp(-5 * fraction),
        "exp": torch.exp(5 * (fraction - 1)),
    }[schedule]
    return alpha * (1 - 1 / num_classes) + 1 / num_classes


def annealed_cross_entropy(logits: Tensor, label: Tensor, threshold: Tensor) -> Tensor:
    """Computes the mean cross-entropy of the images whose true class has a probability below the threshold.

    Args:
        logits: (B, K).
        label: (B,) class indices; -1 is ignored.
        threshold: Scalar.

    Example:
        >>> logits = torch.tensor([[0.0, 0.0], [0.0, 9.0]])
        >>> annealed_cross_entropy(logits, torch.tensor([0, 1]), torch.tensor(0.9))
        tensor(0.6931)
    """
    losses = cross_entropy(logits.float(), label, ignore_index=-1, reduction="none")
    kept = ((label >= 0) & (losses.detach() > -threshold.log())).float()
    count = all_reduce_sum(kept.sum()) / world_size()  # processes average their gradients
    return (losses * kept).sum() / count.clamp_min(1 / world_size())
