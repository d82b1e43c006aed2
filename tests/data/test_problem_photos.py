"""Training goes on with a folder that contains copies, conflicting labels, unreadable photos and an empty class.

The folder has the problems of Stanford Cars, and three more.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from semifine.cli.main import main
from semifine.config import read_run_settings
from semifine.report import write_page
from semifine.runs.run import Run

CLASSES = ("Acura RL", "BMW M3", "Volvo 240", "Fiat 500")
TINY = (
    "--backbone test_resnet --image-size 32 --batch-size 4 --mu 1 --iterations 2 --device cpu --loggers none "
    "--data.val-share 0 --data.seed 0 --quiet"
).split()


def make_cars(root: Path) -> Path:
    """Four classes of four labeled and four test photos, and twenty unlabeled photos, with problems."""
    random = np.random.default_rng(0)

    def photo(path: str) -> None:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (40, 50, 3), np.uint8)).save(root / path, quality=90)

    for name in CLASSES:
        for number in range(4):
            photo(f"labeled/{name}/{number}.jpg")
            photo(f"test/{name}/{number}.jpg")
    for number in range(20):
        photo(f"unlabeled/{number:02d}.jpg")

    def copy(source: str, target: str) -> None:
        shutil.copy(root / source, root / target)

    copy("test/BMW M3/0.jpg", "labeled/BMW M3/copy.jpg")
    for number in range(5):
        copy(f"test/{CLASSES[number % 4]}/{1 + number // 4}.jpg", f"unlabeled/copy {number}.jpg")
    copy("labeled/Acura RL/0.jpg", "labeled/BMW M3/also Acura.jpg")
    copy("labeled/Acura RL/1.jpg", "labeled/Volvo 240/also Acura.jpg")
    (root / "labeled/Volvo 240/torn.jpg").write_bytes(b"torn")
    (root / "labeled/Empty").mkdir()
    # Further problems: a class with only unreadable labeled photos, and a labeled copy of an unlabeled photo.
    for number in range(4):
        (root / f"labeled/Fiat 500/{number}.jpg").write_bytes(b"torn, too")
    copy("unlabeled/00.jpg", "labeled/BMW M3/chosen.jpg")
    return root


NOTE = (
    "1 labeled image and 5 unlabeled images (also in test), 1 unlabeled image (also in labeled), 4 labeled images "
    "(labeled as different classes), 5 labeled images (unreadable), 4 test images (class without usable labeled "
    "images), 2 classes (no usable labeled image)"
)


@pytest.fixture(scope="module")
def cars(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_cars(tmp_path_factory.mktemp("data") / "cars")


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def run(cars: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "soc"
    assert main(["train", str(cars), "--out", str(out), "--cache", str(cache), *TINY]) == 0
    return out


def test_a_run_goes_on_with_the_other_photos(run: Path) -> None:
    result = json.loads((run / "result.json").read_text())
    assert result["num_classes"] == 3
    assert result["images"] == {"labeled": 11, "unlabeled": 19, "val": 0, "test": 12}
    assert len(result["unreadable"]) == 5
    log = [json.loads(line)["text"] for line in (run / "log.jsonl").read_text().splitlines()]
    (note,) = [text for text in log if text.startswith("left out: ")]
    assert note == f"left out: {NOTE}; data.json and the report list them"


def test_everything_left_out_is_listed(run: Path) -> None:
    listed: list[dict[str, Any]] = json.loads((run / "data.json").read_text())["left_out"]
    found = {(item["path"], item["kind"], item["copy_of"]) for item in listed}
    assert found == {
        ("Empty", "class", None),
        ("Fiat 500", "class", None),
        ("labeled/Volvo 240/torn.jpg", "unreadable", None),
        *((f"labeled/Fiat 500/{number}.jpg", "unreadable", None) for number in range(4)),
        *((f"test/Fiat 500/{number}.jpg", "no_class", None) for number in range(4)),
        ("labeled/BMW M3/copy.jpg", "copy", "test/BMW M3/0.jpg"),
        *(
            (f"unlabeled/copy {number}.jpg", "copy", f"test/{CLASSES[number % 4]}/{1 + number // 4}.jpg")
            for number in range(5)
        ),
        ("unlabeled/00.jpg", "copy", "labeled/BMW M3/chosen.jpg"),
        ("labeled/Acura RL/0.jpg", "conflict", "labeled/BMW M3/also Acura.jpg"),
        ("labeled/BMW M3/also Acura.jpg", "conflict", "labeled/Acura RL/0.jpg"),
        ("labeled/Acura RL/1.jpg", "conflict", "labeled/Volvo 240/also Acura.jpg"),
        ("labeled/Volvo 240/also Acura.jpg", "conflict", "labeled/Acura RL/1.jpg"),
    }
    assert len(listed) == len(found)


def test_the_run_can_be_read_again(run: Path) -> None:
    """The catalog without pixels and the data set have the images that the run used."""
    opened = Run(run)
    catalog = opened.catalog
    assert catalog.class_names == opened.class_names == ("Acura RL", "BMW M3", "Volvo 240")
    assert not opened.is_dataset_open
    again = opened.dataset.catalog
    assert list(again.paths) == list(catalog.paths)
    for column in ("label", "split", "truth"):
        assert np.array_equal(getattr(again, column), getattr(catalog, column))
    assert len(opened.dataset.store) == len(again)
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0


def test_report_lists_what_is_left_out(run: Path, tmp_path: Path) -> None:
    write_page([run], tmp_path / "report.html")
    html = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "5 unlabeled images (also in test)" in html
    assert "labeled/BMW M3/copy.jpg: copy of a test image = test/BMW M3/0.jpg" in html
    assert "No problems found" not in html


def test_prepare_shows_everything(cars: Path, cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["prepare", str(cars), "--image-size", "32", "--cache", str(cache), "--data.val-share", "0"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"note: training leaves out {NOTE}\n" in printed
    assert "left out: labeled/BMW M3/copy.jpg: copy of a test image (= test/BMW M3/0.jpg)" in printed
    assert "left out: Empty: labeled/Empty contains no image" in printed
    assert "splits: 11 labeled, 19 unlabeled, 0 val, 12 test" in printed
    assert main([*command, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["left_out"]) == printed.count("left out: ")


def test_prepare_shows_everything_before_an_error(
    tmp_path: Path, cache: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cars = make_cars(tmp_path / "cars")
    for file in (cars / "test" / "Acura RL").iterdir():
        file.write_bytes(b"torn")
    for file in (cars / "test" / "BMW M3").iterdir():
        file.write_bytes(b"torn")
    (cars / "test" / "Volvo 240" / "0.jpg").write_bytes(b"torn")
    command = [str(cars), "--image-size", "32", "--cache", str(cache)]
    assert main(["prepare", *command]) == 2
    printed, error = capsys.readouterr()
    assert printed.count("left out: test/") == 9 + 4
    assert "left out: Empty" in printed
    sentence = "9 of 16 test images of cars cannot be read (test/Acura RL/0.jpg: "
    assert sentence in error
    assert main(["train", *command, "--out", str(tmp_path / "run"), "--device", "cpu", "--quiet"]) == 2
    assert sentence in capsys.readouterr().err


def test_conflicting_labels_can_be_kept(cars: Path, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["train", str(cars), "--out", str(out), "--cache", str(cache), "--keep-conflicting", *TINY]
    assert main(command) == 0
    assert read_run_settings(out / "settings.yaml").data_settings.keep_conflicting
    assert json.loads((out / "result.json").read_text())["images"]["labeled"] == 15
    report = json.loads((out / "data.json").read_text())
    assert not [item for item in report["left_out"] if item["kind"] == "conflict"]
    assert any("have different labels" in warning for warning in report["warnings"])


def test_labels_of_photos_that_are_left_out_are_not_used(
    cars: Path, cache: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = tmp_path / "labels.csv"
    labels.write_text("path,label\nunlabeled/copy 0.jpg,Acura RL\nunlabeled/01.jpg,BMW M3\n")
    out = tmp_path / "run"
    command = ["train", str(cars), "--out", str(out), "--cache", str(cache), "--labels", str(labels), *TINY]
    assert main([part for part in command if part != "--quiet"]) == 0
    assert "for images that are left out: 1, not used" in " ".join(capsys.readouterr().err.split())
    assert json.loads((out / "result.json").read_text())["images"]["labeled"] == 12
    assert (out / "labels.csv").read_text() == "path,label\nunlabeled/01.jpg,BMW M3\n"
