"""Properties of FlexMatch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from semifine.methods.base import Progress
from semifine.methods.flexmatch import MAPPINGS, learning_status
from semifine.training.fit import fit
from semifine.training.meters import PseudoLabelMeter
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.methods.one_step import CLASSES, UNLABELED, make_batch, make_method, make_networks


def peaked(classes: list[int], confidence: float) -> torch.Tensor:
    probs = torch.full((len(classes), CLASSES), (1 - confidence) / (CLASSES - 1))
    return probs.scatter_(1, torch.tensor(classes)[:, None], confidence)


def slow_status(label: list[int], warmup: bool) -> list[float]:
    sigma = [label.count(c) for c in range(CLASSES)]
    largest = max(*sigma, label.count(-1)) if warmup else max(sigma)
    return [count / largest for count in sigma]


def test_first_step_accepts_every_label() -> None:
    method, networks = make_method("flexmatch"), make_networks("flexmatch")
    result = method(networks, make_batch(method), Progress(0, 10))
    assert result.pseudo_labels.accepted.all()


def test_equal_counts_and_few_unused_samples_equal_fixmatch() -> None:
    method = make_method("flexmatch")
    method.label.copy_(torch.arange(UNLABELED) % CLASSES)
    method.label[:CLASSES] = -1
    probs = torch.cat([peaked([0, 1, 2], 0.94), peaked([3, 4, 5], 0.95)])
    labels = method.train_labels(probs, torch.arange(6))
    expected = make_method("fixmatch").pseudo_labels(probs)
    torch.testing.assert_close(method.thresholds(), torch.full((CLASSES,), 0.95))
    torch.testing.assert_close(labels.accepted, expected.accepted)
    torch.testing.assert_close(labels.target, expected.target)


@pytest.mark.parametrize("mapping", MAPPINGS)
def test_thresholds_are_between_zero_and_the_base_threshold(mapping: str) -> None:
    method = make_method("flexmatch", mapping=mapping, threshold=0.8)
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        method.label.copy_(torch.randint(-1, CLASSES, (UNLABELED,), generator=generator))
        method.train_labels(peaked([0], 0.9), torch.tensor([0]))
        assert (method.thresholds() >= 0).all()
        assert (method.thresholds() <= 0.8 + 1e-6).all()


def test_values_of_the_convex_mapping() -> None:
    torch.testing.assert_close(MAPPINGS["convex"](torch.tensor([0, 0.5, 1])), torch.tensor([0, 1 / 3, 1]))


@pytest.mark.parametrize("warmup", [True, False])
def test_status_equals_a_slow_version(warmup: bool) -> None:
    for seed in range(10):
        label = torch.randint(-1, CLASSES, (40,), generator=torch.Generator().manual_seed(seed))
        status = learning_status(label, torch.zeros(CLASSES), warmup)
        torch.testing.assert_close(status, torch.tensor(slow_status(label.tolist(), warmup)))


@pytest.mark.parametrize("same", [-1, 2])
def test_status_does_not_change_while_all_labels_are_equal(same: int) -> None:
    before = torch.rand(CLASSES)
    torch.testing.assert_close(learning_status(torch.full((9,), same), before, warmup=True), before)


def test_labels_change_only_above_the_base_threshold() -> None:
    method = make_method("flexmatch", threshold=0.9)
    method.train_labels(torch.cat([peaked([1, 2], 0.89), peaked([3, 4], 0.9)]), torch.tensor([5, 6, 7, 8]))
    assert method.label[[5, 6, 7, 8]].tolist() == [-1, -1, 3, 4]
    assert (method.label >= 0).sum() == 2
    method.train_labels(peaked([0], 0.5), torch.tensor([7]))
    assert method.label[7] == 3, "an unconfident prediction keeps the last confident label"


def test_last_confident_label_of_a_repeated_sample_is_kept() -> None:
    method = make_method("flexmatch", threshold=0.9)
    probs = torch.cat([peaked([1, 2], 0.95), peaked([3], 0.5), peaked([4], 0.95)])
    method.train_labels(probs, torch.tensor([5, 5, 5, 6]))
    assert method.label[[5, 6]].tolist() == [2, 4]


def test_fraction_of_unknown_classes_among_counted_samples() -> None:
    """Includes samples whose last confident prediction is old; excludes samples without a hidden label."""
    method = make_method("flexmatch", threshold=0.9)
    truth = torch.zeros(UNLABELED, dtype=torch.int64)
    truth[[1, 2, 5]] = CLASSES  # out of class
    truth[3] = -1
    meter = PseudoLabelMeter(truth, CLASSES)

    def fraction(confident: list[int], unconfident: list[int]) -> float | None:
        probs = torch.cat([peaked([0] * len(confident), 0.95), peaked([0] * len(unconfident), 0.5)])
        index = torch.tensor(confident + unconfident)
        meter.update(method.train_labels(probs, index), index)
        return meter.read().get("counted_out_of_class")

    assert fraction([], [0, 1]) is None, "no sample is counted yet"
    assert fraction([0, 1, 3, 4], [5]) == pytest.approx(1 / 3)
    assert fraction([2], [0, 1, 5]) == pytest.approx(2 / 3)
    assert fraction([], [0, 4]) == 0


def test_checkpoint_keeps_the_fraction_of_unknown_classes() -> None:
    method = make_method("flexmatch", threshold=0.9)
    truth = torch.zeros(UNLABELED, dtype=torch.int64)
    truth[1] = CLASSES  # out of class
    whole, interrupted, resumed = (PseudoLabelMeter(truth, CLASSES) for _ in range(3))
    for number, meters in ((0, (whole, interrupted)), (1, (whole, resumed))):
        index = torch.tensor([2 * number, 2 * number + 1])
        labels = method.train_labels(peaked([0, 0], 0.95), index)
        if number:
            resumed.load_state_dict(interrupted.state_dict(), truth.device)
        for meter in meters:
            meter.update(labels, index)
    assert resumed.read() == whole.read()


def test_training_logs_the_fraction_of_unknown_classes(tmp_path: Path) -> None:
    """One pass with threshold 0 counts all images: 2 of 8 classes are unknown."""
    settings = {"method__threshold": 0.0, "data__unlabeled": "inout", "data__ood_genera": 1}
    settings |= {"iterations": 9, "log_every": 9, "evaluate_every": 9}
    fit(tiny_settings("flexmatch", **settings), tmp_path, display=Display(quiet=True))
    records = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert [r["counted_out_of_class"] for r in records if r["kind"] == "train"] == [0.25]


def test_status_does_not_depend_on_the_order_of_samples() -> None:
    label = torch.randint(-1, CLASSES, (40,))
    shuffled = label[torch.randperm(40)]
    zeros = torch.zeros(CLASSES)
    torch.testing.assert_close(learning_status(label, zeros, True), learning_status(shuffled, zeros, True))


def test_checkpoint_keeps_labels_and_status() -> None:
    method, networks = make_method("flexmatch", threshold=0.1), make_networks("flexmatch")
    for seed in range(3):
        method(networks, make_batch(method, seed), Progress(seed, 10))
    assert method.status.any()
    restored = make_method("flexmatch", threshold=0.1)
    restored.load_state_dict(method.state_dict())
    torch.testing.assert_close(restored.label, method.label)
    torch.testing.assert_close(restored.status, method.status)
