"""Cross-entropy with hard and with soft targets."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import cross_entropy, log_softmax


def supervised_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Mean cross-entropy of (B, K) logits with (B,) class ids; a label of -1 is left out of the mean."""
    return cross_entropy(logits.float(), label, ignore_index=-1)


def soft_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """-1/B sum_i w_i sum_c q_ic log softmax(z_i)_c.

    ``logits`` and ``target`` are (B, K), ``weight`` is (B,). The sum is divided by the whole batch, also
    where weights are 0: a batch with few accepted pseudo-labels pulls less (FixMatch, eq. 4).
    """
    per_sample = -(target * log_softmax(logits.float(), dim=1)).sum(dim=1)
    return (per_sample if weight is None else per_sample * weight).mean()
