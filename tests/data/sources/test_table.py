from __future__ import annotations

import os
import unicodedata
from pathlib import Path

import numpy as np
import pytest

from semifine.config.autotune import median_side
from semifine.data.catalog import Catalog, Split
from semifine.data.sources.table import Settings, load
from semifine.data.store import open_store, unreadable_reasons
from semifine.errors import UserError

from ..conftest import SaveImage


def table(tmp_path: Path, *lines: str, name: str = "list.csv", encoding: str = "utf-8") -> Catalog:
    file = tmp_path / name
    file.write_bytes("\n".join(lines).encode(encoding))
    return load(file, Settings())


@pytest.fixture(autouse=True)
def images(save_image: SaveImage) -> None:
    for path in ("a.png", "b.png", "with, comma .PNG", "Vögel/鳥.png"):
        save_image(path)


def test_labels_and_blanks(tmp_path: Path) -> None:
    catalog = table(
        tmp_path, "path,label,camera", "a.png,wren,x", "b.png, robin ,", '"with, comma .PNG",,', "", "Vögel/鳥.png,,"
    )
    assert catalog.class_names == ("robin", "wren")
    assert list(catalog.paths) == ["a.png", "b.png", "with, comma .PNG", "Vögel/鳥.png"]
    assert catalog.label.tolist() == catalog.truth.tolist() == [1, 0, -1, -1]
    assert catalog.split.tolist() == [0, 0, 1, 1]
    assert catalog.reader.read(3).shape == (10, 12, 3)


def test_tabs_byte_order_mark_and_windows_lines(tmp_path: Path) -> None:
    lines = ["Path\tLabel\r", "a.png\tx, y\r", "b.png\tz\r"]
    catalog = table(tmp_path, *lines, name="list.TSV", encoding="utf-8-sig")
    assert catalog.class_names == ("x, y", "z")


@pytest.mark.parametrize("mark", [";", "\t"])
def test_a_csv_of_semicolons_or_tabs(tmp_path: Path, mark: str) -> None:
    lines = [line.replace("|", mark) for line in ("path|label", " a.png |x, y", "b.png| z")]
    catalog = table(tmp_path, *lines)
    assert catalog.class_names == ("x, y", "z")
    assert list(catalog.paths) == ["a.png", "b.png"]


def test_accents_are_one_class_in_both_forms(tmp_path: Path) -> None:
    composed, decomposed = (unicodedata.normalize(form, "fée") for form in ("NFC", "NFD"))
    lines = [f"a.png,{composed},", "b.png,b,", f"c,{decomposed},val", f"d,{decomposed},", f"e,{decomposed},unlabeled"]
    catalog = table(tmp_path, "path,label,split", *lines)
    assert catalog.class_names == ("b", composed)
    assert catalog.truth.tolist() == [1, 0, 1, 1, 1]


def test_classes_that_differ_only_in_case_are_named(tmp_path: Path) -> None:
    notes = table(tmp_path, "path,label", "a.png,Wren", "b.png,wren").notes
    assert (
        notes[0] == "these classes are learned separately, although their names differ only in case: 'Wren' and 'wren'"
    )


def test_missing_images_are_accepted_anywhere_in_the_list(tmp_path: Path) -> None:
    lines = [f"{'missing' if number % 5 == 0 else 'a'}{number}.png,{'xy'[number % 2]}" for number in range(40)]
    for number in range(40):
        if number % 5:
            (tmp_path / f"a{number}.png").touch()
    assert len(table(tmp_path, "path,label", *lines)) == 40


def test_a_pipe_is_unreadable_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    lines = ["path,label", "a.png,x", "b.png,y", "pipe.jpg,"]
    catalog = table(tmp_path, *lines)
    assert median_side(catalog) == 10
    store = open_store(catalog, 8, tmp_path / "cache")
    assert unreadable_reasons(store) == {2: f"{tmp_path / 'pipe.jpg'} is not a regular file"}
    with_times = load(tmp_path / "list.csv", Settings(group_by="exif-burst"))
    assert "3 of 3 photos have no time in their EXIF" in with_times.notes[0]


def test_splits_in_all_spellings(tmp_path: Path) -> None:
    lines = ["path,label,split", "a.png,x,labeled", "b.png,y,Labeled", "c,x,train", "d,,train", "e,,unlabeled"]
    lines += ["f,,unlabeled", "g,x,val", "h,x,valid", "i,y,validation", "j,y,test", "k,y,"]
    assert table(tmp_path, *lines).split.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 0]


