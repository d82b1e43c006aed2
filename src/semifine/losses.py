"""Losses as pure functions on tensors. Imports torch only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax


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


def info_nce_logits(query: Tensor, key: Tensor, others: Tensor, temperature: float) -> Tensor:
    """[q.k, q.Q^T] / T. Shapes: query and key (B, D), others (Q, D), all of unit length -> (B, 1 + Q)."""
    positive = (query * key).sum(dim=1, keepdim=True)
    return torch.cat([positive, query @ others.t()], dim=1) / temperature


def info_nce_loss(logits: Tensor) -> Tensor:
    """Mean cross-entropy with the first column, where the query's own key stands. Shapes: (B, 1 + Q)."""
    return cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """T^2/B sum_i KL(softmax(z_t/T) || softmax(z_s/T)) of (B, K) logits.

    T^2 keeps the size of the gradient where the temperature changes (Hinton et al., 2015).
    """
    learned = log_softmax(student.float() / temperature, dim=1)
    taught = log_softmax(teacher.float() / temperature, dim=1)
    return temperature**2 * kl_div(learned, taught, reduction="batchmean", log_target=True)
