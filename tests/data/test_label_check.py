"""Confident learning finds flipped labels, and its table keeps every name and path."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semifine.data.label_check import (
    check_labels,
    confident_classes,
    find_suspects,
    read_label_check,
    write_label_check,
)
from semifine.errors import UserError
from semifine.features.probe import LabeledFeatures, Scaling, cross_validate, stratified_folds


def slow_confident_joint(probs: NDArray[np.float64], label: NDArray[np.int64]) -> list[list[set[int]]]:
    """The sets X(i, j) of the paper: images with label i that confidently show class j."""
    num_classes = probs.shape[1]
    threshold = []
    for j in range(num_classes):
        own = [probs[x, j] for x in range(len(label)) if label[x] == j]
        threshold.append(sum(own) / len(own) if own else float("inf"))
    joint: list[list[set[int]]] = [[set() for _ in range(num_classes)] for _ in range(num_classes)]
    for x in range(len(label)):
        over = [j for j in range(num_classes) if probs[x, j] >= threshold[j] - 1e-9]
        if over:
            joint[int(label[x])][max(over, key=lambda j: probs[x, j])].add(x)
    return joint


@pytest.mark.parametrize("seed", range(5))
def test_confident_joint_equals_the_definition(seed: int) -> None:
    random = np.random.default_rng(seed)
    label = random.integers(0, 3, 60)  # no image has the label 3
    probs = (random.dirichlet(np.full(4, 0.5), 60) + 0.5 * np.eye(4)[label]) / 1.5
    joint = slow_confident_joint(probs, label)
    shown = confident_classes(probs, label)
    for i in range(4):
        for j in range(4):
            assert set(np.flatnonzero((label == i) & (shown == j)).tolist()) == joint[i][j]
    suspects = find_suspects(probs, label)
    expected = {x for i in range(4) for j in range(4) if i != j for x in joint[i][j] if probs[x].argmax() == j}
    assert set(suspects.tolist()) == expected
    assert expected, "the test needs suspects"
    margins = [probs[x, label[x]] - probs[x].max() for x in suspects]
    assert margins == sorted(margins)


def test_models_that_contradict_most_labels_have_no_suspects() -> None:
    random = np.random.default_rng(0)
    probs, label = random.dirichlet(np.full(10, 0.1), 100), random.integers(0, 10, 100)
    assert (probs.argmax(axis=1) != label).mean() > 0.8
    assert len(find_suspects(probs, label)) == 0


def flipped_data(seed: int, noise: float) -> tuple[torch.Tensor, NDArray[np.int64], NDArray[np.bool_]]:
    """Features of ten overlapping classes with 20 images each, one in ten labels flipped."""
    random = np.random.default_rng(seed)
    truth = np.repeat(np.arange(10), 20)
    centers = random.normal(size=(10, 16))
    features = centers[truth] + noise * random.normal(size=(200, 16))
    flipped = random.permutation(200)[:20]
    label = truth.copy()
    label[flipped] = (truth[flipped] + random.integers(1, 10, 20)) % 10
    return torch.from_numpy(features.astype(np.float32)), label, label != truth


def cross_validated(features: torch.Tensor, label: NDArray[np.int64]) -> NDArray[np.float64]:
    scaled = Scaling.of(features).apply(features)
    labeled = LabeledFeatures((scaled,), torch.from_numpy(label), 10)
    logits = cross_validate(labeled, stratified_folds(labeled.label), [30.0])[30.0].logits
    return torch.softmax(logits.double(), dim=1).numpy()


def test_flipped_labels_are_found() -> None:
    """One in ten labels is flipped; a list of all errors of the probe would be less precise."""
    found = listed = wrong = errors = errors_found = 0
    for seed in range(4):
        features, label, is_flipped = flipped_data(seed, noise=0.8)
        probs = cross_validated(features, label)
        suspects = find_suspects(probs, label)
        found += int(is_flipped[suspects].sum())
        listed += len(suspects)
        wrong += int(is_flipped.sum())
        misclassified = probs.argmax(axis=1) != label
        errors += int(misclassified.sum())
        errors_found += int((misclassified & is_flipped).sum())
    recall, precision = found / wrong, found / listed
    assert recall >= 0.7
    assert precision >= 0.6
    assert precision > errors_found / errors


def test_without_flipped_labels_few_are_listed() -> None:
    features, label, is_flipped = flipped_data(0, noise=0.5)
    kept = ~is_flipped
    suspects = find_suspects(cross_validated(features[torch.from_numpy(kept)], label[kept]), label[kept])
    assert len(suspects) <= 0.03 * kept.sum()


def test_table_keeps_names_paths_and_order(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    label = random.integers(0, 3, 30)
    probs = (random.dirichlet(np.ones(3), 30) + 0.3 * np.eye(3)[label]) / 1.3
    names = ["Großer Würger", 'a, "b"', "=two\nlines"]
    paths = [f"-photos/{index} \udcff.jpg" for index in range(30)]  # a file name that is not UTF-8, and like a formula
    check = check_labels(paths, probs, label)
    write_label_check(tmp_path / "label_check.csv", check, names)
    read = read_label_check(tmp_path / "label_check.csv", names)
    assert read is not None
    assert read.paths == check.paths
    assert b"\n-" not in (tmp_path / "label_check.csv").read_bytes(), "a spreadsheet would execute it"
    assert read.num_suspects == check.num_suspects > 0
    np.testing.assert_array_equal(read.label, check.label)
    np.testing.assert_array_equal(read.prediction, check.prediction)
    np.testing.assert_allclose(read.label_probability, check.label_probability, atol=1e-4)
    assert read.confusion(3).sum() == 30
    assert read_label_check(tmp_path / "missing.csv", names) is None


def test_damaged_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "label_check.csv").write_text("path,label\na.jpg,robin\n")
    with pytest.raises(UserError, match=r"label_check\.csv is damaged"):
        read_label_check(tmp_path / "label_check.csv", ["robin"])
