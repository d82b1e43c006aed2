from __future__ import annotations

import pickle
import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import UNKNOWN, Catalog, PathColumn, Split, case_variant_notes, normalize_class_name
from semifine.errors import UserError

from .conftest import MakeCatalog, SaveImage

SPLITS = [Split.LABELED, Split.LABELED, Split.UNLABELED, Split.UNLABELED, Split.TEST]


@pytest.fixture
def catalog(make_catalog: MakeCatalog) -> Catalog:
    plain = make_catalog([f"{i}.png" for i in range(5)], label=[0, 1, -1, -1, 1], split=SPLITS)
    return replace(plain, truth=np.array([0, 1, 1, 2, 1]))


def test_rows_and_take(catalog: Catalog, save_image: SaveImage) -> None:
    save_image("4.png", width=7)
    assert catalog.rows(Split.UNLABELED).tolist() == [2, 3]
    part = catalog.take(np.array([4, 2])).take(np.array([1, 0]))
    assert list(part.paths) == ["2.png", "4.png"]
    assert part.truth.tolist() == [1, 1]
    assert part.reader.read(1).shape == (10, 7, 3)
    assert part.reader.fingerprint()[0] == "missing"


def test_truth_revealed_takes_known_classes_only(catalog: Catalog) -> None:
    oracle = catalog.with_truth_revealed()
    assert oracle.label.tolist() == [0, 1, 1, UNKNOWN, 1]
    assert oracle.split.tolist() == [0, 0, 0, 1, 3]
    assert catalog.label.tolist() == [0, 1, UNKNOWN, UNKNOWN, 1]  # unchanged
    with pytest.raises(UserError, match="true classes"):
        replace(catalog, truth=catalog.label).with_truth_revealed()


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("label", [0, 1, 0, -1, 1], "unlabeled image must not carry a label"),
        ("label", [0, 2, -1, -1, 1], "class ids"),
        ("label", [0, -1, -1, -1, 1], "class ids"),
        ("truth", [1, 1, 1, 2, 1], "truth must equal"),
        ("truth", [0, 1, -2, 2, 1], "truth must equal"),
        ("split", [0, 0, 1, 1, 4], "unknown split"),
        ("paths", ["a"], "equal length"),
        ("class_names", ("a", "a"), "differ"),
        ("class_groups", ("a",), "one entry per class"),
    ],
)
def test_invalid_columns_raise(catalog: Catalog, column: str, value: object, message: str) -> None:
    value = np.array(value) if column in ("label", "truth", "split") else value
    with pytest.raises(AssertionError, match=message):
        replace(catalog, **{column: value})


def test_paths_keep_every_character_and_pickle() -> None:
    names = ["a b /c .JPG", "Zürich/鳥 🐦.jpg", "", " lead", "x" * 300]
    column = PathColumn(names)
    assert list(column) == names
    assert column[1] == names[1]
    assert isinstance(column[1], str)
    assert list(column[1:3]) == names[1:3]
    assert list(pickle.loads(pickle.dumps(column))) == names
    assert names[1] in column


def test_path_that_is_not_utf8_is_named() -> None:
    with pytest.raises(UserError, match=r"bad\\udc80\.jpg"):
        PathColumn(["good.jpg", "bad\udc80.jpg"])


def test_many_paths_take_little_memory(tmp_path: Path) -> None:
    column = PathColumn(f"{tmp_path}/images/{i}.jpg" for i in range(100_000))
    assert len(pickle.dumps(column.array)) < 30_000_000
    assert column[99_999].endswith("99999.jpg")


@pytest.mark.parametrize("written", [unicodedata.normalize(form, "fée") for form in ("NFC", "NFD")])
def test_accents_and_spaces_are_normalized(written: str) -> None:
    assert normalize_class_name(f" {written}\t") == "f\u00e9e"


def test_classes_that_differ_in_case_are_named() -> None:
    assert case_variant_notes(["Wren", "robin", "Robin", "wrens"]) == [
        "these classes are learned separately, although their names differ only in case: 'robin' and 'Robin'"
    ]
    assert case_variant_notes(["wren", "robin"]) == []
    (note,) = case_variant_notes([*"abcd", *"ABCD"])
    assert note.endswith("'b' and 'B', 'c' and 'C', …")
