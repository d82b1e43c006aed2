"""Properties of SimMatch."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from semifine.errors import UserError
from semifine.losses import soft_cross_entropy
from semifine.methods.base import Progress
from semifine.methods.simmatch import aggregate, align, unfold
from semifine.models.classifier import PROJECTION, l2_normalize
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.methods.one_step import (
    CLASSES,
    LABEL,
    LABELED,
    UNLABELED,
    make_batch,
    make_linear_networks,
    make_method,
)

PROGRESS = Progress(0, 10)


@pytest.fixture
def probs() -> torch.Tensor:
    return torch.randn(8, CLASSES, generator=torch.Generator().manual_seed(0)).softmax(1)


@pytest.fixture
def similarity() -> torch.Tensor:
    return torch.randn(8, LABELED, generator=torch.Generator().manual_seed(1)).softmax(1)


def assert_distribution(values: torch.Tensor) -> None:
    assert (values >= 0).all()
    torch.testing.assert_close(values.sum(dim=1), torch.ones(len(values)))


def fill_bank(method, networks):
    """Runs a step for every labeled image once, so that soft labels use the bank."""
    for start in range(0, LABELED, 6):
        labeled = torch.arange(start, start + 6)
        batch = make_batch(method, start)
        images = torch.randn(6, *batch.labeled["weak"].shape[1:])
        step = replace(batch, labeled={"weak": images}, label=LABEL[labeled], labeled_index=labeled)
        method(networks, step, PROGRESS)


def test_unfolded_and_aggregated_similarities_are_distributions(probs, similarity) -> None:
    assert_distribution(unfold(similarity, probs, LABEL))
    assert_distribution(aggregate(similarity, LABEL, CLASSES))
    assert_distribution(align(probs, probs.mean(dim=0)))


def test_soft_labels_are_distributions() -> None:
    method, networks = make_method("simmatch", threshold=0), make_linear_networks()
    fill_bank(method, networks)
    assert method.ready()
    assert_distribution(method(networks, make_batch(method), PROGRESS).pseudo_labels.target)


def test_unfold_and_aggregate_equal_slow_versions(probs, similarity) -> None:
    for q, p, unfolded, aggregated in zip(
        similarity, probs, unfold(similarity, probs, LABEL), aggregate(similarity, LABEL, CLASSES), strict=True
    ):
        weighted = [q[i] * p[LABEL[i]] for i in range(LABELED)]
        torch.testing.assert_close(unfolded, torch.stack(weighted) / sum(weighted))
        for c in range(CLASSES):
            torch.testing.assert_close(aggregated[c], sum(q[i] for i in range(LABELED) if LABEL[i] == c))


def test_smoothing_one_gives_the_aligned_prediction() -> None:
    method, networks = make_method("simmatch", smoothing=1.0), make_linear_networks()
    fill_bank(method, networks)
    batch = make_batch(method)
    target = method(networks, batch, PROGRESS).pseudo_labels.target
    (weak,) = networks.forward_ema(batch.unlabeled["weak"])
    torch.testing.assert_close(target, align(weak.logits.softmax(1), method.alignment.rows.mean(dim=0)))


def test_soft_labels_use_the_bank_after_it_is_filled() -> None:
    method, networks = make_method("simmatch", smoothing=0.5), make_linear_networks()
    batch = make_batch(method)

    def change() -> float:
        target = method(networks, batch, PROGRESS).pseudo_labels.target
        (weak,) = networks.forward_ema(batch.unlabeled["weak"])
        aligned = align(weak.logits.softmax(1), method.alignment.rows.mean(dim=0))
        return (target - aligned).abs().max().item()

    assert change() == pytest.approx(0, abs=1e-6)
    fill_bank(method, networks)
    assert change() > 1e-3


def test_uniform_prediction_does_not_change_similarities(similarity) -> None:
    uniform = torch.full((8, CLASSES), 1 / CLASSES)
    torch.testing.assert_close(unfold(similarity, uniform, LABEL), similarity)


def test_bank_of_one_class_aggregates_to_that_class(similarity) -> None:
    expected = torch.eye(CLASSES)[2].expand(8, -1)
    torch.testing.assert_close(aggregate(similarity, torch.full((LABELED,), 2), CLASSES), expected)


def test_alignment_to_a_uniform_mean_does_not_change_predictions(probs) -> None:
    torch.testing.assert_close(align(probs, torch.full((CLASSES,), 0.3)), probs)


def test_alignment_before_the_first_batch_does_not_change_predictions(probs) -> None:
    torch.testing.assert_close(make_method("simmatch").pseudo_labels(probs).target, probs)


def test_alignment_uses_the_mean_of_the_last_batches() -> None:
    method = make_method("simmatch")
    batches = [torch.rand(8, CLASSES).softmax(1) for _ in range(3)]
    for batch in batches:
        aligned = method._align_to_recent(batch)
    mean = torch.stack([batch.mean(dim=0) for batch in batches]).mean(dim=0)
    torch.testing.assert_close(aligned, align(batches[-1], mean))


def test_instance_loss_is_at_least_the_entropy_of_its_target(similarity) -> None:
    """They are equal if the student's similarities equal the target."""
    entropy = -(similarity * similarity.log()).sum(dim=1).mean()
    logits = torch.randn(8, LABELED)
    assert soft_cross_entropy(logits, similarity) > entropy
    torch.testing.assert_close(soft_cross_entropy(similarity.log(), similarity), entropy)


