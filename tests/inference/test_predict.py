"""Prediction tables are complete and in order, and never replace another file."""

from __future__ import annotations

import errno
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from PIL import Image

from semifine.cli.main import main
from semifine.data.catalog import Split
from semifine.data.extra_labels import read_labels
from semifine.errors import UserError
from semifine.inference.model import TrainedModel
from semifine.inference.pipeline import find_files
from semifine.inference.predict import predict_to_table
from semifine.inference.prediction import PredictOptions
from semifine.inference.tables import Record, create_table, printable
from tests.inference.prediction_jobs import predict, read_csv

OPTIONS = PredictOptions()


def test_all_formats_agree_and_keep_the_order_of_files(soc_model: TrainedModel, photos: Path, tmp_path: Path) -> None:
    files = [*reversed(list(find_files([str(photos)]))), "not there.jpg"]
    for suffix in ("csv", "jsonl", "parquet"):
        summary = predict_to_table(tmp_path / f"p.{suffix}", soc_model, files, OPTIONS, batch_size=7, workers=2)
        assert (summary.predicted, summary.unreadable) == (24, 3)
    from_json = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    from_csv = read_csv(tmp_path / "p.csv")
    assert pq.read_table(tmp_path / "p.parquet").to_pylist() == from_json
    readable = [file for file in files if file.endswith(".PNG")]
    assert [record["path"] for record in from_json] == [row["path"] for row in from_csv] == readable
    assert [row["candidates"].split("|") for row in from_csv] == [record["candidates"] for record in from_json]
    unreadable = read_csv(tmp_path / "p.csv.unreadable.csv")
    assert [row["path"] for row in unreadable] == [file for file in files if not file.endswith(".PNG")]
    assert all(row["reason"] for row in unreadable)
    assert unreadable[-1]["reason"] == "not there.jpg cannot be read (No such file or directory)"


def test_predictions_are_those_of_evaluation(soc_model: TrainedModel, photos: Path) -> None:
    catalog = soc_model.run.dataset.catalog
    rows = catalog.rows(Split.TEST)
    (output,) = soc_model.outputs(rows)
    files = sorted(str(path) for path in (photos / "wet day").glob("*.PNG"))
    predictions = soc_model.predict(files, top=6)
    assert [p.name for p in predictions] == [catalog.class_names[c] for c in output.logits.argmax(1)]
    probs = soc_model.calibration.probabilities(output.logits.numpy())
    for prediction, wanted in zip(predictions, probs, strict=True):
        np.testing.assert_allclose(prediction.probabilities, np.sort(wanted)[::-1], atol=2e-3)
        assert prediction.name in prediction.candidates
        assert prediction.conformal_set is not None
        assert prediction.names[: len(prediction.conformal_set)] == prediction.conformal_set


def test_additional_formats_are_written_after_the_table(soc_model: TrainedModel, photos: Path, tmp_path: Path) -> None:
    files, rows = list(find_files([str(photos)])), []

    def write_also(records: Iterator[Record]) -> None:
        rows.append((len(list(records)), pq.read_table(tmp_path / ".p.parquet.partial").num_rows))

    summary = predict_to_table(tmp_path / "p.parquet", soc_model, files, OPTIONS, batch_size=7, write_also=write_also)
    assert rows == [(summary.predicted, summary.predicted)]
    predict_to_table(tmp_path / "empty.parquet", soc_model, [], OPTIONS)
    assert pq.ParquetFile(tmp_path / "empty.parquet").num_row_groups == 0


def test_names_from_standard_input_may_hold_line_breaks(
    soc_folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = tmp_path / "two\nlines.png"
    odd.write_bytes(next((photos / "wet day").glob("*00.PNG")).read_bytes())
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(str(odd).encode() + b"\0none.jpg\0")))
    out = tmp_path / "p.jsonl"
    assert main(["predict", str(soc_folder), "-", "--null", "--out", str(out), "--json", "--device", "cpu"]) == 0
    assert json.loads(out.read_text(encoding="utf-8"))["path"] == str(odd)
    printed = capsys.readouterr()
    counts = json.loads(printed.out)
    assert (counts["predicted"], counts["unreadable"]) == (1, 1)
    assert f"semifine: 1 image could not be read; {out}.unreadable.csv lists it with the reason." in printed.err
    assert "calibrated on 36 held-out images" in printed.err


def test_lines_are_printed_without_out(
    soc_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taxa = tmp_path / "taxa.csv"
    names = json.loads((soc_folder / "classes.json").read_text())["names"]
    taxa.write_text("class,all\n" + "".join(f"{name},Animalia\n" for name in names))
    arguments = ["predict", str(soc_folder), str(photos), "--top", "2", "--taxonomy", str(taxa), "--device", "cpu"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 24
    assert all(line.count("%") == 2 and "taxon:" in line for line in printed.out.splitlines())
    assert "broken.jpg" in printed.err


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--out", "p.xlsx"], "p.xlsx"),
        (["--out", "no/p.csv"], "does not exist"),
        (["--coverage", "90", "--out", "p.csv"], "coverage"),
        (["--top", "0"], "top"),
        (["--resume"], "--out"),
        (["--taxon-threshold", "0.5"], "needs --taxonomy"),
    ],
)
def test_errors_are_one_sentence(
    soc_folder: Path,
    photos: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["predict", str(soc_folder), str(photos), *options, "--device", "cpu"]) == 2
    assert named in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_names_are_no_formulas_for_a_spreadsheet(tmp_path: Path) -> None:
    """Cells with names can be read by ``--labels``; numbers are not quoted."""
    file, schema = tmp_path / "t.csv", {"path": "text", "label": "text", "names": "texts", "score": "number"}
    with create_table(file, ".csv", schema) as add:
        add([{"path": "=1+1.jpg", "label": "@class", "names": ["-a|b", "=c"], "score": -0.5}])
    assert file.read_text().splitlines()[1] == "'=1+1.jpg,'@class,'-a\\|b|=c,-0.5"
    assert read_labels(file).pairs == [("=1+1.jpg", "@class")]


