"""From a folder per class to predictions through the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image, ImageOps

from semifine.cli.main import main
from semifine.data.sources import load_catalog, synthetic
from semifine.data.sources.folder import write_folder

OPTIONS = ["--backbone", "test_resnet", "--iterations", "6", "--device", "cpu"]


def test_from_folders_of_classes_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = synthetic.Settings(
        genera=2, species=2, labeled_per_class=40, unlabeled_per_class=0, val_per_class=0, test_per_class=3
    )
    write_folder(load_catalog("synthetic", settings), tmp_path / "written")
    photos = tmp_path / "written" / "labeled"
    (tmp_path / "written" / "test").rename(photos / "test")
    out = tmp_path / "run"
    options = ["--labels-per-class", "25", *OPTIONS]
    assert main(["train", str(photos), *options, "--cache", str(tmp_path / "cache"), "--out", str(out)]) == 0
    log = capsys.readouterr().err
    assert "4 classes, 80 labeled, 60 unlabeled, 20 val, 12 test" in log
    assert "image size: 32 pixels, because the photos are about 48 pixels across" in log
    assert "training: 6 steps of 32 labeled photos; 80 labeled and 60 unlabeled in all" in log
    assert "memory: about" in log
    assert "calibrated on 20 held-out images" in log
    written = yaml.safe_load((out / "settings.yaml").read_text())
    assert (written["data"]["labels_per_class"], written["image_size"], written["iterations"]) == (25, 32, 6)
    assert main(["predict", str(out), str(photos / "test"), "--out", str(tmp_path / "p.jsonl"), "--device", "cpu"]) == 0
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(records) == 12
    assert all(record["conformal_set"] and record["is_ood"] is not None for record in records)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Photos in a folder, and a run on them without its calibration."""
    folder = tmp_path_factory.mktemp("own")
    settings = synthetic.Settings(
        genera=2, species=2, labeled_per_class=20, unlabeled_per_class=2, val_per_class=0, test_per_class=3
    )
    write_folder(load_catalog("synthetic", settings), folder / "photos")
    assert main(["train", str(folder / "photos"), *OPTIONS, "--out", str(folder / "run")]) == 0
    (folder / "run" / "calibration.json").unlink(missing_ok=True)
    return folder / "photos", folder / "run"


@pytest.mark.parametrize("change", ["renamed", "added"])
def test_changed_classes_are_an_error(
    trained: tuple[Path, Path], tmp_path: Path, change: str, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, run = (Path(shutil.copytree(folder, tmp_path / folder.name, symlinks=True)) for folder in trained)
    settings = run / "settings.yaml"
    settings.write_text(settings.read_text().replace(str(trained[0]), str(photos)))
    first, *_ = sorted(path.name for path in (photos / "labeled").iterdir())
    for split in ("labeled", "test"):
        if change == "renamed":
            (photos / split / first).rename(photos / split / "Zebra")
        else:
            (photos / split / "Aardvark").mkdir()
            for file in (photos / split / first).iterdir():
                ImageOps.mirror(Image.open(file)).save(photos / split / "Aardvark" / file.name)
    changes = f"missing: {first}, new: Zebra" if change == "renamed" else "new: Aardvark"
    message = f"has changed its classes ({changes})"
    before = (run / "classes.json").read_bytes()
    capsys.readouterr()
    assert main(["evaluate", str(run), "--device", "cpu"]) == 2
    assert message in capsys.readouterr().err
    assert main(["predict", str(run), str(photos / "test"), "--out", str(tmp_path / "p.csv"), "--device", "cpu"]) == 0
    assert message in capsys.readouterr().err, "predicts without calibration and prints the reason"
    assert not (run / "calibration.json").exists()
    (run / "result.json").unlink()
    assert main(["train", "--out", str(run), "--resume"]) == 2
    assert message in capsys.readouterr().err
    assert (run / "classes.json").read_bytes() == before


@pytest.mark.parametrize("out", ["run", "runs/one"])
def test_the_run_folder_may_be_inside_the_data_set(
    trained: tuple[Path, Path], tmp_path: Path, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    photos = Path(shutil.copytree(trained[0] / "labeled", tmp_path / "photos"))
    monkeypatch.chdir(photos)
    options = [*OPTIONS, "--cache", str(tmp_path / "cache"), "--out", out]
    assert main(["train", ".", *options]) == 2, "without unlabeled images there is nothing for soc"
    assert main(["train", ".", *options, "--method", "supervised"]) == 0, "and what that left is no class either"
    assert main(["prepare", ".", "--cache", str(tmp_path / "cache")]) == 0
    assert json.loads((photos / out / "result.json").read_text())["num_classes"] == 4


def test_labeled_photos_may_be_copies_of_unlabeled_ones(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos = Path(shutil.copytree(trained[0], tmp_path / "photos"))
    for file in (photos / "labeled").rglob("*.png"):
        shutil.copy(file, photos / "unlabeled" / f"copy {file.name}")
    assert main(["prepare", str(photos), "--cache", str(tmp_path / "cache")]) == 0
    printed = capsys.readouterr().out
    assert "16 unlabeled images (also in val)" in printed


def test_there_must_be_a_run_to_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "--out", str(tmp_path / "absent"), "--resume"]) == 2
    assert f"There is no run to resume in {tmp_path / 'absent'}" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_a_run_can_be_used_after_its_photos_were_moved(
    trained: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    photos, run = (Path(shutil.copytree(folder, tmp_path / folder.name, symlinks=True)) for folder in trained)
    settings = run / "settings.yaml"
    settings.write_text(settings.read_text().replace(str(trained[0]), str(tmp_path / "where it was")))
    assert main(["evaluate", str(run), "--device", "cpu"]) == 2
    error = capsys.readouterr().err
    assert str(settings) in error
    assert "if it was moved, give the new path" in error
    settings.write_text(settings.read_text().replace(str(tmp_path / "where it was"), str(photos)))
    assert main(["evaluate", str(run), "--device", "cpu"]) == 0
    assert main(["train", "--out", str(run), "--resume"]) == 0
