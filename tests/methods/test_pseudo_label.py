"""Properties of Pseudo-Label."""

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


def test_ramp_up_increases_from_exp_minus_five_to_one() -> None:
    assert ramp_up(torch.tensor(0), 10).item() == pytest.approx(math.exp(-5))
    assert ramp_up(torch.tensor(5), 10).item() == pytest.approx(math.exp(-5 / 4))
    assert ramp_up(torch.tensor(10), 10) == ramp_up(torch.tensor(99), 10) == 1


def test_ramp_of_length_zero_has_full_weight_after_the_first_step() -> None:
    assert ramp_up(torch.tensor(1), 0) == 1


def test_ramp_is_a_fraction_of_the_run_and_counts_steps_of_the_method() -> None:
    method, networks = make_method("pseudo_label", ramp=0.5, threshold=0), make_networks("pseudo_label")
    batch, progress = make_batch(method), Progress(0, 8)
    for step in range(5):
        metrics = method(networks, batch, progress).metrics
        weight = (metrics["loss"] - metrics["loss_labeled"]) / metrics["loss_unlabeled"]
        assert weight.item() == pytest.approx(math.exp(-5 * (1 - step / 4) ** 2), abs=1e-5)


def test_images_below_the_threshold_have_no_gradient() -> None:
    method, networks = make_method("pseudo_label", threshold=1.0, ramp=0), make_linear_networks()
    method.steps.fill_(5)
    batch = make_batch(method)
    supervised_part = make_method("pseudo_label", threshold=1.0, weight=0)
    for actual, expected in zip(
        gradient(method, networks, batch), gradient(supervised_part, networks, batch), strict=True
    ):
        if actual is not None:
            torch.testing.assert_close(actual, expected, atol=1e-6, rtol=1e-4)


def test_hard_labels_have_weight_ten() -> None:
    method = make_method("pseudo_label", threshold=0.5)
    probs = torch.tensor([[0.6, 0.1, 0.1, 0.1, 0.05, 0.05], [0.3, 0.2, 0.2, 0.1, 0.1, 0.1]])
    targets = method.targets(method.pseudo_labels(probs))
    torch.testing.assert_close(targets[0], torch.tensor([10.0, 0, 0, 0, 0, 0]))
    torch.testing.assert_close(targets[1], probs[1])


def test_threshold_one_gives_the_scaled_supervised_gradient() -> None:
    """The gradient is half the supervised gradient with equal metrics of labeled and unlabeled images."""
    method, networks = make_method("pseudo_label", threshold=1.0), make_linear_networks()
    batch = make_batch(method)
    batch = replace(batch, unlabeled={"weak": batch.unlabeled["weak"][:4]}, index=batch.index[:4])
    supervised = gradient(make_method("supervised"), networks, batch)
    for actual, expected in zip(gradient(method, networks, batch), supervised, strict=True):
        if actual is not None:
            torch.testing.assert_close(actual, expected / 2, atol=1e-6, rtol=1e-4)


def test_confidence_must_exceed_the_threshold() -> None:
    probs = torch.tensor([[0.75, 0.25]])
    assert make_method("pseudo_label", threshold=0.75).pseudo_labels(probs).accepted.item() == 0
    assert make_method("pseudo_label", threshold=0.74).pseudo_labels(probs).accepted.item() == 1


def test_one_pass_has_the_same_gradient_as_two() -> None:
    two, one = (make_method("pseudo_label", threshold=0.2, second_pass=second) for second in (True, False))
    networks = make_networks("pseudo_label", train=True)
    batch = make_batch(two)
    for actual, expected in zip(gradient(one, networks, batch), gradient(two, networks, batch), strict=True):
        torch.testing.assert_close(actual, expected, atol=1e-5, rtol=1e-3)
