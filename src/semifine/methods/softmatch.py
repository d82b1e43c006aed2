"""SoftMatch: FixMatch in which the confidence of a label determines its weight (Chen et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from semifine.distributed import all_gather
from semifine.fields import setting
from semifine.methods.base import DataInfo, PseudoLabels, hard_pseudo_labels
from semifine.methods.fixmatch import FixMatch
from semifine.methods.levers import LeverSettings, align_distribution


@dataclass(frozen=True)
class SoftMatchSettings(LeverSettings):
    weight: float = setting(1.0, "weight of the unlabeled loss, and largest weight of a label (lambda_max)", low=0)
    decay: float = setting(
        0.999, "decay of the running means of confidence, its variance and predictions (m)", low=0, high=1
    )
    deviations: float = setting(
        2.0, "factor by which the Gaussian is narrower than the variance of the confidence; released code: 2", low=1e-3
    )
    uniform_alignment: bool = setting(
        True, "weights come from predictions that are aligned to the uniform class distribution"
    )


class SoftMatch(FixMatch):
    """loss = L_s + 1/(mu B) sum lambda(u) CE(phat, f(strong(u))).

    lambda(u) = lambda_max exp(-min(conf - mu_t, 0)^2 / (2 sigma_t^2)), where conf is the largest of the aligned
    probabilities normalize(p / E[p]), and mu_t and sigma_t^2 are running means of its mean and variance. The labels
    phat come from the predictions without alignment.

    The released code divides sigma_t by two, which is the default here, too (``deviations``).
    """

    name = "softmatch"
    title = "SoftMatch"
    color = "vermilion"
    line_style = "--"
    summary = "FixMatch in which labels below the mean confidence have a smaller weight"
    Settings = SoftMatchSettings

    confidence: Tensor
    """Running mean of the confidence (mu)."""
    variance: Tensor
    """Running mean of the variance of the confidence (sigma^2)."""
    mean: Tensor
    """(K,) running mean of the predictions (E[p])."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.register_buffer("confidence", torch.tensor(1 / info.num_classes))
        self.register_buffer("variance", torch.tensor(1.0))
        self.register_buffer("mean", torch.full((info.num_classes,), 1 / info.num_classes))

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:  # noqa: ARG002
        gathered = all_gather(probs)
        weight = 1 - self.settings.decay
        self.mean.lerp_(gathered.mean(dim=0), weight)
        confidence = self._confidence(gathered)
        self.confidence.lerp_(confidence.mean(), weight)
        self.variance.lerp_(confidence.var(correction=min(1, len(confidence) - 1)), weight)
        return self.make_labels(probs)

    def make_labels(self, probs: Tensor) -> PseudoLabels:
        variance = self.variance / self.settings.deviations**2
        weight = truncated_gaussian(self._confidence(probs), self.confidence, variance)
        return replace(hard_pseudo_labels(probs, 0.0), accepted=weight)

    def _confidence(self, probs: Tensor) -> Tensor:
        """Returns the (B,) confidences that determine the weights."""
        return (align_distribution(probs, self.mean, 1.0) if self.settings.uniform_alignment else probs).amax(dim=1)


def truncated_gaussian(confidence: Tensor, mean: Tensor, variance: Tensor) -> Tensor:
    """Returns exp(-min(conf - mean, 0)^2 / (2 variance)): 1 at and above the mean, less below it.

    Args:
        confidence: (B,) confidences.
        mean: Scalar.
        variance: Scalar.

    Example:
        >>> truncated_gaussian(torch.tensor([0.9, 0.5, 0.3]), torch.tensor(0.5), torch.tensor(0.02))
        tensor([1.0000, 1.0000, 0.3679])
    """
    return torch.exp(-((confidence - mean).clamp_max(0) ** 2) / (2 * variance.clamp_min(1e-12)))
