"""The grid and the neighbors of a photo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.label_log import LabelLog
from semifine.errors import UserError
from semifine.studio.queue import Answer, LabelQueue, QueueFilter
from semifine.studio.snapshot import ModelSnapshot, outlier_degree
from semifine.studio.tiles import GridPage, serialize_grid, serialize_neighbors


@pytest.fixture
def label_queue(snapshot: ModelSnapshot, tmp_path: Path) -> LabelQueue:
    return LabelQueue(snapshot, LabelLog(tmp_path / "labels.db"))


def ids(label_queue: LabelQueue, **page: object) -> list[int]:
    queue_filter = QueueFilter("Ada", **page.pop("filter", {}))
    return [tile["id"] for tile in serialize_grid(label_queue, GridPage(queue_filter, **page))["tiles"]]


def test_tiles_are_sorted_by_confidence_and_pages_are_disjoint(label_queue: LabelQueue) -> None:
    shown = serialize_grid(label_queue, GridPage(QueueFilter("Ada"), offset=0, count=25))
    assert shown["total"] == 60
    assert len(shown["tiles"]) == 25
    confidence = [tile["confidence"] for tile in shown["tiles"]]
    assert confidence == sorted(confidence, reverse=True)
    pages = [ids(label_queue, offset=offset, count=25) for offset in (0, 25, 50)]
    assert sorted(index for page in pages for index in page) == list(range(60))


def test_a_grid_of_one_class_and_of_one_state(label_queue: LabelQueue) -> None:
    prediction = label_queue.snapshot.prediction
    class_id = int(prediction[0])
    assert set(ids(label_queue, filter={"class_id": class_id})) == set(np.flatnonzero(prediction == class_id).tolist())
    label_queue.submit(Answer("Bo", "label", [0], [0], label_queue.snapshot.class_names[class_id]))
    assert 0 not in ids(label_queue)
    assert ids(label_queue, filter={"state": "labeled"}) == [0]
    assert len(ids(label_queue, filter={"state": "all"})) == 60
    (tile,) = serialize_grid(label_queue, GridPage(QueueFilter("Ada", "labeled")))["tiles"]
    assert (tile["label"], tile["prediction"]) == (label_queue.snapshot.class_names[class_id], class_id)


def test_groups_follow_each_other_the_largest_first(label_queue: LabelQueue) -> None:
    group = label_queue.snapshot.group[ids(label_queue, order="group")]
    changes = int((np.diff(group) != 0).sum())
    assert changes == len(np.unique(group)) - 1
    assert group[0] == np.bincount(group).argmax()


def test_outliers_come_first(label_queue: LabelQueue) -> None:
    outlier = label_queue.snapshot.outlier[ids(label_queue, order="outliers")]
    assert (np.diff(outlier) <= 0).all()
    with pytest.raises(UserError, match="'size' is unknown"):
        ids(label_queue, order="size")


def test_outliers_are_measured_within_their_group() -> None:
    random = np.random.default_rng(0)
    angle = np.concatenate([random.normal(0, 0.05, 50), random.normal(2, 0.05, 50), [2.0]])
    group = np.repeat([0, 1, 0], [50, 50, 1])  # the last image belongs to the other group
    degree = outlier_degree(np.stack([np.cos(angle), np.sin(angle)], axis=1).astype(np.float32), group)
    assert degree.argmax() == 100
    assert degree[100] == 1
    assert np.median(degree[:100]) == pytest.approx(0, abs=0.05)


def test_neighbors_are_sorted_and_include_labeled_images(label_queue: LabelQueue) -> None:
    features = label_queue.snapshot.features.copy()
    features[9] = features[4]
    label_queue.snapshot = replace(label_queue.snapshot, features=features)
    label_queue.submit(Answer("Ada", "label", [9], [0], label_queue.snapshot.class_names[0]))
    tiles = serialize_neighbors(label_queue, 4, count=7)["tiles"]
    assert (tiles[0]["id"], tiles[0]["state"]) == (9, "labeled")
    expected = np.argsort(-(features @ features[4]), kind="stable")
    assert {tile["id"] for tile in tiles} == set(expected[expected != 4][:7].tolist())
    assert [tile["similarity"] for tile in tiles] == sorted((tile["similarity"] for tile in tiles), reverse=True)
    assert len(serialize_neighbors(label_queue, 4, count=1000)["tiles"]) == 59
    with pytest.raises(UserError, match="no image 60"):
        serialize_neighbors(label_queue, 60, count=5)
