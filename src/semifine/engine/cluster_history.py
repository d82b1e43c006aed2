"""How much the clusters of classes change from one evaluation to the next."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

NEVER = -1


class ClusterHistory(nn.Module):
    """Remembers every clustering as it was at the last evaluation; empty for a method without clusters.

    Its buffer is part of a checkpoint, so that a resumed run compares with the evaluation before it. It stays on the
    CPU: an evaluation waits for the device anyway, and a GPU has no deterministic way to sum over clusters.
    """

    medoid_of: Tensor

    def __init__(self, class_facts: Mapping[str, Tensor]) -> None:
        super().__init__()
        shape = class_facts["clusters"].shape if "clusters" in class_facts else (0, 0)
        self.register_buffer("medoid_of", torch.full(shape, NEVER, dtype=torch.int32))

    def take_changes(self, class_facts: Mapping[str, Tensor]) -> dict[str, float]:
        """Classes whose cluster has other members, and whose medoid is another one, as means over the clusterings.

        Nothing at the first evaluation. ``class_facts`` holds (n, K) ``clusters`` and (n, k) ``medoids``.
        """
        if not self.medoid_of.numel():
            return {}
        before = self.medoid_of.long()
        now = class_facts["medoids"].cpu().gather(1, class_facts["clusters"].cpu().long()).long()
        self.medoid_of.copy_(now)
        if (before == NEVER).any():
            return {}
        return {
            "cluster_changes": _mean_classes(_members(before) != _members(now)),
            "medoid_changes": _mean_classes(before != now),
        }


def _mean_classes(changed: Tensor) -> float:
    """(n, K) -> the mean number of classes in a row."""
    return float(changed.sum(dim=1, dtype=torch.float64).mean())


def _members(medoid_of: Tensor) -> Tensor:
    """(n, K) a number that stands for the members of each class's cluster, whichever of them is the medoid.

    It is the sum of 64 random bits a member: two different clusters agree by a chance of 2^-64.
    """
    num_classes = medoid_of.shape[1]
    generator = torch.Generator().manual_seed(num_classes)
    bits = torch.randint(-(2**63), 2**63 - 1, (num_classes,), generator=generator)
    sums = torch.zeros_like(medoid_of).scatter_add_(1, medoid_of, bits.expand_as(medoid_of))
    return sums.gather(1, medoid_of)
