"""Properties of FixMatch."""

from __future__ import annotations

import pytest
import torch

from semifine.losses import soft_cross_entropy
from semifine.methods.base import DataInfo, Progress, hard_pseudo_labels
from semifine.methods.soc import SoC, SoCSettings
from tests.methods.one_step import make_batch, make_linear_networks, make_method, make_networks


def test_threshold_above_one_accepts_nothing() -> None:
    probs = torch.eye(4)
    assert hard_pseudo_labels(probs, 1.01).accepted.sum() == 0


def test_threshold_zero_accepts_everything() -> None:
    probs = torch.rand(10, 4).softmax(1)
    assert hard_pseudo_labels(probs, 0.0).accepted.all()


def test_confidence_equal_to_the_threshold_is_accepted() -> None:
    probs = torch.tensor([[0.75, 0.25]])
    assert hard_pseudo_labels(probs, 0.75).accepted.item() == 1


def test_threshold_zero_equals_soc_with_one_class_per_cluster() -> None:
    torch.manual_seed(0)
    probs, strong = torch.rand(10, 4).softmax(1), torch.randn(10, 4)
    soc = SoC(SoCSettings(map="fixed", k=4), DataInfo(4, 10, 10))
    fixmatch = hard_pseudo_labels(probs, 0.0)
    torch.testing.assert_close(
        soft_cross_entropy(strong, soc.pseudo_labels(probs).target),
        soft_cross_entropy(strong, fixmatch.target, fixmatch.accepted),
    )


@pytest.mark.parametrize("labels", ["hard", "soft"])
def test_threshold_above_one_gives_the_supervised_loss(labels: str) -> None:
    method, networks = make_method("fixmatch", threshold=1.01, labels=labels), make_networks("fixmatch")
    batch = make_batch(method)
    supervised = make_method("supervised")(networks, batch, Progress(0, 10))
    torch.testing.assert_close(method(networks, batch, Progress(0, 10)).loss, supervised.loss)


def test_no_gradient_flows_through_the_weak_view() -> None:
    method, networks = make_method("fixmatch", threshold=0), make_linear_networks()
    batch = make_batch(method)
    for views in (batch.labeled, batch.unlabeled):
        for view in views.values():
            view.requires_grad_()
    method(networks, batch, Progress(0, 10)).loss.backward()
    assert batch.unlabeled["weak"].grad is None or not batch.unlabeled["weak"].grad.any()
    assert batch.unlabeled["strong"].grad.any()


def test_soft_labels_equal_hard_labels_for_certain_predictions() -> None:
    certain = torch.eye(6)[[1, 4, 4, 0]]
    hard, soft = (make_method("fixmatch", labels=labels).pseudo_labels(certain) for labels in ("hard", "soft"))
    torch.testing.assert_close(soft.target, hard.target)
    torch.testing.assert_close(soft.accepted, hard.accepted)


def test_soft_labels_are_the_predictions() -> None:
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.9, 0.05, 0.05]])
    pseudo = make_method("fixmatch", labels="soft", threshold=0.6).pseudo_labels(probs)
    torch.testing.assert_close(pseudo.target, probs)
    assert pseudo.accepted.tolist() == [0, 1]


def test_soft_labels_without_threshold_equal_soc_with_one_cluster() -> None:
    probs = torch.rand(10, 4).softmax(1)
    soc = SoC(SoCSettings(map="fixed", k=1), DataInfo(4, 10, 10))
    torch.testing.assert_close(soc.pseudo_labels(probs).target, probs)
