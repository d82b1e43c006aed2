"""Evaluation on folders and tables of labeled photos."""

from __future__ import annotations

import csv
import json
import shutil
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from numpy.typing import NDArray
from PIL import Image

from semifine.cli.main import main
from semifine.data.catalog import Split
from semifine.data.label_check import LabelCheck, check_labels
from semifine.errors import UserError
from semifine.inference import evaluate_files
from semifine.inference.evaluate_files import match_classes, read_labeled_photos
from semifine.inference.model import TrainedModel


@pytest.fixture(scope="module")
def labeled(soc_model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The test images of the run in one folder per class."""
    root = tmp_path_factory.mktemp("labeled")
    catalog = soc_model.run.dataset.catalog
    for row in catalog.rows(Split.TEST).tolist():
        folder = root / catalog.class_names[catalog.label[row]].upper()
        folder.mkdir(exist_ok=True)
        Image.fromarray(catalog.reader.read(row)).save(folder / f"{row}.png")
    return root


@pytest.fixture
def table(labeled: Path, tmp_path: Path) -> Path:
    """A table of the same photos, with a column of splits."""
    file = tmp_path / "labels.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["path", "label", "split"])
        for number, path in enumerate(sorted(labeled.rglob("*.png"))):
            writer.writerow([path, path.parent.name.lower(), "val" if number % 2 else "test"])
    return file


def test_folder_and_split_of_the_same_photos_have_equal_scores(soc_model: TrainedModel, labeled: Path) -> None:
    from_split, from_folder = soc_model.evaluate("test"), soc_model.evaluate(labeled)
    assert from_split["images"] == len(list(labeled.rglob("*.png")))
    assert from_split.pop("split") == "test"
    for name, score in from_split.items():
        assert from_folder[name] == pytest.approx(score, abs=1e-4), name
    assert from_folder["unknown_classes"] == {}
    assert from_folder["trained_on"] == 0


def test_table_and_its_splits(soc_folder: Path, table: Path, capsys: pytest.CaptureFixture[str]) -> None:
    counts = {}
    for split in (None, "test", "val"):
        options = ["--split", split] if split else []
        assert main(["evaluate", str(soc_folder), str(table), "--json", "--device", "cpu", *options]) == 0
        counts[split] = json.loads(capsys.readouterr().out)["images"]
    assert counts[None] == counts["test"] + counts["val"]
    assert counts["val"] in (counts["test"], counts["test"] - 1)


def test_what_is_left_out_is_listed(
    soc_folder: Path, labeled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = Path(shutil.copytree(labeled, tmp_path / "photos"))
    known = sorted(path.name for path in photos.iterdir())[0]
    (photos / "Zebra").mkdir()
    for number in range(3):
        Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(photos / "Zebra" / f"{number}.jpg")
    (photos / known / "broken.jpg").write_bytes(b"no image")
    shutil.copy(photos / "Zebra" / "0.jpg", photos / "beside.jpg")
    (photos / "empty").mkdir()
    assert main(["evaluate", str(soc_folder), str(photos), "--device", "cpu"]) == 0
    captured = capsys.readouterr()
    assert "photos of classes that the run does not know are left out: 3, of the classes 'Zebra' (3)" in captured.err
    assert "photos without a class are left out: 1" in captured.err
    assert f"unreadable photos are left out: 1: {photos / known / 'broken.jpg'}" in captured.err
    assert main(["evaluate", str(soc_folder), str(photos), "--device", "cpu", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["unknown_classes"], result["without_class"]) == ({"Zebra": 3}, 1)
    assert list(result["unreadable"]) == [str(photos / known / "broken.jpg")]
    assert result["images"] == len(list(labeled.rglob("*.png")))


def test_printed_scores(soc_folder: Path, labeled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for data in ([str(labeled)], ["--split", "val"]):
        assert main(["evaluate", str(soc_folder), *data, "--device", "cpu"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert "top-1" in lines[0]
        assert "95 % interval" in lines[0]
        assert [line.partition(":")[0] for line in lines[1:4]] == [
            "mean accuracy per class",
            "expected calibration error",
            "90 % conformal sets",
        ]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_table_of_predictions_with_true_classes(
    soc_folder: Path, labeled: Path, tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"predictions{suffix}"
    arguments = ["evaluate", str(soc_folder), str(labeled), "--out", str(out), "--device", "cpu"]
    assert main([*arguments, "--json"]) == 0
    top1 = json.loads(capsys.readouterr().out)["top1"]
    text = out.read_text() if suffix != ".parquet" else ""
    if suffix == ".csv":
        rows = list(csv.DictReader(text.splitlines()))
    else:
        rows = pq.read_table(out).to_pylist() if not text else [json.loads(line) for line in text.splitlines()]
    assert list(rows[0])[:3] == ["path", "label", "name"]
    assert 100 * np.mean([row["label"] == row["name"] for row in rows]) == pytest.approx(top1)
    assert all(Path(row["path"]).parent.name == row["label"].upper() for row in rows)
    assert main(arguments) == 2
    assert f"{out} exists already" in capsys.readouterr().err


def test_predictions_of_a_split(soc_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "val.csv"
    assert main(["evaluate", str(soc_folder), "--split", "val", "--out", str(out), "--device", "cpu"]) == 0
    assert len(out.read_text().splitlines()) > 20


def test_training_photos_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    photos, out = tmp_path / "photos", tmp_path / "run"
    random = np.random.default_rng(0)
    for kind in ("robin", "wren"):
        for split, count in (("labeled", 4), ("test", 2), ("unlabeled", 6)):
            folder = photos / split if split == "unlabeled" else photos / split / kind
            folder.mkdir(parents=True, exist_ok=True)
            for number in range(count):
                Image.fromarray(random.integers(0, 255, (40, 40, 3), np.uint8)).save(folder / f"{kind}{number}.png")
    options = "--method supervised --backbone test_resnet --iterations 2 --image-size 32 --device cpu --quiet".split()
    cache = ["--cache", str(tmp_path / "cache")]
    assert main(["train", str(photos), "--out", str(out), "--data.val_share", "0", *options, *cache]) == 0
    capsys.readouterr()
    for folder, expected in (("labeled", 8), ("test", 0)):
        assert main(["evaluate", str(out), str(photos / folder), "--json", "--device", "cpu"]) == 0
        captured = capsys.readouterr()
        assert json.loads(captured.out)["trained_on"] == expected
        assert ("labeled training photos of the run" in captured.err) == bool(expected)
        assert "note: not calibrated" in captured.err
    assert main(["evaluate", str(out), str(photos), "--device", "cpu"]) == 2
    assert f"give {photos / 'test'}" in capsys.readouterr().err


def test_class_names_match_by_unicode_and_case() -> None:
    decomposed = unicodedata.normalize("NFD", "Mésange")
    assert match_classes([decomposed, "MÉSANGE", " robin ", "owl"], ("Mésange", "Robin")) == {
        decomposed: 0,
        "MÉSANGE": 0,
        " robin ": 1,
    }
    assert match_classes(["Wren", "wren", "WREN"], ("wren", "Wren")) == {"Wren": 1, "wren": 0}, "WREN is ambiguous"


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("path,name\na.jpg,robin\n", "no column 'label'"),
        ("path,label\na.jpg,owl\n", "it has the classes owl, and the run knows robin, wren"),
        ("path,label\na.jpg,\n", "No photo of"),
        ("path,label\n", "No photos found"),
    ],
)
def test_tables_without_usable_rows(tmp_path: Path, content: str, part: str) -> None:
    (tmp_path / "labels.csv").write_text(content)
    with pytest.raises(UserError, match=part):
        read_labeled_photos(tmp_path / "labels.csv", ("robin", "wren"))


def test_wrong_paths(soc_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "photo.jpg").touch()
    name = TrainedModel(soc_folder, device="cpu").class_names[0]
    (tmp_path / "gone.csv").write_text(f"path,label\nphotos\\a.jpg,{name}\n")
    (tmp_path / "tests.csv").write_text(f"path,label,split\na.jpg,{name},test\n")
    for path, options, part in (
        ("nowhere", [], "nowhere does not exist: give a folder with one folder per class"),
        ("photo.jpg", [], "is neither a folder nor a table"),
        ("empty", [], "No photos found in"),
        ("empty", ["--split", "test"], "--split selects rows of a table"),
        ("gone.csv", [], "None of the 1 photos"),
        ("gone.csv", [], "Write / instead of \\ in paths."),
        ("tests.csv", ["--split", "val"], "has no rows of the split 'val'"),
    ):
        assert main(["evaluate", str(soc_folder), str(tmp_path / path), *options, "--device", "cpu"]) == 2
        error = capsys.readouterr().err
        assert part in error
        assert len(error.splitlines()) == 1


def test_labels_that_contradict_predictions_are_listed(
    soc_folder: Path, labeled: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The predictions are replaced by the labels, but for one photo."""

    def planted(paths: list[str], probs: NDArray[np.float64], label: NDArray[np.int64]) -> LabelCheck:
        assert len(paths) == len(probs) == len(label)
        shown = np.eye(probs.shape[1])[label] * 0.8 + 0.2 / probs.shape[1]
        shown[3] = np.roll(shown[3], 1)
        return check_labels(paths, shown, label)

    monkeypatch.setattr(evaluate_files, "check_labels", planted)
    command = ["evaluate", str(soc_folder), str(labeled), "--device", "cpu"]
    assert main([*command, "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["suspect_labels"]
    assert Path(listed["path"]).parent.name == listed["label"].upper()
    assert listed["prediction"] != listed["label"]

    assert main(command) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-2].startswith("labels to check: 1 of ")
    assert lines[-1] == f"  {listed['path']}: labeled {listed['label']}, predicted {listed['prediction']}"
