from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import Catalog, Split
from semifine.data.checks import DataReport, inspect
from semifine.data.selection import select_images
from semifine.data.store import open_store

from .conftest import MakeCatalog, SaveImage

L, U, V, T = Split.LABELED, Split.UNLABELED, Split.VAL, Split.TEST


@pytest.fixture
def catalog(save_image: SaveImage, make_catalog: MakeCatalog) -> Catalog:
    paths = ["l0.png", "l1.png", "u0.png", "u1.png", "u2.png", "v.png", "t.png"]
    for number, path in enumerate(paths):
        save_image(path, 20 + number, 10 + number)
    plain = make_catalog(paths, label=[0, 1, -1, -1, -1, 0, 1], split=[L, L, U, U, U, V, T])
    return replace(plain, truth=np.array([0, 1, -1, 1, 5, 0, 1]))


def report(catalog: Catalog, tmp_path: Path) -> DataReport:
    return inspect(select_images(catalog, open_store(catalog, 8, tmp_path / "cache")))


def test_good_data(catalog: Catalog, tmp_path: Path) -> None:
    found = report(catalog, tmp_path)
    assert (found.errors, found.warnings, found.duplicates, found.overlaps) == ([], [], [], [])
    assert found.splits == {"labeled": 2, "unlabeled": 3, "val": 1, "test": 1}
    assert found.classes["class 0"] == {"labeled": 1, "val": 1, "test": 0}
    assert found.unlabeled_truth == {"known_class": 1, "other_class": 1, "unknown": 1}
    assert (found.height.min, found.height.median, found.height.max) == (10, 13, 16)
    assert (found.width.min, found.width.max) == (20, 26)
    assert json.loads(json.dumps(found.as_dict()))["width"]["median"] == 23


@pytest.mark.parametrize("train", ["l0.png", "u0.png"])
@pytest.mark.parametrize("held_out", ["v.png", "t.png"])
def test_copies_in_published_splits_are_warnings(catalog: Catalog, tmp_path: Path, train: str, held_out: str) -> None:
    shutil.copy(tmp_path / train, tmp_path / held_out)
    found = report(replace(catalog, official_splits=True), tmp_path)
    if (train, held_out) == ("l0.png", "t.png"):  # the only labeled image of its class
        assert found.errors == ["Class 'class 0' has no labeled image: add at least one."]
        assert [item.path for item in found.left_out] == ["l0.png"]
        return
    split = {"l": "labeled", "u": "unlabeled"}[train[0]], {"v": "val", "t": "test"}[held_out[0]]
    sentence = f"1 image is in {' and '.join(split)} of the published splits, which are kept as they are ({train} = "
    assert found.warnings[0].startswith(sentence)
    assert found.overlaps == [[train, held_out]]
    assert (found.errors, found.left_out) == ([], [])


def test_the_same_path_twice_is_a_copy(catalog: Catalog, tmp_path: Path) -> None:
    twice = catalog.take(np.array([0, 1, 2, 3, 4, 5, 6, 2]))
    split = twice.split.copy()
    split[7] = T
    label = twice.label.copy()
    label[7] = 0
    truth = np.where(label >= 0, label, twice.truth)
    twice = replace(twice, split=split, label=label, truth=truth)
    (item,) = report(twice, tmp_path).left_out
    assert (item.path, item.split, item.copy_of) == ("u0.png", "unlabeled", "u0.png")


def test_numbers_are_those_of_used_images(catalog: Catalog, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "t.png", tmp_path / "u0.png")
    found = report(catalog, tmp_path)
    assert found.splits == {"labeled": 2, "unlabeled": 2, "val": 1, "test": 1}
    assert found.unlabeled_truth == {"known_class": 1, "other_class": 1, "unknown": 0}
    assert (found.num_images, found.errors, found.warnings, found.overlaps) == (6, [], [], [])
    assert found.describe_left_out() == "1 unlabeled image (also in test)"
    (item,) = json.loads(json.dumps(found.as_dict()))["left_out"]
    assert item == {
        "path": "u0.png",
        "split": "unlabeled",
        "kind": "copy",
        "reason": "copy of a test image",
        "copy_of": "t.png",
    }


def test_copies_within_training_are_warnings(catalog: Catalog, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "u0.png", tmp_path / "u1.png")
    found = report(catalog, tmp_path)
    assert found.errors == []
    assert found.warnings == ["1 image has exact copies in unlabeled (u0.png = u1.png)."]
    assert found.duplicates == [["u0.png", "u1.png"]]


def test_kept_copies_with_two_labels(catalog: Catalog, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "l0.png", tmp_path / "l1.png")
    warnings = report(replace(catalog, keep_conflicting=True), tmp_path).warnings
    assert any("different labels (l0.png = l1.png)" in warning for warning in warnings)


def test_unreadable_images_are_listed(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "u0.png").write_bytes(b"rubbish")
    found = report(catalog, tmp_path)
    assert [path for path, _ in found.unreadable] == ["u0.png"]
    assert (found.errors, found.warnings) == ([], [])
    assert (found.num_images, found.height.min) == (6, 10)


def test_imbalance_and_empty_splits(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    paths = [f"{i}.png" for i in range(11)]
    for path in paths:
        save_image(path)
    warnings = report(make_catalog(paths, label=[1] + [0] * 10), tmp_path).warnings
    assert len(warnings) == 3
    assert warnings[0].startswith("There are no unlabeled images")
    assert warnings[1].startswith("There are no test images")
    assert warnings[2] == "Class 'class 0' has 10 labeled images, class 'class 1' only 1."
