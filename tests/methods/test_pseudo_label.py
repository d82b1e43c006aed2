"""Properties of Pseudo-Label that its specification names."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from semifine.methods.base import Progress
from semifine.methods.pseudo_label import ramp_up
from tests.methods.one_step import make_batch, make_linear_networks, make_method, make_networks

PROGRESS = Progress(0, 10)


def gradient(method, networks, batch):
    parameters = list(networks.student.parameters())
    return torch.autograd.grad(method(networks, batch, PROGRESS).loss, parameters, allow_unused=True)


def test_the_coefficient_rises_from_exp_minus_five_to_one() -> None:
    assert ramp_up(torch.tensor(0), 10).item() == pytest.approx(math.exp(-5))
    assert ramp_up(torch.tensor(5), 10).item() == pytest.approx(math.exp(-5 / 4))
    assert ramp_up(torch.tensor(10), 10) == ramp_up(torch.tensor(99), 10) == 1


def test_a_ramp_of_zero_starts_at_full_weight_after_the_first_step() -> None:
    assert ramp_up(torch.tensor(1), 0) == 1


def test_the_ramp_is_a_share_of_the_run_and_counts_its_own_steps() -> None:
    method, networks = make_method("pseudo_label", ramp=0.5, threshold=0), make_networks("pseudo_label")
    batch, progress = make_batch(method), Progress(0, 8)
    for step in range(5):
        numbers = method(networks, batch, progress).metrics
        weight = (numbers["loss"] - numbers["loss_labeled"]) / numbers["loss_unlabeled"]
        assert weight.item() == pytest.approx(math.exp(-5 * (1 - step / 4) ** 2), abs=1e-5)


def test_images_below_the_threshold_have_no_gradient() -> None:
    method, networks = make_method("pseudo_label", threshold=1.0, ramp=0), make_linear_networks()
    method.steps.fill_(5)
    batch = make_batch(method)
    alone = make_method("pseudo_label", threshold=1.0, weight=0)
    for own, other in zip(gradient(method, networks, batch), gradient(alone, networks, batch), strict=True):
        if own is not None:
            torch.testing.assert_close(own, other, atol=1e-6, rtol=1e-4)


def test_a_hard_label_pulls_ten_times_as_much() -> None:
    method = make_method("pseudo_label", threshold=0.5)
    probs = torch.tensor([[0.6, 0.1, 0.1, 0.1, 0.05, 0.05], [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]])
    targets = method.targets(method.pseudo_labels(probs))
    torch.testing.assert_close(targets[0], torch.tensor([10.0, 0, 0, 0, 0, 0]))
    torch.testing.assert_close(targets[1], probs[1])


def test_a_threshold_of_one_or_more_leaves_the_labeled_share_of_the_supervised_gradient() -> None:
    """With as many labeled as unlabeled images, half of it."""
    method, networks = make_method("pseudo_label", threshold=1.0), make_linear_networks()
    batch = make_batch(method)
    batch = replace(batch, unlabeled={"weak": batch.unlabeled["weak"][:4]}, index=batch.index[:4])
    supervised = gradient(make_method("supervised"), networks, batch)
    for own, other in zip(gradient(method, networks, batch), supervised, strict=True):
        if own is not None:
            torch.testing.assert_close(own, other / 2, atol=1e-6, rtol=1e-4)


def test_confidence_must_exceed_the_threshold() -> None:
    probs = torch.tensor([[0.75, 0.25]])
    assert make_method("pseudo_label", threshold=0.75).pseudo_labels(probs).accepted.item() == 0
    assert make_method("pseudo_label", threshold=0.74).pseudo_labels(probs).accepted.item() == 1


def test_one_pass_gives_the_gradient_of_two() -> None:
    two, one = (make_method("pseudo_label", threshold=0.2, second_pass=second) for second in (True, False))
    networks = make_networks("pseudo_label", train=True)
    batch = make_batch(two)
    for own, other in zip(gradient(one, networks, batch), gradient(two, networks, batch), strict=True):
        torch.testing.assert_close(own, other, atol=1e-5, rtol=1e-3)
