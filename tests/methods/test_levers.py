"""Levers: functions and running estimates against slow versions, and their effect in every method that has them."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.methods import method_class
from semifine.methods.base import DataInfo, Method, Progress, PseudoLabels
from semifine.methods.levers import (
    LabeledLeverSettings,
    Levers,
    LeverSettings,
    adjust_logits,
    align_distribution,
    class_frequencies,
    posterior_under_prior,
)
from tests.conftest import tiny_settings, trained_methods
from tests.methods.one_step import CLASSES, LABELED, UNLABELED, make_batch, make_linear_networks, make_method

PROGRESS = Progress(0, 10)
LONG_TAIL = torch.tensor([0] * 8 + [1] * 4 + [2] * 2 + [3, 4, 5])
WITH_LEVERS = [name for name in trained_methods() if issubclass(method_class(name).Settings, LeverSettings)]
ADJUSTABLE = [name for name in trained_methods() if issubclass(method_class(name).Settings, LabeledLeverSettings)]

Array = NDArray[np.float64]


def make_levers(**settings: object) -> Levers:
    return Levers(LeverSettings(**settings), DataInfo(CLASSES, len(LONG_TAIL), UNLABELED, label=LONG_TAIL))  # type: ignore[arg-type]


def random_logits(seed: int = 0, batch: int = 8) -> torch.Tensor:
    return torch.randn(batch, CLASSES, generator=torch.Generator().manual_seed(seed))


def slow_softmax(logits: torch.Tensor, temperature: float = 1.0) -> Array:
    rows = []
    for row in logits.double().numpy():
        weights = [np.exp(value / temperature) for value in row]
        rows.append([weight / sum(weights) for weight in weights])
    return np.array(rows)


def slow_frequencies() -> Array:
    counts = [sum(int(label) == c for label in LONG_TAIL) for c in range(CLASSES)]
    return np.array([count / sum(counts) for count in counts])


def assert_close(actual: torch.Tensor, expected: Array, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(actual.detach().double().numpy(), expected, rtol=tolerance, atol=tolerance)


def test_levers_are_off_by_default_and_have_no_state() -> None:
    levers, logits = make_levers(), random_logits()
    probs = levers.predict(logits)
    assert torch.equal(probs, logits.softmax(dim=1))
    for unchanged in (levers.correct(probs), levers.sharpen(probs)):
        assert unchanged is probs
    assert levers.adjust_labeled(logits) is logits
    assert levers.adjust_unlabeled(logits) is logits
    assert not levers.state_dict()
    assert not levers.needs_ema


def test_every_semi_supervised_method_of_the_paper_has_the_levers() -> None:
    assert {"soc", "fixmatch", "flexmatch"} <= set(WITH_LEVERS)
    assert {"simmatch", "supervised"} <= set(ADJUSTABLE)


@pytest.mark.parametrize("target", ["uniform", "labels"])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_alignment_equals_a_slow_version(target: str, power: float) -> None:
    levers = make_levers(align=power, align_to=target, align_decay=0.9, label_temperature=0.7)
    mean = np.full(CLASSES, 1 / CLASSES)
    prior = slow_frequencies() if target == "labels" else np.ones(CLASSES)
    for seed in range(3):
        probs = slow_softmax(random_logits(seed), 0.7)
        mean = np.array([0.9 * mean[c] + 0.1 * probs[:, c].mean() for c in range(CLASSES)])
        weighted = np.array([[row[c] * (prior[c] / mean[c]) ** power for c in range(CLASSES)] for row in probs])
        expected = np.array([row / row.sum() for row in weighted])
        assert_close(levers.predict(random_logits(seed)), expected)
    assert_close(levers.mean_probs, mean)
    before = levers.mean_probs.clone()
    assert_close(levers.correct(random_logits(2).softmax(dim=1)), expected)
    assert torch.equal(levers.mean_probs, before)


@pytest.mark.parametrize("strength", [0.0, 1.0])
def test_prior_estimated_by_em_equals_a_slow_version(strength: float) -> None:
    levers = make_levers(align=1.0, align_to="em", align_decay=0.8, adjust_labeled=strength)
    source = slow_frequencies() ** (1 - strength)
    source /= source.sum()
    prior = source.copy()
    for seed in range(4):
        probs = slow_softmax(random_logits(seed))
        posterior = []
        for row in probs:
            weights = [row[c] * prior[c] / source[c] for c in range(CLASSES)]
            posterior.append([weight / sum(weights) for weight in weights])
        prior = 0.8 * prior + 0.2 * np.mean(posterior, axis=0)
        levers.predict(random_logits(seed))
    assert_close(levers.unlabeled_prior, prior)


def test_em_finds_the_class_distribution_of_the_unlabeled_images() -> None:
    """Predictions of an ideal classifier trained on equally frequent classes, images with other frequencies."""
    generator = np.random.default_rng(0)
    true = np.array([0.5, 0.2, 0.1, 0.1, 0.05, 0.05])
    balanced = DataInfo(CLASSES, LABELED, UNLABELED, label=torch.arange(CLASSES))
    levers = Levers(LeverSettings(align=1.0, align_to="em", align_decay=0.99), balanced)
    means = 2.0 * np.eye(CLASSES)
    for _ in range(800):
        label = generator.choice(CLASSES, size=64, p=true)
        images = means[label] + generator.normal(size=(64, CLASSES))
        levers.predict(torch.from_numpy(images @ means.T).float())
    assert_close(levers.unlabeled_prior, true, tolerance=0.04)
    assert (levers.mean_probs - torch.from_numpy(true)).abs().max() > 0.05, "the mean prediction is closer to uniform"


@pytest.mark.parametrize("source", ["predictions", "labels", "em"])
def test_logit_adjustment_equals_a_slow_version(source: str) -> None:
    levers = make_levers(adjust_labeled=0.5, adjust_unlabeled=2.0, adjust_by=source, align_decay=0.5)
    levers.predict(random_logits(1))
    priors = {"predictions": "mean_probs", "labels": "label_prior", "em": "unlabeled_prior"}
    prior = getattr(levers, priors[source]).double().numpy()
    logits = random_logits().double().numpy()
    expected = np.array([[row[c] + 2.0 * np.log(prior[c]) for c in range(CLASSES)] for row in logits])
    assert_close(levers.adjust_unlabeled(random_logits()), expected)
    expected = np.array([[row[c] + 0.5 * np.log(slow_frequencies()[c]) for c in range(CLASSES)] for row in logits])
    assert_close(levers.adjust_labeled(random_logits()), expected)


def test_predictions_trained_on_adjusted_logits_do_not_contain_the_prior() -> None:
    """If z + log prior are the log posteriors under the prior, z are those under equally frequent classes."""
    likelihood = torch.rand(5, CLASSES, generator=torch.Generator().manual_seed(0))
    prior = class_frequencies(LONG_TAIL, CLASSES)
    torch.testing.assert_close(
        adjust_logits(likelihood.log(), prior, 1.0).softmax(dim=1),
        posterior_under_prior(likelihood, prior, torch.ones(CLASSES)),
    )


def test_classes_without_labels_or_predictions_stay_finite() -> None:
    prior = class_frequencies(torch.tensor([0, 0, 1]), CLASSES)
    assert (prior > 0).all()
    certain = torch.eye(CLASSES)[:1]
    assert align_distribution(certain, certain[0], 1.0).isfinite().all()
    assert adjust_logits(torch.zeros(1, CLASSES), certain[0], 1.0).isfinite().all()


# Every method that has the levers


def step(method: Method) -> PseudoLabels:
    result = method(make_linear_networks(), make_batch(method), PROGRESS)
    assert result.loss.isfinite()
    assert result.pseudo_labels is not None
    return result.pseudo_labels


@pytest.mark.parametrize("name", WITH_LEVERS)
def test_labels_come_from_the_averaged_network(name: str) -> None:
    method = make_method(name, labels_from="ema")
    assert method.needs_ema
    networks, batch = make_linear_networks(), make_batch(method)
    pseudo = method(networks, batch, PROGRESS).pseudo_labels
    (weak,) = networks.forward_ema(batch.unlabeled["weak"])
    assert torch.equal(pseudo.probs.argmax(dim=1), weak.logits.argmax(dim=1))
    assert not torch.equal(pseudo.probs.argmax(dim=1), step(make_method(name)).probs.argmax(dim=1))


@pytest.mark.parametrize("name", [*WITH_LEVERS, "simmatch"])
@pytest.mark.parametrize("lever", ["align", "label_temperature"])
def test_labels_are_made_from_changed_predictions(name: str, lever: str) -> None:
    plain, changed = step(make_method(name)), step(make_method(name, **{lever: 0.5, "align_decay": 0.0}))
    assert (plain.probs - changed.probs).abs().max() > 1e-4 or (plain.target - changed.target).abs().max() > 1e-4


@pytest.mark.parametrize("name", [*WITH_LEVERS, "simmatch"])
def test_labels_of_reports_have_the_levers_of_training(name: str) -> None:
    method = make_method(name, align=1.0, align_decay=0.5, label_temperature=0.5)
    step(method)
    method.levers.mean_probs.copy_(class_frequencies(LONG_TAIL, CLASSES))
    state = {key: value.clone() for key, value in method.state_dict().items()}
    probs = random_logits(3, batch=30).softmax(dim=1)
    prediction = method.pseudo_labels(probs).target.argmax(dim=1)
    assert torch.equal(prediction, method.levers.correct(probs).argmax(dim=1))
    assert not torch.equal(prediction, probs.argmax(dim=1))
    for key, value in method.state_dict().items():
        assert torch.equal(value, state[key]), key


@pytest.mark.parametrize("name", ADJUSTABLE)
def test_labeled_loss_is_adjusted(name: str) -> None:
    method = make_method(name, adjust_labeled=1.0)
    method.levers.label_prior.copy_(class_frequencies(LONG_TAIL, CLASSES))
    plain = make_method(name)
    losses = []
    for tested in (method, plain):
        metrics = tested(make_linear_networks(), make_batch(tested), PROGRESS).metrics
        losses.append(metrics.get("loss_labeled", metrics["loss"]))
    assert (losses[0] - losses[1]).abs() > 1e-3


@pytest.mark.parametrize("name", [*WITH_LEVERS, "simmatch"])
def test_loss_of_pseudo_labels_is_adjusted(name: str) -> None:
    accept = {"threshold": 0.0} if any(f.name == "threshold" for f in fields(method_class(name).Settings)) else {}
    losses = []
    for strength in (0.0, 1.0):
        method = make_method(name, adjust_unlabeled=strength, adjust_by="labels", **accept)
        method.levers.label_prior.copy_(class_frequencies(LONG_TAIL, CLASSES))
        losses.append(method(make_linear_networks(), make_batch(method), PROGRESS).metrics["loss_unlabeled"])
    assert (losses[0] - losses[1]).abs() > 1e-4


def test_soft_labels_of_fixmatch_are_sharpened() -> None:
    probs = torch.tensor([[0.8, 0.1, 0.1, 0, 0, 0]])
    soft = make_method("fixmatch", labels="soft", sharpen=2.0).pseudo_labels(probs)
    torch.testing.assert_close(soft.target[0, :2], torch.tensor([0.64, 0.01]) / 0.66)
    hard = make_method("fixmatch", sharpen=2.0).pseudo_labels(probs)
    assert torch.equal(hard.target, torch.eye(CLASSES)[:1])


def test_shares_of_labeled_steps_above_one_are_an_error() -> None:
    with pytest.raises(UserError, match="at most 1 together"):
        tiny_settings("fixmatch", supervised_warmup=0.6, supervised_cooldown=0.5)
    train = replace(tiny_settings("fixmatch").train, supervised_warmup=0.25, supervised_cooldown=0.5)
    assert train.full_steps == range(3, 6)
