"""Properties of FixMatch that its specification names."""

from __future__ import annotations

import torch

from semifine.losses import soft_cross_entropy
from semifine.methods.base import DataInfo, hard_pseudo_labels
from semifine.methods.soc import SoC, SoCSettings


def test_threshold_above_one_accepts_nothing() -> None:
    probs = torch.eye(4)
    assert hard_pseudo_labels(probs, 1.01).accepted.sum() == 0


def test_threshold_zero_accepts_everything() -> None:
    probs = torch.rand(10, 4).softmax(1)
    assert hard_pseudo_labels(probs, 0.0).accepted.all()


def test_confidence_equal_to_the_threshold_is_accepted() -> None:
    probs = torch.tensor([[0.75, 0.25]])
    assert hard_pseudo_labels(probs, 0.75).accepted.item() == 1


def test_equals_soc_with_as_many_clusters_as_classes() -> None:
    torch.manual_seed(0)
    probs, strong = torch.rand(10, 4).softmax(1), torch.randn(10, 4)
    soc = SoC(SoCSettings(map="fixed", k=4), DataInfo(4, 10, 10))
    fixmatch = hard_pseudo_labels(probs, 0.0)
    torch.testing.assert_close(
        soft_cross_entropy(strong, soc.pseudo_labels(probs).target),
        soft_cross_entropy(strong, fixmatch.target, fixmatch.accepted),
    )
