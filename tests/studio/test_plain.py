"""The studio on a folder of photos without a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.extra_labels import read_labels
from semifine.data.label_log import LabelLog
from semifine.errors import UserError
from semifine.studio import plain
from semifine.studio.class_changes import ClassChange
from semifine.studio.jobs import TrainingOptions, training_command
from semifine.studio.live import LiveModel
from semifine.studio.plain import open_photos, take_plain_snapshot, typical_first
from semifine.studio.plain_start import group_photos
from semifine.studio.queue import Answer, LabelQueue, QueueFilter, default_log
from semifine.studio.schemas import serialize_image, serialize_overview
from semifine.studio.snapshot import ModelSnapshot
from semifine.studio.tiles import GridPage, serialize_grid

COLORS = {"red": (200, 30, 30), "blue": (30, 30, 200)}


def write_photos(folder: Path, count: int = 12) -> Path:
    """Writes red and blue photos in two folders of cameras."""
    random = np.random.default_rng(0)
    for number in range(count):
        name, color = list(COLORS.items())[number % 2]
        pixels = np.clip(np.array(color) + random.integers(-25, 25, (100, 100, 3)), 0, 255).astype(np.uint8)
        path = folder / f"camera-{number % 3}" / f"{name}-{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    return folder


class MeanColor:
    """Stands for the pretrained network: the features are the mean colors of the photos."""

    def __init__(self, store: object, *_: object, progress: object = None, **__: object) -> None:
        self._store, self._progress = store, progress

    def features(self, rows: np.ndarray) -> np.ndarray:
        self._progress(len(rows))
        return np.stack([self._store.image(int(row)).float().mean(dim=(0, 1)).numpy() for row in rows])


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(plain, "pretrained_evaluator", MeanColor)
    return write_photos(tmp_path / "photos")


def open_snapshot(photos: Path, steps: list[str] | None = None) -> ModelSnapshot:
    def progress(step: str, done: int, total: int) -> None:
        if steps is not None and done == total:
            steps.append(step)

    dataset = open_photos(str(photos), {})
    return take_plain_snapshot(photos, dataset, "cpu", cache=photos.parent / "cache", progress=progress)


def test_a_folder_without_labels_is_labeled_from_nothing(photos: Path, tmp_path: Path) -> None:
    steps: list[str] = []
    snapshot = open_snapshot(photos, steps)
    assert set(steps) == {"decoding", "features"}
    assert len(snapshot.rows) == 12
    label_queue = LabelQueue(snapshot, LabelLog(default_log(photos)))
    assert default_log(photos) == tmp_path / "photos.studio.db"
    overview = serialize_overview(label_queue)
    assert overview["classes"] == []
    assert sum(group["size"] for group in overview["groups"]) == 12
    (tile, *_) = serialize_grid(label_queue, GridPage(QueueFilter("Ada", cluster=0)))["tiles"]
    assert (tile["prediction"], tile["confidence"]) == (None, None)
    assert serialize_image(label_queue, 0)["candidates"] == []

    live = LiveModel(label_queue)
    for name in COLORS:
        label_queue.change_class(ClassChange("Ada", "create", name))
        index = next(i for i in range(12) if name in label_queue.path(i))
        label_queue.submit(Answer("Ada", "label", [index], [0], name))
    live.fit_now()
    found = [label_queue.class_names[c] for c in label_queue.snapshot.prediction]
    assert all(name in label_queue.path(index) for index, name in enumerate(found))
    assert serialize_overview(label_queue)["groups"] == []


def test_the_labels_become_a_training_set(photos: Path, tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    label_queue = LabelQueue(open_snapshot(photos), log)
    for name in COLORS:
        label_queue.change_class(ClassChange("Ada", "create", name))
        indices = [i for i in range(12) if name in label_queue.path(i)][:3]
        label_queue.submit(Answer("Ada", "label", indices, [0] * 3, name))
    dataset = Dataset.open(str(photos), {"optional_labels": True})
    dataset.open_store(64, cache_dir=tmp_path / "cache", labels=read_labels(log.file))
    assert dataset.catalog.class_names == ("red", "blue")
    assert len(dataset.catalog.rows(Split.LABELED)) == 6
    assert len(dataset.catalog.rows(Split.UNLABELED)) == 12
    options = ["--data.optional_labels", "true"]
    command = training_command(photos, tmp_path / "out", log.file, TrainingOptions(), options)
    assert command[3:7] == ["train", str(photos), *options]
    assert "--weights" not in command


def test_labels_in_folders_are_used(photos: Path, tmp_path: Path) -> None:
    (photos / "labeled" / "red").mkdir(parents=True)
    first = next((photos / "camera-0").glob("red*"))
    first.rename(photos / "labeled" / "red" / first.name)
    (photos / "camera-0").rename(photos / "unlabeled")
    snapshot = open_snapshot(photos)
    assert snapshot.class_names == ("red",)
    assert len(snapshot.labeled_rows) == 1
    live = LiveModel(label_queue := LabelQueue(snapshot, LabelLog(tmp_path / "labels.db")))
    live.fit_now()
    assert label_queue.snapshot.prediction.tolist() == [0] * len(snapshot.rows)


def test_a_folder_without_photos_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="contains no photos"):
        open_photos(str(tmp_path), {}).catalog  # noqa: B018


def test_groups_separate_clouds_and_are_numbered_by_size() -> None:
    random = np.random.default_rng(0)
    center = np.repeat(np.eye(3), [50, 30, 10], axis=0)
    group = group_photos((center + random.normal(0, 0.02, center.shape)).astype(np.float32))
    sizes = np.bincount(group)
    assert (np.diff(sizes) <= 0).all()
    for number in range(len(sizes)):
        assert len({int(row) for row in center[group == number].argmax(axis=1)}) <= 1


def test_typical_photos_of_every_group_come_first() -> None:
    features = np.array([[1, 0], [0.9, 0.1], [0.7, 0.3], [0, 1], [0.2, 0.8]], np.float32)
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    order = typical_first(features, np.array([0, 0, 0, 1, 1]))
    assert set(order[:2].tolist()) == {1, 3} or set(order[:2].tolist()) == {1, 4}
    assert sorted(order.tolist()) == [0, 1, 2, 3, 4]
