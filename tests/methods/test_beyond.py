"""Methods beyond the paper's: one step of each against a slow, independent version of its equations."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semifine.errors import UserError
from semifine.methods import method_class, method_names
from semifine.methods.base import Batch, Method, Progress, StepResult
from semifine.methods.components import hashed_beta
from semifine.methods.dst import ReversedGradient, disparity_loss
from semifine.methods.freematch import fairness_loss
from semifine.models.forward import Networks
from tests.methods.one_step import CLASSES, LABEL, VOTES, make_batch, make_linear_networks, make_method

Array = NDArray[np.float64]
STEPS = 3


# Slow versions of the common parts: softmax and cross-entropy of single images


def softmax(logits: Array) -> Array:
    exponents = [math.exp(value - max(logits)) for value in logits]
    return np.array([value / sum(exponents) for value in exponents])


def rows(values: torch.Tensor) -> list[Array]:
    return list(values.detach().double().numpy())


def predictions(network: torch.nn.Module, images: torch.Tensor, head: str | None = None) -> list[Array]:
    output = network(images)
    return [softmax(row) for row in rows(output.logits if head is None else output.heads[head])]


def mean(values: list[float]) -> float:
    return sum(values) / len(values)


def labeled_loss(networks: Networks, batch: Batch, head: str | None = None) -> float:
    probs = predictions(networks.student, batch.labeled["weak"], head)
    return mean([-math.log(p[int(y)]) for p, y in zip(probs, batch.label, strict=True)])


def run(name: str, **settings: object) -> tuple[Method, Networks, list[tuple[Batch, StepResult]]]:
    """Runs a few steps; the network does not change, the state of the method does."""
    method, networks = make_method(name, **settings), make_linear_networks()
    results = []
    for step in range(STEPS):
        batch = make_batch(method, seed=10 + step)  # seed 0 gives the numbers of the weights
        results.append((batch, method(networks, batch, Progress(step, 10))))
    return method, networks, results


def assert_close(actual: Any, expected: Any) -> None:
    np.testing.assert_allclose(np.asarray(torch.as_tensor(actual).detach()), np.asarray(expected), rtol=2e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("freematch", "FreeMatch"),
        ("softmatch", "SoftMatch"),
        ("debiaspl", "DebiasPL"),
        ("dst", "DST"),
        ("uda", "UDA"),
        ("mean_teacher", "Mean Teacher"),
        ("remixmatch", "ReMixMatch"),
        ("abc", "ABC"),
        ("vote", "Vote"),
    ],
)
def test_methods_have_a_style_of_their_own_in_reports(name: str, title: str) -> None:
    method = method_class(name)
    assert (method.title, method.group) == (title, "semi_supervised")
    others = [method_class(other) for other in method_names() if other != name]
    assert (method.color, method.line_style) not in [(other.color, other.line_style) for other in others]


# FreeMatch


def test_freematch() -> None:
    method, networks, results = run("freematch", decay=0.1, weight_fairness=0.5)
    tau, mean_probs, histogram = 1 / CLASSES, np.full(CLASSES, 1 / CLASSES), np.full(CLASSES, 1 / CLASSES)
    for batch, result in results:
        weak = predictions(networks.student, batch.unlabeled["weak"])
        strong = predictions(networks.student, batch.unlabeled["strong"])
        tau = 0.1 * tau + 0.9 * mean([max(p) for p in weak])
        mean_probs = 0.1 * mean_probs + 0.9 * np.mean(weak, axis=0)
        counts = [sum(p.argmax() == c for p in weak) / len(weak) for c in range(CLASSES)]
        histogram = 0.1 * histogram + 0.9 * np.array(counts)
        accepted = [max(p) >= tau * mean_probs[p.argmax()] / mean_probs.max() for p in weak]
        assert 0 < sum(accepted) < len(accepted), "otherwise the test proves little"
        losses = [-math.log(s[p.argmax()]) if ok else 0.0 for p, s, ok in zip(weak, strong, accepted, strict=True)]

        kept = [s for s, ok in zip(strong, accepted, strict=True) if ok]
        ratios = []
        for c in range(CLASSES):
            share = sum(s.argmax() == c for s in kept) / len(kept)
            ratios.append(sum(s[c] for s in kept) / len(strong) / share if share else 0.0)
        running = [mean_probs[c] / histogram[c] for c in range(CLASSES)]
        fairness = sum(running[c] / sum(running) * math.log(ratios[c] / sum(ratios) + 1e-12) for c in range(CLASSES))
        assert_close(result.pseudo_labels.accepted, [float(ok) for ok in accepted])
        assert_close(result.metrics["loss_fairness"], fairness)
        assert_close(result.loss, labeled_loss(networks, batch) + mean(losses) + 0.5 * fairness)
    assert_close(method.confidence, tau)
    assert_close(method.histogram, histogram)


def test_fairness_loss_without_accepted_labels_is_zero_and_has_a_finite_gradient() -> None:
    logits = torch.randn(4, 3, requires_grad=True)
    uniform = torch.full((3,), 1 / 3)
    loss = fairness_loss(logits, torch.zeros(4), uniform, uniform)
    loss.backward()
    assert loss == 0
    assert not logits.grad.any()


# SoftMatch


@pytest.mark.parametrize("aligned", [True, False])
def test_softmatch(aligned: bool) -> None:
    method, networks, results = run("softmatch", decay=0.7, uniform_alignment=aligned, weight=2.0)
    mu, variance, mean_probs = 1 / CLASSES, 1.0, np.full(CLASSES, 1 / CLASSES)
    for batch, result in results:
        weak = predictions(networks.student, batch.unlabeled["weak"])
        strong = predictions(networks.student, batch.unlabeled["strong"])
        mean_probs = 0.7 * mean_probs + 0.3 * np.mean(weak, axis=0)
        confidence = []
        for p in weak:
            ratio = p / mean_probs
            confidence.append(max(ratio / ratio.sum()) if aligned else max(p))
        mu = 0.7 * mu + 0.3 * mean(confidence)
        spread = sum((c - mean(confidence)) ** 2 for c in confidence) / (len(confidence) - 1)
        variance = 0.7 * variance + 0.3 * spread
        weight = [1.0 if c >= mu else math.exp(-((c - mu) ** 2) / (2 * variance / 4)) for c in confidence]
        losses = [-w * math.log(s[p.argmax()]) for w, p, s in zip(weight, weak, strong, strict=True)]
        assert_close(result.pseudo_labels.accepted, weight)
        assert_close(result.loss, labeled_loss(networks, batch) + 2 * mean(losses))
    assert_close([method.confidence, method.variance], [mu, variance])


def test_labels_of_softmatch_are_not_aligned() -> None:
    method = make_method("softmatch")
    method.mean.copy_(torch.tensor([0.9, 0.02, 0.02, 0.02, 0.02, 0.02]))
    probs = torch.tensor([[0.6, 0.4, 0, 0, 0, 0]])
    assert method.pseudo_labels(probs).target.argmax() == 0


# DebiasPL


def test_debiaspl() -> None:
    method, networks, results = run("debiaspl", align_decay=0.6, threshold=0.24)
    mean_probs = np.full(CLASSES, 1 / CLASSES)
    for batch, result in results:
        weak = rows(networks.student(batch.unlabeled["weak"]).logits)
        strong = rows(networks.student(batch.unlabeled["strong"]).logits)
        mean_probs = 0.6 * mean_probs + 0.4 * np.mean([softmax(z) for z in weak], axis=0)
        losses, accepted = [], []
        for z, s in zip(weak, strong, strict=True):
            debiased = softmax(z - 0.5 * np.log(mean_probs))
            accepted.append(float(max(debiased) >= 0.24))
            losses.append(-accepted[-1] * math.log(softmax(s + 0.5 * np.log(mean_probs))[debiased.argmax()]))
        assert sum(accepted) > 0
        assert_close(result.pseudo_labels.accepted, accepted)
        assert_close(result.loss, labeled_loss(networks, batch) + mean(losses))
    assert_close(method.levers.mean_probs, mean_probs)


def test_published_settings_of_debiaspl() -> None:
    settings = make_method("debiaspl").settings
    assert (settings.threshold, settings.align, settings.adjust_unlabeled, settings.align_decay) == (
        0.95,
        0.5,
        0.5,
        0.999,
    )


# DST


def test_dst() -> None:
    _, networks, results = run("dst", threshold=0.24, weight_worst=0.5)
    for batch, result in results:
        student = networks.student
        weak = predictions(student, batch.unlabeled["weak"])
        pseudo = predictions(student, batch.unlabeled["strong"], "pseudo")
        worst = predictions(student, batch.unlabeled["strong"], "worst")
        accepted = [max(p) >= 0.24 for p in weak]
        assert 0 < sum(accepted) < len(accepted)
        unlabeled = mean([-math.log(q[p.argmax()]) * ok for p, q, ok in zip(weak, pseudo, accepted, strict=True)])
        wrong = mean([-math.log(1 - q[p.argmax()]) * ok for p, q, ok in zip(weak, worst, accepted, strict=True)])
        expected = labeled_loss(networks, batch) + unlabeled + 0.5 * (labeled_loss(networks, batch, "worst") + wrong)
        assert_close(result.loss, expected)


def test_pseudo_labels_of_dst_do_not_train_the_classifier() -> None:
    method, networks = make_method("dst", threshold=0.0), make_linear_networks()
    batch = make_batch(method)
    method(networks, batch, Progress(0, 10)).loss.backward()
    gradient = networks.student.head.weight.grad.clone()
    networks.student.zero_grad()
    torch.nn.functional.cross_entropy(networks.student(batch.labeled["weak"]).logits, batch.label).backward()
    torch.testing.assert_close(gradient, networks.student.head.weight.grad)


def test_worst_case_head_of_dst_lowers_its_loss_and_the_features_raise_it() -> None:
    method = method_class("dst")
    torch.manual_seed(0)
    head = method.class_heads(make_method("dst").settings, 12, CLASSES)["worst"]
    assert isinstance(head[0], ReversedGradient)
    features = torch.randn(8, 12, requires_grad=True)
    prediction, ones = LABEL[:8], torch.ones(8)

    def loss(values: torch.Tensor) -> torch.Tensor:
        return disparity_loss(head(values), prediction, ones)

    before = loss(features)
    before.backward()
    assert loss(features - 0.5 * features.grad) > before
    with torch.no_grad():
        for parameter in head.parameters():
            parameter -= 0.01 * parameter.grad
    assert loss(features) < before


# UDA


def test_uda() -> None:
    _, networks, results = run("uda", threshold=0.24, weight=0.5)
    for batch, result in results:
        weak = rows(networks.student(batch.unlabeled["weak"]).logits)
        strong = predictions(networks.student, batch.unlabeled["strong"])
        losses, accepted = [], []
        for z, s in zip(weak, strong, strict=True):
            target = softmax(z / 0.4)
            accepted.append(float(max(softmax(z)) >= 0.24))
            losses.append(-accepted[-1] * sum(target[c] * math.log(s[c]) for c in range(CLASSES)))
        assert 0 < sum(accepted) < len(accepted)
        assert_close(result.loss, labeled_loss(networks, batch) + 0.5 * mean(losses))


@pytest.mark.parametrize("schedule", ["linear", "log", "exp"])
def test_annealing_of_uda_ignores_labeled_images_that_are_predicted_well(schedule: str) -> None:
    _, networks, results = run("uda", annealing=schedule, weight=0.0)
    counts = []
    for step, (batch, result) in enumerate(results):
        t = step / 10
        alpha = {"linear": t, "log": 1 - math.exp(-5 * t), "exp": math.exp(5 * (t - 1))}[schedule]
        threshold = alpha * (1 - 1 / CLASSES) + 1 / CLASSES
        probs = predictions(networks.student, batch.labeled["weak"])
        true = [p[int(y)] for p, y in zip(probs, batch.label, strict=True)]
        kept = [-math.log(p) for p in true if p < threshold]
        counts.append(len(kept))
        assert_close(result.loss, sum(kept) / max(1, len(kept)))
    assert counts[0] < 4, "some images are above the first threshold"


# Mean Teacher


def test_mean_teacher() -> None:
    _, networks, results = run("mean_teacher", ramp=0.2, weight=3.0)
    for step, (batch, result) in enumerate(results):
        student = predictions(networks.student, batch.unlabeled["weak"])
        teacher = predictions(networks.ema, batch.unlabeled["weak:2"])
        squares = [(p[c] - q[c]) ** 2 for p, q in zip(student, teacher, strict=True) for c in range(CLASSES)]
        weight = 3 * math.exp(-5 * (1 - min(1, step / 2)) ** 2)
        assert_close(result.metrics["loss_unlabeled"], mean(squares))
        assert_close(result.loss, labeled_loss(networks, batch) + weight * mean(squares))


def test_no_gradient_flows_to_the_teacher() -> None:
    method, networks = make_method("mean_teacher"), make_linear_networks()
    method(networks, make_batch(method), Progress(0, 10)).loss.backward()
    assert all(parameter.grad is None for parameter in networks.ema.parameters())


# ReMixMatch


def slow_soft_ce(target: Array, logits: Array) -> float:
    return -sum(q * math.log(p) for q, p in zip(target, softmax(logits), strict=True))


def test_remixmatch(monkeypatch: pytest.MonkeyPatch) -> None:
    method, networks = make_method("remixmatch", align_decay=0.5), make_linear_networks()
    draws = []
    draw = type(method)._draw_mixing

    def recorded(self: Any, count: int, device: torch.device) -> Any:
        draws.append(draw(self, count, device))
        return draws[-1]

    monkeypatch.setattr(type(method), "_draw_mixing", recorded)
    prior = np.array([sum(int(y) == c for y in LABEL) for c in range(CLASSES)]) / len(LABEL)
    mean_probs = np.full(CLASSES, 1 / CLASSES)
    for step in range(STEPS):
        batch = make_batch(method, seed=10 + step)
        result = method(networks, batch, Progress(step, 10))
        student = networks.student
        weak = predictions(student, batch.unlabeled["weak"])
        mean_probs = 0.5 * mean_probs + 0.5 * np.mean(weak, axis=0)
        labels = []
        for p in weak:
            aligned = p * prior / mean_probs
            sharp = (aligned / aligned.sum()) ** 2
            labels.append(sharp / sharp.sum())
        hard = [np.eye(CLASSES)[int(y)] for y in batch.label]
        first, second = batch.unlabeled["strong"], batch.unlabeled["strong:2"]
        images = [*batch.labeled["weak"], *first, *second, *batch.unlabeled["weak"]]
        targets = [*hard, *labels, *labels, *labels]
        partner, weight = draws[-1]
        assert sorted(partner.tolist()) == list(range(len(images)))
        losses = []
        for i, (j, m) in enumerate(zip(partner.tolist(), weight.tolist(), strict=True)):
            assert 0.5 <= m <= 1
            (logits,) = rows(student((m * images[i] + (1 - m) * images[j])[None]).logits)
            losses.append(slow_soft_ce(m * targets[i] + (1 - m) * targets[j], logits))
        anchored = mean([slow_soft_ce(q, z) for q, z in zip(labels, rows(student(first).logits), strict=True)])
        turning = []
        for i, image in enumerate(first):
            turned = image
            for _ in range(i % 4):
                turned = torch.rot90(turned, 1, dims=(1, 2))
            turning.append(-math.log(predictions(student, turned[None], "rotation")[0][i % 4]))
        assert_close(result.metrics["loss_labeled"], mean(losses[:4]))
        assert_close(result.metrics["loss_unlabeled"], mean(losses[4:]))
        assert_close(result.metrics["loss_rotation"], mean(turning))
        expected = mean(losses[:4]) + 1.5 * mean(losses[4:]) + 1.5 * anchored + 0.5 * mean(turning)
        assert_close(result.loss, expected)


def test_mixing_of_remixmatch_changes_with_the_step_and_not_with_the_process_state() -> None:
    draws = [make_method("remixmatch")._draw_mixing(20, torch.device("cpu")) for _ in range(2)]
    for first, second in zip(*draws, strict=True):
        assert torch.equal(first, second)
    method = make_method("remixmatch")
    partners = [method._draw_mixing(20, torch.device("cpu"))[0] for _ in range(2)]
    assert not torch.equal(*partners)


# ABC


def test_abc() -> None:
    method, networks, results = run("abc", threshold=0.24, weight=0.5, weight_balanced=2.0)
    counts = [sum(int(y) == c for y in LABEL) for c in range(CLASSES)]
    assert_close(method.kept_share, [min(counts) / count for count in counts])
    for batch, result in results:
        student = networks.student
        weak, strong = (predictions(student, batch.unlabeled[view]) for view in ("weak", "strong"))
        base_weak, base_strong = (predictions(student, batch.unlabeled[view], "base") for view in ("weak", "strong"))
        base = [
            -math.log(s[p.argmax()]) if max(p) >= 0.24 else 0.0 for p, s in zip(base_weak, base_strong, strict=True)
        ]
        balanced = [
            -sum(p[c] * math.log(s[c]) for c in range(CLASSES)) if max(p) >= 0.24 else 0.0
            for p, s in zip(weak, strong, strict=True)
        ]
        # All classes have equally many labels, so that every image is drawn.
        expected = labeled_loss(networks, batch, "base") + 0.5 * mean(base)
        assert_close(result.loss, expected + labeled_loss(networks, batch) + 2 * mean(balanced))


def test_abc_draws_equally_many_images_of_each_class() -> None:
    method = make_method("abc")
    method.kept_share.copy_(torch.tensor([0.1, 0.2, 0.4, 0.5, 0.8, 1.0]))
    images = 4000
    kept = method._draw(torch.arange(images), method.kept_share[torch.arange(images) % CLASSES], stream=0)
    shares = [kept[c::CLASSES].mean().item() for c in range(CLASSES)]
    np.testing.assert_allclose(shares, method.kept_share, atol=0.06)
    again = method._draw(torch.arange(images), method.kept_share[torch.arange(images) % CLASSES], stream=0)
    assert torch.equal(kept, again), "a function of step and image"
    method.steps.add_(1)
    assert not torch.equal(kept, method._draw(torch.arange(images), torch.full((images,), 0.5), stream=0))


def test_unlabeled_images_of_frequent_classes_are_dropped_gradually() -> None:
    accepted = []
    for step in (0, 10):
        method, networks = make_method("abc", threshold=0.0), make_linear_networks()
        method.kept_share.zero_()
        method.steps.fill_(step)
        accepted.append(method(networks, make_batch(method), Progress(0, 10)).metrics["accepted"].item())
    assert accepted == [1.0, 0.0]


# Vote


def slow_votes(image: int) -> tuple[Array, float]:
    given = [int(vote) for vote in VOTES[image] if vote >= 0]
    if not given:
        return np.full(CLASSES, 1 / CLASSES), 0.0
    return np.array([given.count(c) / len(given) for c in range(CLASSES)]), 1.0


def test_vote() -> None:
    _, networks, results = run("vote", weight=2.0)
    assert (VOTES[:8] < 0).all(dim=1).any(), "an image without votes"
    for batch, result in results:
        losses = []
        for image, p in zip(batch.index, predictions(networks.student, batch.unlabeled["strong"]), strict=True):
            target, accepted = slow_votes(int(image))
            losses.append(-accepted * sum(target[c] * math.log(p[c]) for c in range(CLASSES)))
        assert_close(result.loss, labeled_loss(networks, batch) + 2 * mean(losses))


def test_candidate_sets_restrict_votes_to_the_cluster_of_the_majority() -> None:
    method, networks, results = run("vote", candidates=True)
    assert method.unlabeled_views == ("weak", "strong")
    batch, result = results[-1]
    kept = 0
    for image, target in zip(batch.index, result.pseudo_labels.target, strict=True):
        votes, _ = slow_votes(int(image))
        majority = int(votes.argmax())
        k = int(method.selector.granularity(torch.tensor([votes.max()]).float()))
        cluster = method.selector.clusters(k)
        restricted = np.array([votes[c] * (cluster[c] == cluster[majority]).item() for c in range(CLASSES)])
        kept += int((restricted > 0).sum() < (votes > 0).sum())
        assert_close(target, restricted / restricted.sum())
    assert kept > 0, "some votes are for classes outside the cluster"
    weak = networks.student(batch.unlabeled["weak"]).logits.argmax(dim=1)
    assert torch.equal(method.selector.tracker.bank[batch.index].long(), weak), (
        "transitions of the network, not of the votes"
    )


def test_voters_are_needed() -> None:
    with pytest.raises(UserError, match=r"set --method\.voters"):
        method_class("vote").voters(method_class("vote").Settings())


# Random numbers


def test_hashed_beta_has_the_moments_of_the_distribution() -> None:
    for concentration in (0.3, 0.75, 1.0):
        draws = hashed_beta(concentration, 3, torch.arange(20_000)).double()
        assert draws.min() >= 0
        assert draws.max() <= 1
        assert_close_to = pytest.approx(1 / (4 * (2 * concentration + 1)), rel=0.04)
        assert draws.mean() == pytest.approx(0.5, abs=0.01)
        assert draws.var().item() == assert_close_to
