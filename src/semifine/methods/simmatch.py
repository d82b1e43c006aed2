"""SimMatch: predictions and similarities to labeled images correct each other (Zheng et al., 2022)."""

from __future__ import annotations

from dataclasses import dataclass
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
    predicted_probabilities,
    soft_pseudo_labels,
)
from semifine.methods.components import RingBuffer
from semifine.models.classifier import PROJECTION, l2_normalize, mlp_projection
from semifine.models.forward import Networks

ALIGNMENT_BATCHES = 256
EPSILON = 1e-12
"""Below all that matters; a division by zero would be worse."""


@dataclass(frozen=True)
class SimMatchSettings:
    threshold: float = setting(0.7, "confidence from which a soft label trains the classifier (tau)", low=0)
    weight: float = setting(1.0, "weight of the classifier's unlabeled loss (lambda_u)", low=0)
    weight_instances: float = setting(1.0, "weight of the loss between images (lambda_in)", low=0)
    temperature: float = setting(0.1, "of the similarities to labeled images (t)", low=1e-6)
    smoothing: float = setting(0.9, "share of the prediction in a label, the rest is of similar images", low=0, high=1)
    dim: int = setting(128, "length of a projected feature", low=1)
    strong_view: Literal["moco_v2", "strong"] = setting("moco_v2", "jittered colors, or RandAugment and cutout")
    first_epoch: Literal["labeled", "unlabeled"] = setting(
        "labeled", "the bank is used after a pass over these images; released code: unlabeled"
    )
    blank_labels: bool = setting(False, "released code: the bank takes every image for class 0 until it has seen it")


class SimMatch(Method):
    """loss = L_s + lambda_u 1/(mu B) sum [max ptilde >= tau] CE(ptilde, f(strong(u))) + lambda_in L_in.

    The average model makes the labels. p is its aligned prediction, q its similarities to the labeled images,
    whose projections stand in a bank. ptilde = alpha p + (1 - alpha) aggregate(q); L_in pulls the student's
    similarities to unfold(q, p).
    """

    name = "simmatch"
    title = "SimMatch"
    color = "purple"
    summary = "soft labels, corrected by the similarity to labeled images, and the other way round"
    Settings = SimMatchSettings
    unlabeled_views = ("weak", "moco_v2")
    needs_ema = True
    evaluates_ema = False
    cuda_graph_safe = True

    bank: Tensor
    """(N, dim) projections of the labeled images by the average model (Z)."""
    bank_label: Tensor
    filled: Tensor
    """(N,) which rows of the bank have been written."""
    seen: Tensor
    """How many unlabeled images have come by."""

    def __init__(self, settings: SimMatchSettings, info: DataInfo) -> None:
        super().__init__(settings, info)
        self.unlabeled_views = ("weak", settings.strong_view)
        generator = torch.Generator().manual_seed(info.seed)
        self.register_buffer("bank", l2_normalize(torch.randn(info.num_labeled, settings.dim, generator=generator)))
        known = None if settings.blank_labels else info.label
        self.register_buffer("bank_label", torch.zeros(info.num_labeled).long() if known is None else known.clone())
        self.register_buffer("filled", torch.zeros(info.num_labeled, dtype=torch.bool))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
        self.alignment = RingBuffer(torch.zeros(ALIGNMENT_BATCHES, info.num_classes))

    @classmethod
    def heads(cls, settings: Any, feature_dim: int) -> nn.ModuleDict:
        return nn.ModuleDict({PROJECTION: mlp_projection(feature_dim, settings.dim)})

    def forward(self, networks: Networks, batch: Batch, progress: Progress) -> StepResult:  # noqa: ARG002
        labeled, strong = networks(batch.labeled["weak"], batch.unlabeled[self.settings.strong_view])
        taught_labeled, weak = networks.forward_ema(batch.labeled["weak"], batch.unlabeled["weak"])
        supervised = supervised_cross_entropy(labeled.logits, batch.label)

        ready = self.ready()
        probs = self._observe(predicted_probabilities(weak.logits))
        bank = self.bank.clone()  # because it is written to before the backward pass reads it
        similarity = self._compare(weak.heads[PROJECTION], bank).softmax(dim=1)
        aggregated = aggregate(similarity, self.bank_label, self.info.num_classes)
        smoothing = torch.where(ready, self.settings.smoothing, 1.0)
        pseudo = soft_pseudo_labels(smoothing * probs + (1 - smoothing) * aggregated, self.settings.threshold)
        consistency = soft_cross_entropy(strong.logits, pseudo.target, pseudo.accepted)
        unfolded = unfold(similarity, probs, self.bank_label)
        instances = ready * soft_cross_entropy(self._compare(strong.heads[PROJECTION], bank), unfolded)
        loss = supervised + self.settings.weight * consistency + self.settings.weight_instances * instances

        assert batch.labeled_index is not None
        self._write(batch.labeled_index, l2_normalize(taught_labeled.heads[PROJECTION]), batch.label)
        metrics = {
            "loss": loss.detach(),
            "loss_labeled": supervised.detach(),
            "loss_unlabeled": consistency.detach(),
            "loss_instances": instances.detach(),
            "accepted": pseudo.accepted.mean(),
        }
        return StepResult(loss, metrics, pseudo)

    def pseudo_labels(self, probs: Tensor) -> PseudoLabels:
        """Without the correction by similar images: that would need features, and these are predictions."""
        return soft_pseudo_labels(align(probs, self.alignment.rows.mean(dim=0)), self.settings.threshold)

    def ready(self) -> Tensor:
        """Whether the bank corrects labels yet, as a boolean on the device."""
        if self.settings.first_epoch == "labeled":
            return self.filled.all()
        return self.seen >= self.info.num_unlabeled

    def _observe(self, probs: Tensor) -> Tensor:
        """Predictions, aligned to what the last batches (this one included) predicted on average."""
        everyone = all_gather(probs)
        self.alignment.push(everyone.mean(dim=0, keepdim=True))
        self.seen.add_(len(everyone))
        return align(probs, self.alignment.rows.mean(dim=0))

    def _compare(self, projected: Tensor, bank: Tensor) -> Tensor:
        """(B, N) z . Z_i / t for each labeled image i; their softmax is q."""
        return l2_normalize(projected) @ bank.t() / float(self.settings.temperature)

    def _write(self, index: Tensor, projected: Tensor, label: Tensor) -> None:
        index, projected, label = all_gather(index), all_gather(projected), all_gather(label)
        self.bank.index_copy_(0, index, projected[last_occurrence(index)])
        self.bank_label.index_copy_(0, index, label)
        self.filled.index_fill_(0, index, True)


def align(probs: Tensor, mean: Tensor) -> Tensor:
    """normalize(p / mean), so that predictions are spread over the classes. Shapes: (B, K), (K,) -> (B, K)."""
    ratio = probs / mean.clamp(min=EPSILON)
    return ratio / ratio.sum(dim=1, keepdim=True)


def unfold(similarity: Tensor, probs: Tensor, label: Tensor) -> Tensor:
    """qhat_i = q_i p_{y_i} / sum_j q_j p_{y_j}. Shapes: (B, N), (B, K), (N,) -> (B, N)."""
    weighted = similarity * probs[:, label]
    return weighted / weighted.sum(dim=1, keepdim=True).clamp(min=EPSILON)


def aggregate(similarity: Tensor, label: Tensor, num_classes: int) -> Tensor:
    """a_c = sum of q_i over the images i of class c. Shapes: (B, N), (N,) -> (B, K)."""
    return similarity @ one_hot(label, num_classes).to(similarity.dtype)
