"""FlexMatch: FixMatch with lower thresholds for classes that are learned badly so far (Zhang et al., 2021)."""

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

UNUSED = -1

MAPPINGS: dict[str, Callable[[Tensor], Tensor]] = {
    "convex": lambda x: x / (2 - x),
    "linear": lambda x: (x + 1) / 2,
    "concave": lambda x: torch.log2(x + 1),
}


@dataclass(frozen=True)
class FlexMatchSettings:
    threshold: float = setting(0.95, "the highest threshold, for the class that is learned best (tau)", low=0, high=1)
    weight: float = setting(1.0, "weight of the unlabeled loss (lambda)", low=0)
    mapping: Literal["convex", "linear", "concave"] = setting("convex", "from how well a class is learned to its share")
    warmup: bool = setting(True, "images without a confident label yet hold the thresholds down")


class FlexMatch(FixMatch):
    """loss = L_s + lambda 1/(mu B) sum [conf >= T(phat)] CE(phat, f(strong(u))), T(c) = tau M(beta(c)).

    beta(c) is how many images last had the confident label c, relative to the most frequent label.
    """

    name = "flexmatch"
    title = "FlexMatch"
    color = "orange"
    summary = "hard labels, with lower thresholds for classes that are learned badly"
    Settings = FlexMatchSettings

    label: Tensor
    """(M,) each unlabeled image's last confident pseudo-label (u), -1 where it had none."""
    status: Tensor
    """(K,) how well each class is learned (beta), 0..1."""

    def __init__(self, settings: FlexMatchSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.register_buffer("label", torch.full((info.num_unlabeled,), UNUSED))
        self.register_buffer("status", torch.zeros(info.num_classes))

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:
        self.status.copy_(learning_status(self.label, self.status, self.settings.warmup))
        pseudo = self.pseudo_labels(probs)
        confidence, prediction = probs.max(dim=1)
        self._remember(index, prediction, confidence)
        return replace(pseudo, counted=self.label[index] != UNUSED)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        return hard_pseudo_labels(probs, self.thresholds()[probs.argmax(dim=1)])

    def thresholds(self) -> Tensor:
        """(K,) T(c), 0..tau."""
        share = MAPPINGS[self.settings.mapping](self.status)
        return share * float(self.settings.threshold)

    def _remember(self, index: Tensor, prediction: Tensor, confidence: Tensor) -> None:
        """u_i <- phat_i where the prediction reaches the base threshold; what was confident once stays labeled."""
        index, prediction, confidence = all_gather(index), all_gather(prediction), all_gather(confidence)
        last = last_occurrence(index, confidence >= self.settings.threshold)
        new = torch.where(last >= 0, prediction[last.clamp(min=0)], self.label[index])
        self.label.index_copy_(0, index, new)


def learning_status(label: Tensor, before: Tensor, warmup: bool) -> Tensor:
    """beta(c) = sigma(c) / max(max sigma, unused), sigma(c) = number of samples labeled c.

    Without warm-up the unused samples do not count. As in the authors' code nothing changes while all samples have the
    same label, or none. Shapes: label (M,), before (K,) -> (K,).
    """
    counts = torch.zeros(len(before) + 1, dtype=torch.int64, device=label.device)
    counts.scatter_add_(0, label + 1, torch.ones_like(label))  # the unused ones come first
    largest = counts.amax() if warmup else counts[1:].amax()
    all_equal = counts.amax() == len(label)
    return torch.where(all_equal, before, counts[1:] / largest.clamp(min=1))
