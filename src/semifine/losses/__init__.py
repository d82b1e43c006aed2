"""Losses as pure functions on tensors. Imports torch and nothing else of ours."""

from semifine.losses.cross_entropy import soft_cross_entropy, supervised_cross_entropy

__all__ = ["soft_cross_entropy", "supervised_cross_entropy"]
