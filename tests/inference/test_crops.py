"""Predictions of the boxes of a detector: one row per box, and one for each photo without a box."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.cli.main import main
from semifine.data.boxes import Box, Crop, crop_around
from semifine.data.catalog import Split
from semifine.errors import UserError
from semifine.inference.model import TrainedModel
from semifine.inference.predict import predict_to_table
from semifine.inference.prediction import PredictOptions
from tests.inference.prediction_jobs import predict, read_csv

BOX_COLUMNS = ("box_x", "box_y", "box_width", "box_height", "box_confidence")
FIRST, SECOND = [0.5, 0.5, 0.3, 0.2], [0.1, 0.1, 0.2, 0.3]


@pytest.fixture
def card(soc_model: TrainedModel, tmp_path: Path) -> Path:
    """Photos with two test images inside each, a file that is no image, and boxes in the format of MegaDetector."""
    catalog = soc_model.run.dataset.catalog
    rows = catalog.rows(Split.TEST)
    (tmp_path / "card" / "ridge").mkdir(parents=True)
    for number, name in enumerate(("a.png", "ridge/b.png", "ridge/c.png")):
        photo = np.full((400, 400, 3), 90, np.uint8)
        for box, row in zip((FIRST, SECOND), rows[2 * number :].tolist(), strict=False):
            left, upper, right, lower = crop_around(Box(*box), (400, 400))
            animal = Image.fromarray(catalog.reader.read(row)).resize((right - left, lower - upper))
            photo[upper:lower, left:right] = np.asarray(animal)
        Image.fromarray(photo).save(tmp_path / "card" / name)
    (tmp_path / "card" / "broken.jpg").write_bytes(b"no image")
    both = [{"category": "1", "conf": c, "bbox": box} for c, box in ((0.4, SECOND), (0.9, FIRST))]
    content = {
        "detection_categories": {"1": "animal", "2": "person", "3": "vehicle"},
        "images": [
            {"file": "a.png", "detections": both},
            {"file": "broken.jpg", "detections": both},
            {"file": "ridge\\b.png", "detections": [{"category": "2", "conf": 0.9, "bbox": FIRST}]},
        ],
    }
    (tmp_path / "boxes.json").write_text(json.dumps(content))
    return tmp_path / "card"


def test_every_box_is_a_row(
    soc_folder: Path, soc_model: TrainedModel, card: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, boxes = card.parent / "p.csv", card.parent / "boxes.json"
    options = ["--device", "cpu", "--out", str(out), "--crops", str(boxes)]
    assert main(["predict", str(soc_folder), f"{card}/", *options]) == 0
    printed = capsys.readouterr()
    assert "crops: 2 of 4 photos have a box; the others are used whole" in printed.err
    assert "4 crops and photos predicted" in printed.out
    rows = read_csv(out)
    assert [Path(row["path"]).name for row in rows] == ["a.png", "a.png", "b.png", "c.png"]
    found = [tuple(row[name] for name in BOX_COLUMNS) for row in rows]
    assert found == [("0.5", "0.5", "0.3", "0.2", "0.9"), ("0.1", "0.1", "0.2", "0.3", "0.4"), ("",) * 5, ("",) * 5]
    assert len(read_csv(card.parent / "p.csv.unreadable.csv")) == 1, "a file is listed once, not once per box"

    photo = Image.open(card / "a.png")
    crops = [photo.crop(crop_around(Box(*box), photo.size)) for box in (FIRST, SECOND)]
    expected = soc_model.predict([*crops, photo])
    probabilities = [prediction.probability for prediction in expected]
    assert [float(row["probability"]) for row in rows[:2]] == pytest.approx(probabilities[:2], abs=2e-6)
    assert float(rows[0]["probability"]) != pytest.approx(probabilities[2], abs=2e-5), "not the whole photo"


def test_the_confidence_and_the_format_of_the_table_can_be_chosen(soc_folder: Path, card: Path) -> None:
    out = card.parent / "p.jsonl"
    boxes = ["--crops", card.parent / "boxes.json", "--crop-confidence", "0.5"]
    assert predict(soc_folder, card / "ridge", card / "a.png", *boxes, "--out", out) == 0
    records = [json.loads(line) for line in out.read_text().splitlines()]
    assert [record["box_confidence"] for record in records] == [None, None, 0.9]


def test_lines_name_the_box(soc_folder: Path, card: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert predict(soc_folder, card, "--crops", card.parent / "boxes.json", "--top", "1") == 0
    first, second, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("[box: 0.500, 0.500, 0.300, 0.200]")
    assert second.endswith("[box: 0.100, 0.100, 0.200, 0.300]")
    assert not any("[box" in line for line in others)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--crop-confidence", "0.5"], "needs --crops"),
        (["--crops", "boxes.json", "--crop-confidence", "2"], "between 0 and 1"),
        (["--crops", "none.json"], "none.json, the file of the boxes, does not exist"),
    ],
)
def test_wrong_options_are_one_sentence(
    soc_folder: Path,
    card: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(card.parent)
    assert predict(soc_folder, "card", *options) == 2
    assert message in capsys.readouterr().err


def test_resumed_tables_need_the_same_boxes(soc_model: TrainedModel, card: Path) -> None:
    out, options = card.parent / "p.csv", PredictOptions()
    photos = [
        Crop(str(card / "a.png"), Box(*FIRST)),
        Crop(str(card / "a.png"), Box(*SECOND)),
        str(card / "ridge/b.png"),
    ]
    predict_to_table(card.parent / "whole.csv", soc_model, photos, options, crops="1", batch_size=1)

    def stop(done: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_table(out, soc_model, photos, options, crops="1", batch_size=1, progress=stop)
    with pytest.raises(UserError, match="started with another model or other options"):
        predict_to_table(out, soc_model, photos, options, crops="2", batch_size=1, resume=True)
    predict_to_table(out, soc_model, photos, options, crops="1", batch_size=1, resume=True)
    assert out.read_text() == (card.parent / "whole.csv").read_text()


def test_camera_trap_packages_contain_the_boxes(soc_folder: Path, card: Path) -> None:
    package = card.parent / "package"
    boxes = ["--crops", card.parent / "boxes.json", "--camtrap-dp", package]
    assert predict(soc_folder, card, *boxes, "--out", card.parent / "p.csv") == 0
    media, observations = (
        list(csv.DictReader((package / f"{name}.csv").open(encoding="utf-8"))) for name in ("media", "observations")
    )
    assert [row["fileName"] for row in media] == ["a.png", "b.png", "c.png"]
    assert [row["mediaID"] for row in observations] == ["m1", "m1", "m2", "m3"]
    assert [row["observationID"] for row in observations] == ["o1", "o2", "o3", "o4"]
    assert [row["bboxWidth"] for row in observations] == ["0.3", "0.2", "", ""]
    assert (observations[1]["bboxX"], observations[1]["bboxY"], observations[1]["bboxHeight"]) == ("0.1", "0.1", "0.3")
