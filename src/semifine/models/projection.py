"""Projection heads: from pooled features to points on a sphere, where similarity is a dot product."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import normalize

PROJECTION = "projection"
"""The name of a projection among a classifier's heads; methods share it, so that one can start from another's."""


def linear_projection(feature_dim: int, dim: int) -> nn.Module:
    """One linear layer (MoCo v1)."""
    return nn.Linear(feature_dim, dim)


def mlp_projection(feature_dim: int, dim: int) -> nn.Module:
    """Two layers with a ReLU between them (MoCo v2, SimMatch)."""
    return nn.Sequential(nn.Linear(feature_dim, feature_dim), nn.ReLU(inplace=True), nn.Linear(feature_dim, dim))


def on_sphere(projected: Tensor) -> Tensor:
    """(B, D) rows of length 1, in float32."""
    return normalize(projected.float(), dim=1)
