"""SimMatch: soft labels from predictions and from similarities to labeled images (Zheng et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from semifine.distributed import all_gather, last_occurrence
from semifine.fields import setting
from semifine.losses import soft_cross_entropy, supervised_cross_entropy
from semifine.methods.base import (
    Batch,
    DataInfo,
    Method,
    Progress,
    PseudoLabels,
    StepResult,
    soft_pseudo_labels,
)
from semifine.methods.components import RingBuffer
from semifine.methods.levers import Levers, PredictionLeverSettings
from semifine.models.classifier import PROJECTION, l2_normalize, mlp_projection
from semifine.models.forward import Networks

ALIGNMENT_BATCHES = 256
"""Number of recent batches whose mean prediction is used for distribution alignment."""
EPSILON = 1e-12
"""Lower bound of divisors."""


@dataclass(frozen=True)
class SimMatchSettings(PredictionLeverSettings):
    threshold: float = setting(0.7, "smallest confidence of an accepted soft label (tau)", low=0)
    weight: float = setting(1.0, "weight of the loss of soft labels (lambda_u)", low=0)
    weight_instances: float = setting(1.0, "weight of the loss of instance similarities (lambda_in)", low=0)
    temperature: float = setting(0.1, "temperature of the similarities to labeled images (t)", low=1e-6)
    smoothing: float = setting(
        0.9, "weight of the prediction in a soft label (alpha); similar images have weight 1 - alpha", low=0, high=1
    )
    dim: int = setting(128, "dimension of the projection", low=1)
    strong_view: Literal["moco_v2", "strong"] = setting(
        "moco_v2", "moco_v2: color jitter and blur; strong: RandAugment and cutout"
    )
    first_epoch: Literal["labeled", "unlabeled"] = setting(
        "labeled", "images of the first pass, during which the bank is not used; released code: unlabeled"
    )
    blank_labels: bool = setting(
        False, "released code: labels in the bank are 0 until the image has occurred in a batch"
    )


class SimMatch(Method):
    """loss = L_s + lambda_u 1/(mu B) sum [max ptilde >= tau] CE(ptilde, f(strong(u))) + lambda_in L_in.

    ptilde = alpha p + (1 - alpha) aggregate(q), where p is the aligned prediction of the averaged network and q are its
    similarities to a bank of projections of the labeled images. L_in is the cross-entropy of the student's similarities
    with unfold(q, p).
    """

    name = "simmatch"
    title = "SimMatch"
    color = "purple"
    summary = "soft labels from predictions and from similarities to labeled images"
    Settings = SimMatchSettings
    unlabeled_views = ("weak", "moco_v2")
    needs_ema = True
    evaluates_ema = False
    cuda_graph_safe = True

    bank: Tensor
    """(N, dim) projections of the labeled images by the averaged network (Z)."""
    bank_label: Tensor
    """(N,) class of each row of the bank."""
    filled: Tensor
    """(N,) bool, whether the row of the bank has been written."""
    seen: Tensor
    """Number of unlabeled images in all steps so far."""

    def __init__(self, settings: SimMatchSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.unlabeled_views = ("weak", settings.strong_view)
        generator = torch.Generator().manual_seed(info.seed)
        self.register_buffer("bank", l2_normalize(torch.randn(info.num_labeled, settings.dim, generator=generator)))
        label = None if settings.blank_labels else info.label
        self.register_buffer("bank_label", torch.zeros(info.num_labeled).long() if label is None else label.clone())
        self.register_buffer("filled", torch.zeros(info.num_labeled, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.levers = Levers(settings, info)
        self.alignment = RingBuffer(torch.zeros(ALIGNMENT_BATCHES, info.num_classes))

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:
        return nn.ModuleDict({PROJECTION: mlp_projection(feature_dim, settings.dim)})

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        labeled, strong = networks(batch.labeled["weak"], batch.unlabeled[self.settings.strong_view])
        ema_labeled, weak = networks.forward_ema(batch.labeled["weak"], batch.unlabeled["weak"])
        supervised = supervised_cross_entropy(self.levers.adjust_labeled(labeled.logits), batch.label)

        ready = self.ready()
        probs = self._align_to_recent(self.levers.predict(weak.logits))
        bank = self.bank.clone()  # a copy, because the bank changes before the backward pass reads it
        similarity = self._compare(weak.heads[PROJECTION], bank).softmax(dim=1)
        aggregated = aggregate(similarity, self.bank_label, self.info.num_classes)
        smoothing = torch.where(ready, self.settings.smoothing, 1.0)
        pseudo = soft_pseudo_labels(smoothing * probs + (1 - smoothing) * aggregated, self.settings.threshold)
        pseudo = replace(pseudo, target=self.levers.sharpen(pseudo.target))
        consistency = soft_cross_entropy(self.levers.adjust_unlabeled(strong.logits), pseudo.target, pseudo.accepted)
        unfolded = unfold(similarity, probs, self.bank_label)
        instance_loss = ready * soft_cross_entropy(self._compare(strong.heads[PROJECTION], bank), unfolded)
        loss = supervised + self.settings.weight * consistency + self.settings.weight_instances * instance_loss

        assert batch.labeled_index is not None
        self._write(batch.labeled_index, l2_normalize(ema_labeled.heads[PROJECTION]), batch.label)
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "loss_instances": instance_loss.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        """Returns the aligned predictions as soft labels, without similarities, which need features."""
        corrected = self.levers.correct(probs)
        if not self.settings.align:
            corrected = align(corrected, self.alignment.rows.mean(dim=0))
        pseudo = soft_pseudo_labels(corrected, self.settings.threshold)
        return replace(pseudo, target=self.levers.sharpen(pseudo.target))

    def ready(self) -> Tensor:
        """Returns a bool tensor: whether soft labels use the bank."""
        if self.settings.first_epoch == "labeled":
            return self.filled.all()
        return self.seen >= self.info.num_unlabeled

    def _align_to_recent(self, probs: Tensor) -> Tensor:
        """Aligns (B, K) predictions by the mean prediction of the last batches, including this one.

        The lever ``align`` replaces this alignment.
        """
        gathered = all_gather(probs)
        self.alignment.push(gathered.mean(dim=0, keepdim=True))
        self.seen.add_(len(gathered))
        if self.settings.align:
            return probs
        return align(probs, self.alignment.rows.mean(dim=0))

    def _compare(self, projected: Tensor, bank: Tensor) -> Tensor:
        """Returns (B, N) logits z . Z_i / t of the similarities to labeled images i."""
        return l2_normalize(projected) @ bank.t() / float(self.settings.temperature)

    def _write(self, index: Tensor, projected: Tensor, label: Tensor) -> None:
        """Writes projections and classes of labeled images into the bank."""
        index, projected, label = all_gather(index), all_gather(projected), all_gather(label)
        self.bank.index_copy_(0, index, projected[last_occurrence(index)])
        self.bank_label.index_copy_(0, index, label)
        self.filled.index_fill_(0, index, True)


def align(probs: Tensor, mean: Tensor) -> Tensor:
    """Distribution alignment: normalize(p / mean).

    Args:
        probs: (B, K) predicted probabilities p.
        mean: (K,) mean prediction.

    Returns:
        (B, K) probabilities.

    Example:
        >>> align(torch.tensor([[0.5, 0.5]]), mean=torch.tensor([0.75, 0.25]))
        tensor([[0.2500, 0.7500]])
    """
    ratio = probs / mean.clamp(min=EPSILON)
    return ratio / ratio.sum(dim=1, keepdim=True)


def unfold(similarity: Tensor, probs: Tensor, label: Tensor) -> Tensor:
    """Weights similarities by the probability of the class: qhat_i = q_i p_{y_i} / sum_j q_j p_{y_j}.

    Args:
        similarity: (B, N) similarities q to labeled images.
        probs: (B, K) predicted probabilities p.
        label: (N,) classes y of the labeled images.

    Returns:
        (B, N) similarities.

    Example:
        >>> unfold(torch.tensor([[0.5, 0.5]]), torch.tensor([[0.8, 0.2]]), torch.tensor([0, 1]))
        tensor([[0.8000, 0.2000]])
    """
    weighted = similarity * probs[:, label]
    return weighted / weighted.sum(dim=1, keepdim=True).clamp(min=EPSILON)


def aggregate(similarity: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """Sums similarities by class: a_c = sum of q_i over labeled images i of class c.

    Args:
        similarity: (B, N) similarities q to labeled images.
        label: (N,) classes of the labeled images.
        num_classes: Number of classes K.

    Returns:
        (B, K) sums.

    Example:
        >>> aggregate(torch.tensor([[0.5, 0.25, 0.25]]), torch.tensor([1, 0, 1]), num_classes=2)
        tensor([[0.2500, 0.7500]])
    """
    return similarity @ one_hot(label, num_classes).to(similarity.dtype)
