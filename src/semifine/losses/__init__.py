"""Losses as pure functions on tensors. Imports torch and nothing else of ours."""

from semifine.losses.contrast import contrast_logits, contrastive_loss
from semifine.losses.cross_entropy import soft_cross_entropy, supervised_cross_entropy
from semifine.losses.distillation import distillation_loss

__all__ = [
    "contrast_logits",
    "contrastive_loss",
    "distillation_loss",
    "soft_cross_entropy",
    "supervised_cross_entropy",
]