def test_instance_loss_equals_its_formula() -> None:
    method, networks = make_method("simmatch"), make_linear_networks()
    fill_bank(method, networks)
    bank, batch = method.bank.clone(), make_batch(method)
    loss = method(networks, batch, PROGRESS).metrics["loss_instances"]

    def similarities(network, view: str) -> torch.Tensor:
        z = l2_normalize(network(batch.unlabeled[view]).heads[PROJECTION])
        return (z @ bank.t() / 0.1).softmax(1)

    q, s = similarities(networks.ema, "weak"), similarities(networks.student, "moco_v2")
    p = method.pseudo_labels(networks.ema(batch.unlabeled["weak"]).logits.softmax(1)).target
    torch.testing.assert_close(loss, -(unfold(q, p, LABEL) * s.log()).sum(dim=1).mean().detach())


def test_instance_loss_is_zero_in_the_first_labeled_epoch() -> None:
    method, networks = make_method("simmatch"), make_linear_networks()
    losses = []
    for start in range(0, LABELED + 6, 6):
        labeled = torch.arange(start, start + 6) % LABELED
        batch = make_batch(method, start)
        images = torch.randn(6, *batch.labeled["weak"].shape[1:])
        step = replace(batch, labeled={"weak": images}, label=LABEL[labeled], labeled_index=labeled)
        losses.append(method(networks, step, PROGRESS).metrics["loss_instances"].item())
    assert losses[:3] == [0, 0, 0]
    assert losses[3] > 0


def test_released_code_waits_for_an_unlabeled_epoch_and_starts_with_blank_labels() -> None:
    method = make_method("simmatch", first_epoch="unlabeled", blank_labels=True)
    networks = make_linear_networks()
    assert not method.bank_label.any()
    losses = [
        method(networks, make_batch(method, seed), PROGRESS).metrics["loss_instances"].item()
        for seed in range(-(-UNLABELED // 8) + 1)
    ]
    assert not any(losses[:-1])
    assert losses[-1] > 0
    assert not method.filled.all(), "part of the bank is still random when the released code uses it"


def test_bank_has_the_labels_at_the_start() -> None:
    torch.testing.assert_close(make_method("simmatch").bank_label, LABEL)


def test_bank_contains_projections_of_the_averaged_network() -> None:
    method, networks = make_method("simmatch"), make_linear_networks()
    batch = replace(make_batch(method), labeled_index=torch.tensor([7, 2, 9, 11]), label=LABEL[[7, 2, 9, 11]])
    before = method.bank.clone()
    method(networks, batch, PROGRESS)
    expected = l2_normalize(networks.ema(batch.labeled["weak"]).heads[PROJECTION])
    torch.testing.assert_close(method.bank[[7, 2, 9, 11]], expected)
    unchanged = [i for i in range(LABELED) if i not in (7, 2, 9, 11)]
    torch.testing.assert_close(method.bank[unchanged], before[unchanged])
    assert method.filled.nonzero().flatten().tolist() == [2, 7, 9, 11]


def test_student_is_evaluated_and_averaged_network_is_saved(tmp_path) -> None:
    fit(tiny_settings("simmatch", iterations=2), tmp_path / "run", display=Display(quiet=True))
    state = torch.load(tmp_path / "run" / "checkpoints" / "last" / "training.pt", weights_only=True)
    assert "ema" in state
    assert "student" not in state
    assert any(name.startswith("heads.projection") for name in state["ema"])


def test_ema_zero_is_an_error(tmp_path) -> None:
    with pytest.raises(UserError, match="--ema above 0"):
        fit(tiny_settings("simmatch", ema=0), tmp_path / "run", display=Display(quiet=True))