def test_file_names_that_are_not_utf8_are_escaped() -> None:
    assert printable(os.fsdecode(b"caf\xe9/\xc3\xa9.jpg")) == "caf\\xe9/é.jpg"


def test_no_images_are_an_error(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "notes.txt").write_text("no image")
    assert predict(soc_folder, tmp_path / "empty", "--out", tmp_path / "p.csv") == 2
    assert capsys.readouterr().err == f"semifine: No images found in {tmp_path / 'empty'}.\n"
    assert not (tmp_path / "p.csv").exists()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    assert predict(soc_folder, "-") == 2
    assert "No images found in standard input." in capsys.readouterr().err


def test_unreadable_files_only_leave_a_list(
    soc_folder: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken, empty = photos / "broken.jpg", photos / "wet day" / "empty.png"
    assert predict(soc_folder, broken) == 2
    assert f"semifine: {broken} cannot be read as an image" in capsys.readouterr().err
    out = tmp_path / "p.csv"
    assert predict(soc_folder, broken, empty, "--out", out) == 2
    error = capsys.readouterr().err
    assert error.startswith(
        f"semifine: 0 of 2 images could be read, the first one: {broken} cannot be read as an image"
    )
    assert f"{out}.unreadable.csv lists them" in error
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv.unreadable.csv"]
    assert [row["path"] for row in read_csv(tmp_path / "p.csv.unreadable.csv")] == [str(broken), str(empty)]
    assert predict(soc_folder, broken, next((photos / "wet day").glob("*.PNG"))) == 0


def test_a_missing_path_is_an_error_before_anything_is_written(
    soc_folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    mistyped, out = photos / "wet dya", tmp_path / "p.csv"
    for path in (mistyped, photos / "broken.jpg" / "below a file", ""):
        assert predict(soc_folder, photos, path, "--out", out) == 2
        assert f"semifine: {path or 'An empty PATH'} does not exist; " in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
    (photo,) = (photos / "wet day").glob("*00.PNG")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"{mistyped}\n{photo}\n".encode())))
    assert predict(soc_folder, "-", "--out", out) == 0, "a list from elsewhere may be older than the files"
    assert read_csv(tmp_path / "p.csv.unreadable.csv")[0]["path"] == str(mistyped)


def test_a_list_of_unreadable_files_is_never_overwritten(soc_model: TrainedModel, photos: Path, tmp_path: Path) -> None:
    listed, files = tmp_path / "p.csv.unreadable.csv", list(find_files([str(photos)]))
    listed.write_text("mine")
    for resume in (False, True):  # there is nothing to resume
        with pytest.raises(UserError, match=r"p\.csv\.unreadable\.csv exists already: move it away"):
            predict_to_table(tmp_path / "p.csv", soc_model, files, OPTIONS, resume=resume)
    assert listed.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [listed]


def test_an_exported_file_has_no_checkpoints(onnx_file: Path, photos: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for checkpoint in ("last", "best_val"):
        assert predict(onnx_file, photos, "--checkpoint", checkpoint) == 2
        assert f"{onnx_file} contains one set of weights: omit --checkpoint" in capsys.readouterr().err


def test_broken_links_are_listed(tmp_path: Path) -> None:
    (tmp_path / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    (tmp_path / "circle.jpg").symlink_to(tmp_path / "circle.jpg")
    (tmp_path / "notes.txt").symlink_to(tmp_path / "nowhere.txt")
    (tmp_path / "folder.jpg").mkdir()
    os.mkfifo(tmp_path / "pipe.jpg")  # reading it would wait for ever
    assert list(find_files([str(tmp_path)])) == [str(tmp_path / "circle.jpg"), str(tmp_path / "gone.jpg")]


def test_names_that_end_with_a_nul_need_the_option(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a.jpg\0b.jpg\0")))
    assert main(["predict", str(soc_folder), "-", "--out", str(tmp_path / "p.csv"), "--device", "cpu"]) == 2
    assert "add --null" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_without_permission_is_listed_as_unreadable(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = os.scandir

    def closed(folder: Path) -> object:
        if Path(folder).name == "wet day":
            raise PermissionError(errno.EACCES, "Permission denied", str(folder))
        return original(folder)

    monkeypatch.setattr(os, "scandir", closed)
    assert list(find_files([str(photos)])) == [str(photos / "broken.jpg"), str(photos / "wet day")]


def test_exif_orientation_applies_to_pillow_images(soc_model: TrainedModel, photos: Path, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    lying = tmp_path / "lying.jpg"
    Image.open(photos / "wet day" / "mésange 00.PNG").convert("RGB").save(lying, exif=exif, quality=95)
    by_file, by_image = soc_model.predict([lying, Image.open(lying)])
    assert by_image.probabilities == pytest.approx(by_file.probabilities, abs=1e-6)
