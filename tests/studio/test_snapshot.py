"""The predictions of a model and the orders of the queue."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.label_check import check_labels, write_label_check
from semifine.data.label_log import LabelLog
from semifine.runs.run import Run
from semifine.studio.queue import Answer, LabelQueue, QueueFilter
from semifine.studio.schemas import serialize_image, serialize_overview
from semifine.studio.snapshot import (
    ModelSnapshot,
    center_and_normalize,
    class_positions,
    find_suspects,
    greedy_k_center,
    margin_uncertainty,
    nearest_neighbors,
    rank_by_acquisition,
    rank_by_cluster,
    soft_confusion,
    take_snapshot,
)
from tests.studio.runs import run_on


def unit(*angles: float) -> np.ndarray:
    return np.array([[np.cos(a), np.sin(a)] for a in angles], np.float32)


def test_margin_uncertainty() -> None:
    probs = np.array([[0.5, 0.5, 0], [1, 0, 0], [0.6, 0.3, 0.1]])
    assert margin_uncertainty(probs) == pytest.approx([1, 0, 0.7])
    assert margin_uncertainty(np.ones((2, 1))).tolist() == [0, 0], "a single class is certain"


def test_k_center_selects_uncertain_images_unlike_the_labeled_ones() -> None:
    features = unit(0.0, 0.02, np.pi)
    labeled = unit(-0.02)
    assert greedy_k_center(np.ones(3), features, labeled, 1).tolist() == [2], "the least similar to the labeled image"
    assert greedy_k_center(np.array([1, 1, 0.0]), features, labeled, 1).tolist() == [1], (
        "a certain image has the score 0"
    )
    first, second = greedy_k_center(np.ones(3), features, unit(np.pi / 2), 2)
    assert {first, second} != {0, 1}, "two similar images do not follow each other"


def test_k_center_agrees_with_a_plain_loop() -> None:
    random = np.random.default_rng(0)
    features = center_and_normalize(random.normal(size=(40, 5)).astype(np.float32), np.zeros(5, np.float32))
    uncertainty = random.random(40)
    labeled = features[:4]
    chosen: list[int] = []
    for _ in range(10):
        centers = [*labeled, *features[chosen]]
        score = [
            -1 if i in chosen else uncertainty[i] * min(1 - float(features[i] @ center) for center in centers)
            for i in range(40)
        ]
        chosen.append(int(np.argmax(score)))
    assert greedy_k_center(uncertainty, features, labeled, 10).tolist() == chosen


def test_every_order_contains_each_image_once(snapshot: ModelSnapshot) -> None:
    for order in snapshot.orders.values():
        assert sorted(order.tolist()) == list(range(60))


def test_orders_start_with_uncertain_images() -> None:
    uncertainty = np.array([0.1, 0.9, 0.2, 0.8])
    features = unit(0, 1, 2, 3)
    assert rank_by_acquisition(uncertainty, features, unit(0))[0] in (1, 3)
    assert rank_by_cluster(uncertainty, np.array([0, 1, 0, 1])).tolist() == [1, 3, 2, 0]


def test_candidates_start_with_the_prediction(snapshot: ModelSnapshot) -> None:
    for index in range(len(snapshot.rows)):
        shown = snapshot.candidates(index)
        assert shown[0] == snapshot.probs[index].argmax()
        assert 3 <= len(shown) <= 9
        probs = snapshot.probs[index][shown]
        assert (np.diff(probs) <= 0).all()


@pytest.mark.parametrize(("candidates", "shown"), [(1, 3), (4, 4), (40, 6)])
def test_number_of_candidates(snapshot: ModelSnapshot, candidates: int, shown: int) -> None:
    other = replace(snapshot, num_candidates=np.full(60, candidates))
    assert len(other.candidates(0)) == shown, "at least three, at most the number of classes"


def test_features_are_normalized_and_neighbors_sorted(snapshot: ModelSnapshot) -> None:
    assert np.linalg.norm(snapshot.features, axis=1) == pytest.approx(np.ones(60), abs=1e-4)
    assert nearest_neighbors(snapshot.features, snapshot.features[7], 3)[0] == 7


def test_soft_confusion_adds_up_probabilities() -> None:
    probs = np.array([[0.6, 0.4, 0.0], [0.7, 0.3, 0.0], [0.0, 0.1, 0.9]], np.float32)
    counts = soft_confusion(probs)
    assert counts[0].tolist() == [1300, 700, 0]
    assert counts[2].tolist() == [0, 100, 900]


def test_class_positions_are_in_the_unit_square(snapshot: ModelSnapshot) -> None:
    assert snapshot.confusion_map.position.min() >= 0
    assert snapshot.confusion_map.position.max() <= 1
    position = class_positions(np.eye(3), unit(0, 0.1, 2))
    assert np.linalg.norm(position[0] - position[1]) < np.linalg.norm(position[0] - position[2])


def test_an_image_listed_twice_is_queued_once(tmp_path: Path) -> None:
    unlabeled = ["u0.png", "u0.png", "u1.png", "u2.png", "u1.png", "u3.png"]
    labeled = [(f"{name}{number}.png", name) for name in "ab" for number in range(4)]
    for shade, path in enumerate({*unlabeled, *(path for path, _ in labeled)}):
        Image.new("RGB", (40, 40), (shade * 20, 90, 90)).save(tmp_path / path)
    lines = ["path,label", *(f"{path},{name}" for path, name in labeled), *(f"{path}," for path in unlabeled)]
    (tmp_path / "table.csv").write_text("\n".join(lines))
    snapshot = take_snapshot(run_on(tmp_path / "table.csv", tmp_path / "run"), "cpu")

    label_queue = LabelQueue(snapshot, LabelLog(tmp_path / "labels.db"))
    assert sorted(label_queue.path(index) for index in label_queue.select(QueueFilter("Ada"))) == [
        "u0.png",
        "u1.png",
        "u2.png",
        "u3.png",
    ]
    for index in range(4):
        shown = serialize_image(label_queue, index)
        assert shown["path"] == snapshot.catalog.paths[shown["row"]], "the photo belongs to the path"
        (event,) = label_queue.submit(Answer("Ada", "unsure", [index], [0]))
        assert event.path == shown["path"]


def test_suspect_labels_are_on_the_overview(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    catalog, rows = snapshot.catalog, snapshot.labeled_rows
    label = catalog.label[rows]
    probs = np.full((len(rows), catalog.num_classes), 0.02)
    probs[np.arange(len(rows)), label] = 0.9
    wrong = (label[1] + 1) % catalog.num_classes
    probs[1] = 0.02
    probs[1, wrong] = 0.95
    run = Run(shutil.copytree(snapshot.run, tmp_path / "run", symlinks=True))
    assert find_suspects(run, catalog) == (), "a run without a probe"
    check = check_labels([str(catalog.paths[row]) for row in rows], probs, label)
    write_label_check(run.folder.label_check, check, catalog.class_names)
    suspects = find_suspects(Run(run.path), catalog)
    overview = serialize_overview(LabelQueue(replace(snapshot, suspects=suspects), LabelLog(tmp_path / "log.db")))
    (shown,) = overview["suspects"]
    assert overview["num_suspects"] == 1
    assert (shown["row"], shown["label"]) == (rows[1], catalog.class_names[label[1]])
    assert (shown["prediction"], shown["prediction_probability"]) == (catalog.class_names[wrong], 0.95)
