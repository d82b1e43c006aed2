"""FlexMatch: FixMatch with lower thresholds for classes with few confident predictions (Zhang et al., 2021)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from semifine.distributed import all_gather, last_occurrence
from semifine.fields import setting
from semifine.methods.base import DataInfo, PseudoLabels, hard_pseudo_labels
from semifine.methods.fixmatch import FixMatch
from semifine.methods.levers import LeverSettings

UNUSED = -1
"""Label of an image without a confident prediction so far."""

MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: (x + 1) / 2,
    "concave": lambda x: torch.log2(x + 1),
}
"""M: maps the learning status of a class to the fraction of the highest threshold."""


@dataclass(frozen=True)
class FlexMatchSettings(LeverSettings):
    threshold: float = setting(
        0.95, "highest threshold, for the class with the most confident predictions (tau)", low=0, high=1
    )
    weight: float = setting(1.0, "weight of the unlabeled loss (lambda)", low=0)
    mapping: Literal["convex", "linear", "concave"] = setting(
        "convex", "map from the learning status of a class to its threshold (M)"
    )
    warmup: bool = setting(True, "lower thresholds while many images have had no confident prediction")


class FlexMatch(FixMatch):
    """loss = L_s + lambda 1/(mu B) sum [conf >= T(phat)] CE(phat, f(strong(u))), T(c) = tau M(beta(c)).

    beta(c) is the learning status of class c: the number of images whose last confident prediction is c, divided by the
    largest number over all classes.
    """

    name = "flexmatch"
    title = "FlexMatch"
    color = "orange"
    summary = "FixMatch with lower thresholds for classes with few confident predictions"
    Settings = FlexMatchSettings

    label: Tensor
    """(M,) last confident prediction of each unlabeled image (u), -1 if there is none."""
    status: Tensor
    """(K,) learning status of each class (beta), 0..1."""

    def __init__(self, settings: FlexMatchSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.register_buffer("label", torch.full((info.num_unlabeled,), UNUSED))
        self.register_buffer("status", torch.zeros(info.num_classes))

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:
        self.status.copy_(learning_status(self.label, self.status, self.settings.warmup))
        pseudo = self.make_labels(probs)
        confidence, prediction = probs.max(dim=1)
        self._update_labels(index, prediction, confidence)
        return replace(pseudo, counted=self.label[index] != UNUSED)

    def make_labels(self, probs: Tensor) -> PseudoLabels:
        return hard_pseudo_labels(probs, self.thresholds()[probs.argmax(dim=1)])

    def thresholds(self) -> Tensor:
        """Returns (K,) threshold T(c) of each class, 0..tau."""
        return MAPPINGS[self.settings.mapping](self.status) * float(self.settings.threshold)

    def _update_labels(self, index: Tensor, prediction: Tensor, confidence: Tensor) -> None:
        """Sets u_i to phat_i if the confidence is at least tau; other predictions leave u_i unchanged."""
        index, prediction, confidence = all_gather(index), all_gather(prediction), all_gather(confidence)
        last = last_occurrence(index, confidence >= self.settings.threshold)
        new = torch.where(last >= 0, prediction[last.clamp(min=0)], self.label[index])
        self.label.index_copy_(0, index, new)


def learning_status(label: Tensor, before: Tensor, warmup: bool) -> Tensor:
    """Returns the learning status beta(c) = sigma(c) / max(max sigma, unused), with sigma(c) the number of labels c.

    Args:
        label: (M,) last confident prediction of each image, -1 for unused images.
        before: (K,) status to keep while all images have the same label or none has a label, as in the authors' code.
        warmup: Whether to include the number of unused images in the maximum.

    Returns:
        (K,) status, 0..1.

    Example:
        >>> learning_status(torch.tensor([0, 0, 1, -1]), torch.zeros(2), warmup=True)
        tensor([1.0000, 0.5000])
    """
    counts = torch.zeros(len(before) + 1, dtype=torch.int64, device=label.device)
    counts.scatter_add_(0, label + 1, torch.ones_like(label))  # element 0 counts unused images
    largest = counts.amax() if warmup else counts[1:].amax()
    all_equal = counts.amax() == len(label)
    return torch.where(all_equal, before, counts[1:] / largest.clamp(min=1))
