"""The live model: it learns from answers, follows the classes, and estimates its accuracy."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.label_log import LabelLog
from semifine.features.live import LiveClassifier, LiveSettings, principal_components
from semifine.studio.class_changes import ClassChange
from semifine.studio.live import LiveModel, weighted_accuracy
from semifine.studio.queue import Answer, LabelQueue, QueueFilter
from semifine.studio.snapshot import ModelSnapshot


def clouds(per_class: int, classes: int, dim: int = 12, noise: float = 0.35) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    centers = random.normal(size=(classes, dim))
    truth = np.repeat(np.arange(classes), per_class)
    features = centers[truth] + noise * random.normal(size=(len(truth), dim))
    return features.astype(np.float32), truth


@pytest.fixture
def separable(snapshot: ModelSnapshot) -> tuple[ModelSnapshot, np.ndarray]:
    """The snapshot of a weak model on images whose features separate ten images of each of six classes."""
    features, truth = clouds(10, 6)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    probs = np.full((60, 6), 1 / 6, np.float32)
    none = np.zeros((0, 12), np.float32)
    weak = replace(
        snapshot,
        features=features,
        probs=probs,
        labeled_rows=snapshot.labeled_rows[:0],
        labeled_features=none,
        labeled_probs=np.zeros((0, 6), np.float32),
    )
    return weak, truth


@pytest.fixture
def label_queue(separable: tuple[ModelSnapshot, np.ndarray], tmp_path: Path) -> LabelQueue:
    return LabelQueue(separable[0], LabelLog(tmp_path / "labels.db"))


@pytest.fixture
def live(label_queue: LabelQueue) -> Iterator[LiveModel]:
    model = LiveModel(label_queue)
    yield model
    model.close()


def answer(label_queue: LabelQueue, indices: list[int], name: str) -> None:
    label_queue.submit(Answer("Ada", "label", indices, [0] * len(indices), name))


def test_predictions_follow_the_answers(label_queue: LabelQueue, live: LiveModel, separable: tuple) -> None:
    truth, names = separable[1], label_queue.snapshot.class_names
    for class_id in range(6):
        answer(label_queue, np.flatnonzero(truth == class_id)[:2].tolist(), names[class_id])
    live.fit_now()
    snapshot = label_queue.snapshot
    assert snapshot.version == 1
    assert (snapshot.prediction == truth).mean() > 0.9
    for order in snapshot.orders.values():
        assert sorted(order.tolist()) == list(range(60))
    assert len(label_queue.select(QueueFilter("Ada"))) == 48
    assert live.state()["labels"] == 12


def test_a_created_class_is_learned_and_a_merged_one_disappears(
    label_queue: LabelQueue, live: LiveModel, separable: tuple
) -> None:
    truth, names = separable[1], label_queue.snapshot.class_names
    label_queue.change_class(ClassChange("Ada", "create", "dodo"))
    for class_id in range(6):
        name = "dodo" if class_id == 5 else names[class_id]
        answer(label_queue, np.flatnonzero(truth == class_id)[:3].tolist(), name)
    live.fit_now()
    assert (label_queue.snapshot.prediction[truth == 5] == 6).mean() > 0.9
    assert label_queue.snapshot.probs.shape == (60, 7)
    label_queue.change_class(ClassChange("Ada", "merge", names[0], names[1]))
    live.fit_now()
    assert (label_queue.snapshot.probs[:, 0] == 0).all()
    assert (label_queue.snapshot.prediction[truth == 0] == 1).mean() > 0.9
    label_queue.change_class(ClassChange("Ada", "retire", names[2]))
    live.fit_now()
    assert (label_queue.snapshot.probs[:, 2] == 0).all()


def test_the_thread_fits_after_answers(label_queue: LabelQueue, live: LiveModel) -> None:
    live.start()
    answer(label_queue, [0, 1, 2], label_queue.snapshot.class_names[0])
    deadline = time.monotonic() + 60
    while label_queue.snapshot.version == 0 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert label_queue.snapshot.version > 0
    assert label_queue.snapshot.prediction[0] == 0


def test_a_run_without_answers_keeps_its_predictions(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    label_queue = LabelQueue(snapshot, LabelLog(tmp_path / "labels.db"))
    live = LiveModel(label_queue)
    assert label_queue.snapshot is snapshot
    assert live.state() | {"seconds": 0} == {
        "model": 0,
        "fitting": False,
        "labels": 0,
        "seconds": 0,
        "accuracy": None,
        "history": [],
    }


def test_few_labels_change_a_confident_start_model_little() -> None:
    features, truth = clouds(20, 3)
    start = np.full((60, 3), -4, np.float32)
    start[np.arange(60), truth] = 4
    classifier = LiveClassifier(features, start, LiveSettings(strength=3.0))
    fit = classifier.fit(np.array([0]), np.array([1]), 3)  # one wrong label
    assert (classifier.predict(fit).argmax(axis=1)[1:] == truth[1:]).mean() > 0.9


def test_unlabeled_images_and_warm_start_reach_the_same_classes() -> None:
    features, truth = clouds(30, 4, noise=0.5)
    rows = np.arange(0, 120, 10)
    classifier = LiveClassifier(features)
    cold = classifier.fit(rows, truth[rows], 4)
    warm = classifier.fit(rows, truth[rows], 4, classifier.fit(rows[:6], truth[rows[:6]], 4))
    predictions = [classifier.predict(fit).argmax(axis=1) for fit in (cold, warm)]
    assert (predictions[0] == predictions[1]).mean() > 0.95
    assert (predictions[1] == truth).mean() > 0.9


def test_principal_components_keep_distances() -> None:
    features = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
    projected = principal_components(features, dim=6)
    scale = np.sqrt(((features - features.mean(axis=0)) ** 2).sum(axis=1).mean())
    before = np.linalg.norm(features[:, None] - features[None], axis=2) / scale
    after = np.linalg.norm(projected[:, None] - projected[None], axis=2)
    assert after == pytest.approx(before, abs=1e-4)


def test_the_estimate_does_not_depend_on_the_choice_of_answered_images() -> None:
    random = np.random.default_rng(0)
    confidence = random.random(20_000).astype(np.float32)
    correct = random.random(20_000) < confidence
    waiting = random.random(20_000).astype(np.float32)
    chosen = random.random(20_000) < (1 - confidence) ** 2  # uncertain images are answered more often
    naive = 100 * correct[chosen].mean()
    top1, images = weighted_accuracy(confidence[chosen], correct[chosen], waiting)
    assert naive < 35
    assert top1 == pytest.approx(50, abs=6)
    assert images < chosen.sum()


def test_the_accuracy_is_estimated_with_an_interval(label_queue: LabelQueue, live: LiveModel, separable: tuple) -> None:
    truth, names = separable[1], label_queue.snapshot.class_names
    for class_id in range(6):
        answer(label_queue, np.flatnonzero(truth == class_id)[:5].tolist(), names[class_id])
    live.fit_now()
    accuracy = live.state()["accuracy"]
    assert accuracy["low"] < accuracy["top1"] <= accuracy["high"] <= 100
    assert accuracy["top1"] > 70
    assert accuracy["images"] == 30
    (entry,) = live.state()["history"]
    assert entry["labels"] == 30
    live.fit_now()
    assert len(live.state()["history"]) == 1, "the number of labels has not grown"
