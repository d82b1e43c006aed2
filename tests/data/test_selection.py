"""Images that cannot be used, and copies that would falsify training or measurement, are left out."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import UNKNOWN, Split
from semifine.data.decode import compute_digest
from semifine.data.left_out import LeftOut, describe_left_out
from semifine.data.selection import Selection, select_images
from semifine.data.store import open_store

from .conftest import MakeCatalog, SaveImage

L, U, V, T = Split.LABELED, Split.UNLABELED, Split.VAL, Split.TEST
Rows = list[tuple[str, Split, int]]
SelectRows = Callable[..., Selection]


@pytest.fixture
def select(tmp_path: Path, save_image: SaveImage, make_catalog: MakeCatalog) -> SelectRows:
    """Returns a function that selects among files named by their content: ``x1.png`` and ``x2.png`` are copies.

    Files whose name starts with ``broken`` are unreadable.
    """

    def run(rows: Rows, classes: int = 2, **changes: object) -> Selection:
        for path, _, _ in rows:
            original = tmp_path / f"{path[0]}-original.png"
            if not original.exists():
                save_image(original.name)
            shutil.copy(original, tmp_path / path)
            if path.startswith("broken"):
                (tmp_path / path).write_bytes(b"rubbish")
        paths, splits, labels = map(list, zip(*rows, strict=True))
        catalog = replace(make_catalog(paths, labels, splits, classes), **changes)  # type: ignore[arg-type]
        return select_images(catalog, open_store(catalog, 8, tmp_path / "cache"))

    return run


def kept(selection: Selection) -> list[str]:
    return list(selection.catalog.paths)


def reasons(selection: Selection) -> dict[str, tuple[str, str | None]]:
    return {item.path: (item.reason, item.copy_of) for item in selection.left_out}


BASIS: Rows = [("a.png", L, 0), ("b.png", L, 1), ("u.png", U, -1), ("v.png", V, 0), ("t.png", T, 1)]


def test_distinct_images_are_all_kept(select: SelectRows) -> None:
    selection = select(BASIS)
    assert kept(selection) == [path for path, _, _ in BASIS]
    assert (selection.left_out, selection.errors) == ((), ())


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations((T, V, L, U), 2)))
def test_of_copies_in_two_splits_one_is_kept(select: SelectRows, first: Split, second: Split) -> None:
    rows = [("x2.png", second, UNKNOWN if second == U else 0), ("x1.png", first, 0)]
    selection = select([*BASIS, *rows])
    assert kept(selection) == [*(path for path, _, _ in BASIS), "x1.png"]
    assert selection.left_out == (
        LeftOut("x2.png", second.name.lower(), "copy", f"copy of a {first.name.lower()} image", "x1.png"),
    )


@pytest.mark.parametrize("split", Split)
def test_copies_within_a_split_are_kept(select: SelectRows, split: Split) -> None:
    rows = [(f"x{number}.png", split, UNKNOWN if split == U else 0) for number in range(2)]
    assert select([*BASIS, *rows]).left_out == ()


def test_conflicting_labels_are_neither_trained_nor_validated_on(select: SelectRows) -> None:
    rows: Rows = [("x1.png", L, 0), ("x2.png", L, 1), ("x3.png", U, -1), ("y1.png", V, 0), ("y2.png", V, 1)]
    selection = select([*BASIS, *rows])
    assert reasons(selection) == {
        "x1.png": ("'class 0' here, 'class 1' there", "x2.png"),
        "x2.png": ("'class 1' here, 'class 0' there", "x1.png"),
        "y1.png": ("'class 0' here, 'class 1' there", "y2.png"),
        "y2.png": ("'class 1' here, 'class 0' there", "y1.png"),
    }
    assert "x3.png" in kept(selection), "without its labels, the photo is an unlabeled one"
    kept_anyway = select([*BASIS, *rows], keep_conflicting=True)
    assert reasons(kept_anyway) == {"x3.png": ("copy of a labeled image", "x1.png")}


@pytest.mark.parametrize("keep_conflicting", [False, True])
def test_a_test_image_with_another_label_is_kept(select: SelectRows, keep_conflicting: bool) -> None:
    rows: Rows = [("x1.png", L, 0), ("x2.png", L, 1), ("x3.png", T, 1)]
    selection = select([*BASIS, *rows], keep_conflicting=keep_conflicting)
    assert reasons(selection) == {
        "x1.png": ("copy of a test image with another label", "x3.png"),
        "x2.png": ("copy of a test image", "x3.png"),
    }


def test_hidden_labels_do_not_matter(select: SelectRows) -> None:
    rows: Rows = [*BASIS, ("x1.png", L, 0), ("x2.png", U, -1), ("y1.png", U, -1), ("y2.png", U, -1)]
    known = np.array([0, 1, 0, 0, 1, 0, 1, 0, 1])  # contradicts the label of x1 and itself
    with_truth, without = select(rows, truth=known), select(rows)
    assert with_truth.left_out == without.left_out
    assert kept(with_truth) == kept(without)


def test_published_splits_lose_only_labeled_copies_of_test_images(select: SelectRows) -> None:
    rows: Rows = [
        *(("x1.png", L, 0), ("x2.png", U, -1), ("x3.png", V, 0), ("x4.png", T, 0)),
        *(("y1.png", L, 0), ("y2.png", L, 1), ("y3.png", U, -1), ("z1.png", L, 0), ("z2.png", V, 0)),
    ]
    assert reasons(select([*BASIS, *rows], official_splits=True)) == {"x1.png": ("copy of a test image", "x4.png")}


@pytest.mark.parametrize("split", [L, V, T])
def test_published_splits_must_be_readable(select: SelectRows, split: Split) -> None:
    assert select([*BASIS, ("broken.png", U, -1), ("c.png", U, -1)], official_splits=True).errors == ()
    (error,) = select([*BASIS, ("broken.png", split, 0)], official_splits=True).errors
    assert f"1 of {3 if split == L else 2} {split.name.lower()} images of test cannot be read (broken.png: " in error


def test_unreadable_images_are_left_out(select: SelectRows) -> None:
    splits = (L, U, V, T)
    rows = [(f"broken {split.name}.png", split, UNKNOWN if split == U else 0) for split in splits]
    selection = select([*BASIS, *rows])
    assert kept(selection) == [path for path, _, _ in BASIS], "half of the images of a split may be unreadable"
    assert [(item.kind, item.copy_of) for item in selection.left_out] == [("unreadable", None)] * 4
    assert "not a supported image format" in selection.left_out[0].reason
    assert selection.errors == ()


@pytest.mark.parametrize("split", Split)
def test_most_images_of_a_split_must_be_readable(select: SelectRows, split: Split) -> None:
    readable = 2 if split == L else 1
    rows = [(f"broken{number}.png", split, UNKNOWN if split == U else 0) for number in range(readable + 1)]
    (error,) = select([*BASIS, *rows]).errors
    assert f"{readable + 1} of {2 * readable + 1} {split.name.lower()} images of test cannot be read (broken0" in error


def test_held_out_images_count_as_labeled_images(select: SelectRows) -> None:
    """One unreadable image may be the only one that is held out."""
    rows: Rows = [("a.png", L, 0), ("b.png", L, 1), ("broken.png", V, 1)]
    assert select(rows, held_out=True).errors == ()
    assert len(select(rows, held_out=False).errors) == 1


def test_a_class_without_usable_labels_is_left_out(select: SelectRows) -> None:
    rows: Rows = [
        *(("broken.png", L, 1), ("a.png", L, 0), ("c.png", L, 2), ("t.png", T, 1), ("u.png", T, 2)),
        *(("d.png", U, -1), ("e.png", U, -1), ("f.png", U, -1), ("g.png", U, -1)),
    ]
    truth = np.array([1, 0, 2, 1, 2, 0, 1, 2, 3])
    selection = select(rows, classes=3, truth=truth, class_groups=("x", "y", "z"))
    catalog = selection.catalog
    assert catalog.class_names == ("class 0", "class 2")
    assert catalog.class_groups == ("x", "z")
    assert kept(selection) == ["a.png", "c.png", "u.png", "d.png", "e.png", "f.png", "g.png"]
    assert catalog.label.tolist() == [0, 1, 1, -1, -1, -1, -1]
    assert catalog.truth.tolist() == [0, 1, 1, 0, 2, 1, 3], "the removed class and the other one stay different"
    assert reasons(selection)["t.png"] == ("class 'class 1' has no usable labeled image", None)
    assert selection.left_out[-1] == LeftOut("class 1", "labeled", "class", "no usable labeled image")


def test_two_classes_must_have_usable_labels(select: SelectRows) -> None:
    (error,) = select([("a1.png", L, 0), ("a2.png", T, 0), ("b.png", L, 1)]).errors
    assert error == (
        "Fewer than two classes of test have a usable labeled image (a1.png: copy of a test image): replace the images "
        "that are left out, or add others."
    )


def test_store_and_catalog_have_the_same_rows(select: SelectRows, tmp_path: Path) -> None:
    rows: Rows = [("x1.png", U, -1), ("broken.png", L, 0), *BASIS, ("x2.png", T, 0)]
    selection = select(rows)
    for row in range(len(selection.catalog)):
        file = tmp_path / selection.catalog.paths[row]
        assert selection.store.digest[row].tobytes() == compute_digest(file.read_bytes())
    assert len(selection.store) == len(selection.catalog) == 6


def slow_rule(split: Split, label: int, copies: list[tuple[Split, int]]) -> bool:
    """Whether an image with these copies is left out."""
    others = {other for other, _ in copies}
    labels = {name for other, name in [(split, label), *copies] if other in (L, V)}
    if split == T or T in others:
        return split != T
    if len(labels) > 1:
        return split in (L, V)
    return (split == L and V in others) or (split == U and bool(others & {L, V}))


@pytest.mark.parametrize("seed", range(20))
def test_rule_equals_a_decision_image_by_image(select: SelectRows, seed: int) -> None:
    random = np.random.default_rng(seed)
    contents = [str(content) for content in random.choice(list("pqrstw"), 12)]
    splits = [Split(int(split)) for split in random.integers(0, 4, 12)]
    labels = [UNKNOWN if split == U else int(random.integers(2)) for split in splits]
    paths = [f"{content}{number:02d}.png" for number, content in enumerate(contents)]
    rows: Rows = [("a.png", L, 0), ("b.png", L, 1), *zip(paths, splits, labels, strict=True)]
    left_out = {
        path
        for path, split, label in rows
        if slow_rule(split, label, [(*row[1:],) for row in rows if row[0][0] == path[0] and row[0] != path])
    }
    assert {item.path for item in select(rows).left_out} == left_out


def test_summary_has_plain_numbers() -> None:
    items = [
        LeftOut("l", "labeled", "copy", "copy of a test image", "t"),
        *[LeftOut(f"u{i}", "unlabeled", "copy", "copy of a test image", "t") for i in range(5)],
        LeftOut("k", "labeled", "copy", "copy of a test image with another label", "t"),
        *[LeftOut(f"c{i}", "labeled", "conflict", "'a' here, 'b' there", "x") for i in range(4)],
        LeftOut("b", "labeled", "unreadable", "torn"),
        LeftOut("n", "test", "no_class", "class 'e' has no labeled image"),
        *[LeftOut(name, "labeled", "class", "contains no image") for name in "ef"],
    ]
    assert describe_left_out(items) == (
        "1 labeled image and 5 unlabeled images (also in test), 1 labeled image (also in test with another label), "
        "4 labeled images (labeled as different classes), 1 labeled image (unreadable), "
        "1 test image (class without usable labeled images), 2 classes (no usable labeled image)"
    )
