"""Losses as pure functions on tensors. Depends on PyTorch only."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div, log_softmax


def supervised_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Computes the mean cross-entropy. Labels of -1 are ignored.

    Args:
        logits: (B, K).
        label: (B,) class indices.

    Example:
        >>> supervised_cross_entropy(torch.tensor([[0.0, 0.0], [0.0, 9.0]]), torch.tensor([0, -1]))
        tensor(0.6931)
    """
    return cross_entropy(logits.float(), label, ignore_index=-1)


def soft_cross_entropy(logits: Tensor, target: Tensor, weight: Tensor | None = None) -> Tensor:
    """Computes the weighted cross-entropy with soft labels, -1/B sum_i w_i sum_c q_ic log softmax(z_i)_c.

    The sum is divided by the batch size, not by the sum of the weights: a batch with few accepted pseudo-labels
    contributes less (FixMatch, eq. 4).

    Args:
        logits: (B, K) logits z.
        target: (B, K) soft labels q.
        weight: (B,) weights w. Default: 1.

    Example:
        >>> target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
        >>> soft_cross_entropy(torch.zeros(2, 2), target, weight=torch.tensor([1.0, 0.0]))
        tensor(0.3466)
    """
    per_sample = -(target * log_softmax(logits.float(), dim=1)).sum(dim=1)
    return (per_sample if weight is None else per_sample * weight).mean()


def info_nce_logits(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Computes the logits [q.k, q.Q^T] / T of a contrastive loss.

    Args:
        query: (B, D) normalized features q of one view.
        key: (B, D) normalized features k of another view of the same images (positives).
        negatives: (Q, D) normalized features Q of other images.
        temperature: Temperature T.

    Returns:
        (B, 1 + Q) logits with the positive in column 0.

    Example:
        >>> query, other = torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]])
        >>> info_nce_logits(query, key=query, negatives=other, temperature=0.5)
        tensor([[2., 0.]])
    """
    positive = (query * key).sum(dim=1, keepdim=True)
    return torch.cat([positive, query @ negatives.t()], dim=1) / temperature


def info_nce_loss(logits: Tensor) -> Tensor:
    """Computes the mean cross-entropy with column 0 as the target class.

    Args:
        logits: (B, 1 + Q) logits, see :func:`info_nce_logits`.

    Example:
        >>> info_nce_loss(torch.tensor([[0.0, 0.0]]))
        tensor(0.6931)
    """
    return cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Computes the distillation loss T^2/B sum_i KL(softmax(z_t/T) || softmax(z_s/T)).

    The factor T^2 keeps the scale of the gradient independent of the temperature (Hinton et al., 2015).

    Args:
        student: (B, K) logits z_s.
        teacher: (B, K) logits z_t.
        temperature: Temperature T.

    Example:
        >>> logits = torch.tensor([[2.0, -1.0, 0.5]])
        >>> distillation_loss(logits, logits, temperature=4.0).abs() < 1e-6
        tensor(True)
    """
    log_student = log_softmax(student.float() / temperature, dim=1)
    log_teacher = log_softmax(teacher.float() / temperature, dim=1)
    return temperature**2 * kl_div(log_student, log_teacher, reduction="batchmean", log_target=True)
