"""One folder a class, a share of labels: from photos to predictions through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from semifine.cli.main import main
from semifine.data.folder_writer import write_folder
from semifine.data.sources import load_catalog, synthetic


def test_from_folders_of_classes_to_predictions(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = synthetic.Settings(
        genera=2, species=2, labelled_per_class=40, unlabelled_per_class=0, val_per_class=0, test_per_class=3
    )
    write_folder(load_catalog("synthetic", settings), tmp_path / "written")
    photos = tmp_path / "written" / "labeled"
    (tmp_path / "written" / "test").rename(photos / "test")
    out = tmp_path / "run"
    options = ["--labels-per-class", "25", "--backbone", "test_resnet", "--iterations", "6", "--device", "cpu"]
    assert main(["train", str(photos), *options, "--cache", str(tmp_path / "cache"), "--out", str(out)]) == 0
    said = capsys.readouterr().err
    assert "4 classes, 80 labelled, 60 unlabelled, 20 val, 12 test" in said
    assert "chosen from the data: image_size 32 (photos are about 48 pixels across), batch_size 32" in said
    assert "memory: about" in said
    assert "calibrated on 20 validation images" in said
    written = yaml.safe_load((out / "settings.yaml").read_text())
    assert (written["data"]["labels_per_class"], written["image_size"], written["iterations"]) == (25, 32, 6)
    assert main(["predict", str(out), str(photos / "test"), "--out", str(tmp_path / "p.jsonl"), "--device", "cpu"]) == 0
    records = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert len(records) == 12
    assert all(record["conformal_set"] and record["is_ood"] is not None for record in records)
