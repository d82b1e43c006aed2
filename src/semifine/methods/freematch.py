"""FreeMatch: FixMatch with thresholds that follow the confidence of the network (Wang et al., ICLR 2023)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from semifine.distributed import all_gather
from semifine.fields import setting
from semifine.methods.base import Batch, DataInfo, PseudoLabels, hard_pseudo_labels
from semifine.methods.fixmatch import FixMatch, WeightedLosses
from semifine.methods.levers import LeverSettings
from semifine.models.forward import Output

EPSILON = 1e-12
"""Lower bound of divisors and arguments of logarithms."""


@dataclass(frozen=True)
class FreeMatchSettings(LeverSettings):
    weight: float = setting(1.0, "weight of the unlabeled loss (w_u)", low=0)
    weight_fairness: float = setting(0.01, "weight of the fairness loss (w_f)", low=0)
    decay: float = setting(0.999, "decay of the running means of confidence and predictions (lambda)", low=0, high=1)


class FreeMatch(FixMatch):
    """loss = L_s + w_u 1/(mu B) sum [conf >= T(phat)] CE(phat, f(strong(u))) + w_f L_f.

    T(c) = tau ptilde(c) / max ptilde, where tau is the running mean of the confidence, ptilde of the prediction, and
    htilde of the histogram of predicted classes. L_f = sum_c a_c log b_c with a = norm(ptilde / htilde), and
    b = norm(pbar / hbar) of the accepted strong views in the batch.

    The paper leaves open how classes without accepted strong views enter b; here they have b = 0, without gradient.
    With several processes, pbar and hbar are those of the images of each process.
    """

    name = "freematch"
    title = "FreeMatch"
    color = "orange"
    line_style = "--"
    summary = "FixMatch with thresholds from running means of confidence, and a fairness loss"
    Settings = FreeMatchSettings

    confidence: Tensor
    """Running mean of the confidence (tau)."""
    mean: Tensor
    """(K,) running mean of the predictions (ptilde)."""
    histogram: Tensor
    """(K,) running mean of the frequencies of predicted classes (htilde)."""

    def __init__(self, settings: Any, info: DataInfo) -> None:
        super().__init__(settings, info)
        uniform = 1 / info.num_classes
        self.register_buffer("confidence", torch.tensor(uniform))
        for name in ("mean", "histogram"):
            self.register_buffer(name, torch.full((info.num_classes,), uniform))

    def train_labels(self, probs: Tensor, index: Tensor) -> PseudoLabels:  # noqa: ARG002
        gathered = all_gather(probs)
        confidence, prediction = gathered.max(dim=1)
        weight = 1 - self.settings.decay
        self.confidence.lerp_(confidence.mean(), weight)
        self.mean.lerp_(gathered.mean(dim=0), weight)
        self.histogram.lerp_(class_shares(prediction, self.info.num_classes), weight)
        return self.make_labels(probs)

    def make_labels(self, probs: Tensor) -> PseudoLabels:
        return hard_pseudo_labels(probs, self.thresholds()[probs.argmax(dim=1)])

    def thresholds(self) -> Tensor:
        """Returns the (K,) threshold T(c) of each class."""
        return self.confidence * self.mean / self.mean.amax()

    def further_losses(self, labeled: Output, strong: Output, pseudo: PseudoLabels, batch: Batch) -> WeightedLosses:  # noqa: ARG002
        fairness = fairness_loss(strong.logits, pseudo.accepted, self.mean, self.histogram)
        return {"fairness": (self.settings.weight_fairness, fairness)}


def class_shares(prediction: Tensor, num_classes: int, weight: Tensor | None = None) -> Tensor:
    """Returns the (K,) share of each class among predicted classes.

    Args:
        prediction: (B,) predicted classes.
        num_classes: Number of classes K.
        weight: (B,) weights of the predictions. Default: 1.

    Example:
        >>> class_shares(torch.tensor([0, 1, 1, 1]), num_classes=3)
        tensor([0.2500, 0.7500, 0.0000])
    """
    counts = one_hot(prediction, num_classes).float()
    counts = (counts if weight is None else counts * weight[:, None]).sum(dim=0)
    return counts / counts.sum().clamp_min(EPSILON)


def fairness_loss(logits: Tensor, accepted: Tensor, mean: Tensor, histogram: Tensor) -> Tensor:
    """Computes sum_c a_c log b_c of modulated class distributions a and b, see :class:`FreeMatch`.

    The loss is 0 if no label is accepted.

    Args:
        logits: (B, K) logits of the strong views.
        accepted: (B,) 1 for accepted images, else 0.
        mean: (K,) running mean of the predictions on weak views.
        histogram: (K,) running mean of the frequencies of the classes predicted on weak views.

    Example:
        >>> logits = torch.tensor([[4.0, 0.0], [0.0, 4.0]])
        >>> fairness_loss(logits, torch.ones(2), torch.tensor([0.5, 0.5]), torch.tensor([0.5, 0.5]))
        tensor(-0.6931)
    """
    probs = torch.softmax(logits.float(), dim=1)
    mean_strong = (probs * accepted[:, None]).mean(dim=0)
    shares = class_shares(probs.argmax(dim=1), probs.shape[1], accepted)
    batch = torch.where(shares > 0, mean_strong / shares.clamp_min(EPSILON), 0.0)
    running = mean / histogram.clamp_min(EPSILON)
    log_batch = (batch / batch.sum().clamp_min(EPSILON) + EPSILON).log()
    loss = (running / running.sum() * log_batch).sum()
    return torch.where(accepted.any(), loss, 0.0)