def test_labels_of_unlabeled_rows_are_hidden(tmp_path: Path) -> None:
    catalog = table(
        tmp_path,
        "path,label,split,truth",
        *("a.png,x,train,", "b.png,y,train,ignored", "c,x,unlabeled,", "d,,unlabeled,y", "e,,,y", "f,,,"),
        *("g,,unlabeled,zebra", "h,albatross,unlabeled,", "i,x,unlabeled,x"),
    )
    hidden = catalog.split == Split.UNLABELED
    assert (catalog.label[hidden] == -1).all()
    assert catalog.truth[hidden].tolist() == [0, 1, 1, -1, 3, 2, 0]  # albatross 2 and zebra 3: other classes
    assert catalog.truth[:2].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["file,label", "a.png,x"], r"list\.csv has no column 'path'.*file, label"),
        ([], "has no column 'path'.*nothing"),
        (["path,label", "a.png"], "line 2: only 1 of 2 columns"),
        (["path,label", ",x"], "line 2: the path is empty"),
        (["path,label", "a\0.png,x"], r"line 2: the path 'a\\x00\.png' contains a null character"),
        (["path,label,split", "a.png,x,dev"], "line 2: unknown split 'dev'.*validation"),
        (["path,label,split", "a.png,x,", "b.png,,test"], "line 3: an image of split 'test' needs a label"),
        (["path,label,split", "a.png,,labeled"], "line 2: an image of split 'labeled' needs a label"),
        (["path,label", "a.png,x", "b.png,y", "a.png,y"], r"line 4: a\.png has the label 'y' here but 'x' on line 2"),
        (["path,label,split", "a.png,x,", "b.png,y,", "c,z,test"], "line 4: class 'z' has no labeled image"),
        (["path,label", "a.png,x", "b.png,"], "at least two classes, not 1"),
        (["path,label", "no.png,x", "nil.png,y"], r"No image of .* was found, for example .*no\.png"),
        (
            ["path,label", r"..\photos\a.png,x", r"b\c.png,y"],
            r"No image of .* was found.*Write / instead of \\ in paths",
        ),
        (["path,label,Label", "a.png,x,y"], r"list\.csv has two columns 'label': remove one"),
        (["path,label", 'a.png,"x', "b.png,y"], "line 3: unexpected end of data"),
        (["path,label,split,truth", "a.png,x,unlabeled,y"], "line 2: label 'x' and truth 'y' differ"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, lines: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        table(tmp_path, *lines)


def test_other_encodings_are_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not UTF-8"):
        table(tmp_path, "path,label", "Vögel.png,x", encoding="latin-1")


def test_a_path_may_be_labeled_and_unlabeled(tmp_path: Path) -> None:
    assert len(table(tmp_path, "path,label", "a.png,x", "b.png,y", "a.png,", "a.png,x")) == 4


def test_root_and_absolute_paths(tmp_path: Path, save_image: SaveImage) -> None:
    save_image("images/c.png", width=5)
    (tmp_path / "lists").mkdir()
    file = tmp_path / "lists" / "list.csv"
    file.write_text(f"path,label\nc.png,x\n{tmp_path / 'a.png'},y\n")
    catalog = load(file, Settings(root=str(tmp_path / "images")))
    assert [catalog.reader.read(row).shape[1] for row in (0, 1)] == [5, 12]


def test_validation_is_held_out(tmp_path: Path) -> None:
    file = tmp_path / "list.csv"
    file.write_text("path,label\na.png,x\nc.png,x\nb.png,y\nd.png,y\n")
    catalog = load(file, Settings(val_share=0.5))
    assert np.bincount(catalog.split).tolist() == [2, 0, 2]


def test_rows_of_one_site_are_not_split(tmp_path: Path) -> None:
    lines = [f"{name}{site}{n}.png,{name},site {site}" for name in "xy" for site in range(5) for n in range(2)]
    file = tmp_path / "list.csv"
    file.write_text("\n".join(["path,label,Site", *lines, "a.png,,site 1", "b.png,,"]))
    (tmp_path / "x00.png").touch()
    catalog = load(file, Settings(group_by="site", val_share=0.2))
    site_of = {line.split(",")[0]: line.split(",")[2] for line in lines} | {"a.png": "site 1", "b.png": ""}
    held_out = {site_of[catalog.paths[row]] for row in catalog.rows(Split.VAL)}
    assert len(held_out) == 1
    assert all(site_of[catalog.paths[row]] not in held_out for row in catalog.rows(Split.LABELED))
    assert all(site_of[catalog.paths[row]] not in held_out for row in catalog.rows(Split.UNLABELED))
    with pytest.raises(UserError, match=r"'observer'.*path, label, Site"):
        load(file, Settings(group_by="observer"))
