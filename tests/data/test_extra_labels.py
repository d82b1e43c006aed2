"""Extra labels from a log of the studio or a table; a run keeps a frozen copy."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path

import pytest
from PIL import Image

from semifine.data.catalog import Split
from semifine.data.extra_labels import add_labels, freeze_labels, labels_as_csv, read_labels, with_catalog_paths
from semifine.data.label_log import LABEL, UNDO, Event, LabelLog
from semifine.data.sources import folder
from semifine.data.store import open_store
from semifine.errors import UserError
from semifine.inference.model import load
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import open_dataset, tiny_settings

QUIET = Display(quiet=True)


@pytest.fixture(scope="module")
def images() -> tuple[list[str], tuple[str, ...]]:
    catalog = open_dataset(tiny_settings()).catalog
    return [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)], catalog.class_names


def test_labels_of_a_log_without_conflicts_and_missing_images_are_added(
    tmp_path: Path, images: tuple[list[str], tuple[str, ...]]
) -> None:
    paths, names = images
    log = LabelLog(tmp_path / "studio.db")
    log.append([Event("Ada", path, LABEL, names[3]) for path in paths[:4]])
    log.append([Event("Bo", paths[0], LABEL, names[4]), Event("Ada", "missing.jpg", LABEL, names[0])])
    log.append([Event("Ada", paths[1], UNDO, undoes=2)])
    plain = open_dataset(tiny_settings()).catalog
    catalog = open_dataset(tiny_settings(labels=str(log.file))).catalog
    added = catalog.rows(Split.LABELED)[-2:]
    assert len(catalog) == len(plain) + 2
    assert sorted(catalog.paths[row] for row in added) == sorted(paths[2:4])
    assert catalog.label[added].tolist() == [3, 3]


def test_labels_are_no_formulas_for_a_spreadsheet(tmp_path: Path) -> None:
    pairs = [("=1+1.jpg", "-class"), ("'=2.jpg", "+1"), ("'t.jpg", "@x"), ("a\r=3.jpg", "robin")]
    text = labels_as_csv(pairs)
    assert not re.search(r"^[=+\-@]|,[=+\-@]", text, flags=re.MULTILINE)
    (tmp_path / "labels.csv").write_text(text, newline="")
    assert read_labels(tmp_path / "labels.csv").pairs == pairs


def test_a_table_may_have_blank_and_repeated_lines(
    tmp_path: Path, images: tuple[list[str], tuple[str, ...]], capsys: pytest.CaptureFixture[str]
) -> None:
    (first, second, third, fourth, *_), names = images
    table = tmp_path / "next.csv"
    table.write_text(f"path,label\n{first},{names[2]}\n{second},\n{third},  \n{fourth}\n{first},{names[2]}\n")
    plain = open_dataset(tiny_settings()).catalog
    catalog = open_dataset(tiny_settings(labels=str(table)), print).catalog
    assert len(catalog) == len(plain) + 1
    assert (catalog.paths[len(plain)], catalog.label[len(plain)]) == (first, 2)
    output = " ".join("".join(capsys.readouterr()).split())
    assert "1 label from" in output
    assert "3 lines without a label left out" in output


def test_a_table_that_gives_an_image_two_classes_is_refused(
    tmp_path: Path, images: tuple[list[str], tuple[str, ...]]
) -> None:
    (path, *_), names = images
    table = tmp_path / "labels.csv"
    table.write_text(f"path,label\n{path},{names[0]}\n{path},{names[1]}\n")
    with pytest.raises(UserError, match=f"two labels, '{names[0]}' and '{names[1]}'"):
        open_dataset(tiny_settings(labels=str(table)))


def test_a_resumed_run_keeps_its_labels(tmp_path: Path, images: tuple[list[str], tuple[str, ...]]) -> None:
    paths, names = images
    log = LabelLog(tmp_path / "studio.db")
    log.append([Event("Ada", paths[0], LABEL, names[0])])
    settings = tiny_settings("supervised", labels=str(log.file), iterations=4, save_every=4)
    result = fit(settings, tmp_path / "run", display=QUIET)
    assert result["images"]["labeled"] == 19
    log.append([Event("Ada", paths[1], LABEL, names[0])])
    (tmp_path / "run" / "result.json").unlink()  # as if stopped just before the end
    assert fit(settings, tmp_path / "run", resume=True, display=QUIET)["images"]["labeled"] == 19
    assert (tmp_path / "run" / "labels.csv").read_text() == f"path,label\n{paths[0]},{names[0]}\n"


@pytest.mark.parametrize("name", ["labels.csv", "data.json", "classes.json", "weights.json", "environment.json"])
def test_a_folder_with_another_file_is_refused_and_unchanged(
    name: str, tmp_path: Path, images: tuple[list[str], tuple[str, ...]]
) -> None:
    own = tmp_path / name
    own.write_text(f"path,label\n{images[0][0]},{images[1][0]}\n")
    before = own.read_text()
    with pytest.raises(UserError, match="is not empty and not a run folder"):
        fit(tiny_settings("supervised", labels=str(own)), tmp_path, display=QUIET)
    assert own.read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_files_of_a_failed_attempt_are_replaced(tmp_path: Path, images: tuple[list[str], tuple[str, ...]]) -> None:
    table = tmp_path / "mine.csv"
    out = tmp_path / "run"
    settings = tiny_settings("supervised", labels=str(table), iterations=1)
    with pytest.raises(UserError, match="Cannot read the labels"):
        fit(settings, out, display=QUIET)
    (out / "data.json").write_text("{}")
    (out / ".settings.yaml.123.partial").write_text("")
    table.write_text(f"path,label\n{images[0][0]},{images[1][0]}\n")
    assert fit(settings, out, display=QUIET)["images"]["labeled"] == 19


def test_a_run_keeps_a_copy_of_its_table(tmp_path: Path, images: tuple[list[str], tuple[str, ...]]) -> None:
    (path, *_), names = images
    table, out = tmp_path / "mine.csv", tmp_path / "run"
    table.write_text(f"path,label\n{path},{names[0]}\n")
    settings = tiny_settings("supervised", labels=str(table), iterations=1)
    fit(settings, out, display=QUIET)
    table.write_text(f"path,label\n{path},{names[1]}\n")
    (out / "result.json").unlink()
    fit(settings, out, resume=True, display=QUIET)
    table.unlink()
    catalog = load(out, device="cpu").run.dataset.catalog
    assert catalog.class_names[catalog.label[-1]] == names[0]


def test_a_missing_class_is_ignored_in_a_log_and_an_error_in_a_table(
    tmp_path: Path, images: tuple[list[str], tuple[str, ...]]
) -> None:
    paths, names = images
    log = LabelLog(tmp_path / "studio.db")
    log.append([Event("Ada", paths[0], LABEL, "dodo"), Event("Ada", paths[1], LABEL, names[0])])
    dataset = open_dataset(tiny_settings(labels=str(log.file)))
    assert dataset.catalog.paths[len(dataset.catalog) - 1] == paths[1]
    assert len(dataset.catalog) == len(open_dataset(tiny_settings()).catalog) + 1
    table = tmp_path / "labels.csv"
    table.write_text(f"path,label\n{paths[0]},dodo\n")
    with pytest.raises(UserError, match="'dodo', which is not a class"):
        open_dataset(tiny_settings(labels=str(table)))


@pytest.mark.parametrize("content", ["", "my notes\n", "file;label\n"])
def test_other_files_are_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "notes.db"
    file.write_text(content)
    with pytest.raises(UserError, match=r"notes\.db is neither a log of the studio nor a CSV file"):
        open_dataset(tiny_settings(labels=str(file)))


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, name in enumerate(("labeled/fée/1.png", "labeled/b/2.png", "unlabeled/3.png", "unlabeled/4.png")):
        (tmp_path / "photos" / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / "photos" / name)
    return tmp_path / "photos"


def labeled_by(table: Path, photos: Path, *lines: str) -> list[tuple[str, str]]:
    """Returns path and class of the labels that a table adds."""
    table.write_text("\n".join(lines), encoding="utf-8")
    catalog = folder.load(photos, folder.Settings())
    labels = with_catalog_paths(catalog, read_labels(table))
    longer, _, _ = add_labels(catalog, open_store(catalog, 8, photos.parent / "cache"), labels)
    added = range(len(catalog), len(longer))
    return [(longer.paths[row], longer.class_names[longer.label[row]]) for row in added]


@pytest.mark.parametrize("header", ["path,label", " Path , LABEL "])
@pytest.mark.parametrize(
    "path", ["unlabeled/3.png", "./unlabeled/3.png", "{root}/unlabeled/3.png", "photos/unlabeled/3.png"]
)
def test_header_and_paths_may_be_written_in_several_ways(
    header: str, path: str, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = unicodedata.normalize("NFD", "fée")
    line = f"{path.format(root=photos)} ,  {name} "
    assert labeled_by(tmp_path / "l.csv", photos, header, line) == [("unlabeled/3.png", "f\u00e9e")]


def test_a_table_of_semicolons(photos: Path, tmp_path: Path) -> None:
    assert labeled_by(tmp_path / "l.csv", photos, "path;label", "unlabeled/4.png;b") == [("unlabeled/4.png", "b")]


def test_frozen_labels_are_valid_from_any_working_folder(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(photos / "unlabeled")
    (tmp_path / "l.csv").write_text("path,label\n3.png,b\n")
    catalog = folder.load(photos, folder.Settings())
    freeze_labels(with_catalog_paths(catalog, read_labels(tmp_path / "l.csv")), tmp_path / "frozen.csv")
    assert (tmp_path / "frozen.csv").read_text() == "path,label\nunlabeled/3.png,b\n"


def test_one_image_by_two_paths_has_one_label(photos: Path, tmp_path: Path) -> None:
    paths = ("unlabeled/3.png", str(photos / "unlabeled" / "3.png"))
    same = labeled_by(tmp_path / "l.csv", photos, "path,label", *(f"{path},b" for path in paths))
    assert same == [("unlabeled/3.png", "b")]
    with pytest.raises(UserError, match=r"unlabeled/3\.png two labels, 'b' and 'fée'"):
        labeled_by(tmp_path / "l.csv", photos, "path,label", f"{paths[0]},b", f"{paths[1]},fée")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["path,label", "3.png,b"], r"labels 3\.png, which is not an unlabeled .* for example unlabeled/3\.png\.$"),
        (["path,label", "unlabeled\\3.png,b"], r"for example unlabeled/3\.png\. Write / instead of \\"),
        (["path,label,label", "unlabeled/3.png,b,b"], "has two columns 'label': remove one"),
    ],
)
def test_errors_name_the_remedy(lines: list[str], message: str, photos: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        labeled_by(tmp_path / "l.csv", photos, *lines)
