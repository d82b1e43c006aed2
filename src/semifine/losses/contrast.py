"""Contrastive loss: find the one key that belongs to a query among many that do not."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy


def contrast_logits(query: Tensor, key: Tensor, others: Tensor, temperature: float) -> Tensor:
    """[q.k, q.Q^T] / T. Shapes: query and key (B, D), others (Q, D), all of unit length -> (B, 1 + Q)."""
    positive = (query * key).sum(dim=1, keepdim=True)
    return torch.cat([positive, query @ others.t()], dim=1) / temperature


def contrastive_loss(logits: Tensor) -> Tensor:
    """Mean cross-entropy with the first column, where the query's own key stands. Shapes: (B, 1 + Q)."""
    return cross_entropy(logits, torch.zeros(len(logits), dtype=torch.int64, device=logits.device))
