"""The entropy of labels if every image had the same number of clusters, for one number after the other."""

from __future__ import annotations

import torch
from torch import Tensor

from semifine.engine.facts import entropy
from semifine.methods.base import Method

MAX_K = 50
"""Numbers of clusters that are tried at most: more would cost much with thousands of classes, and show no more."""


class EntropySweep:
    """Mean and spread over all images; empty for a method without clusters."""

    def __init__(self) -> None:
        self._sums: dict[int, Tensor] = {}

    def update(self, method: Method, probs: Tensor) -> None:
        """Adds a batch of (B, K) probabilities."""
        for k, target in method.labels_by_k(probs, MAX_K):
            values = entropy(target.float()).double()
            sums = torch.stack([values.sum(), values.square().sum(), values.new_tensor(len(values))])
            self._sums[k] = self._sums.get(k, 0) + sums

    def table(self) -> Tensor | None:
        """(n, 4): k, mean, standard deviation and number of images; None where there is nothing."""
        rows = []
        for k, sums in sorted(self._sums.items()):
            total, squares, images = sums.tolist()
            mean = total / images
            rows.append([k, mean, max(squares / images - mean**2, 0.0) ** 0.5, images])
        return torch.tensor(rows, dtype=torch.float64) if rows else None
