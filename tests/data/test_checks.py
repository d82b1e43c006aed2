from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import Catalog, Split
from semifine.data.checks import DataReport, inspect
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
    return inspect(catalog, open_store(catalog, 8, tmp_path / "cache"))


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
def test_an_image_for_training_and_test_is_an_error(
    catalog: Catalog, tmp_path: Path, train: str, held_out: str
) -> None:
    shutil.copy(tmp_path / train, tmp_path / held_out)
    found = report(catalog, tmp_path)
    assert len(found.errors) == 1
    assert f"{train} = {held_out}" in found.errors[0]
    assert found.overlaps == [[train, held_out]]


def test_the_same_path_twice_is_found(catalog: Catalog, tmp_path: Path) -> None:
    twice = catalog.take(np.array([0, 1, 2, 3, 4, 5, 6, 2]))
    split = twice.split.copy()
    split[7] = T
    label = twice.label.copy()
    label[7] = 0
    truth = np.where(label >= 0, label, twice.truth)
    twice = replace(twice, split=split, label=label, truth=truth)
    assert "u0.png" in report(twice, tmp_path).errors[0]
    (tmp_path / "u0.png").write_bytes(b"rubbish")  # its path is still the same
    assert "u0.png" in report(twice, tmp_path).errors[0]


def test_copies_within_training_are_warnings(catalog: Catalog, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "u0.png", tmp_path / "u1.png")
    found = report(catalog, tmp_path)
    assert found.errors == []
    assert found.warnings == ["1 image has exact copies in unlabeled (u0.png = u1.png)."]
    assert found.duplicates == [["u0.png", "u1.png"]]


def test_copies_with_two_labels(catalog: Catalog, tmp_path: Path) -> None:
    shutil.copy(tmp_path / "l0.png", tmp_path / "l1.png")
    assert any("different labels (l0.png = l1.png)" in warning for warning in report(catalog, tmp_path).warnings)


def test_unreadable_images_are_listed_and_are_not_copies(catalog: Catalog, tmp_path: Path) -> None:
    for name in ("u0.png", "t.png"):
        (tmp_path / name).write_bytes(b"rubbish")
    found = report(catalog, tmp_path)
    assert [path for path, _ in found.unreadable] == ["u0.png", "t.png"]
    assert found.errors == []
    assert found.warnings == ["2 images cannot be read (u0.png, t.png)."]
    assert found.height.max == 15


def test_a_class_without_labeled_image_is_an_error(catalog: Catalog, tmp_path: Path) -> None:
    names = ("class 0", "class 1", "rare")
    found = report(replace(catalog, class_names=names, truth=catalog.label), tmp_path)
    assert found.errors == ["Class 'rare' has no labeled image: add at least one."]


def test_imbalance_and_empty_splits(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    paths = [f"{i}.png" for i in range(11)]
    for path in paths:
        save_image(path)
    warnings = report(make_catalog(paths, label=[1] + [0] * 10), tmp_path).warnings
    assert len(warnings) == 3
    assert warnings[0].startswith("There are no unlabeled images")
    assert warnings[1].startswith("There are no test images")
    assert warnings[2] == "Class 'class 0' has 10 labeled images, class 'class 1' only 1."
