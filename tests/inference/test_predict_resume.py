"""Interrupted, repeated and resumed jobs lose nothing and mix nothing."""

from __future__ import annotations

import copy
import json
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from semifine.errors import UserError
from semifine.inference.calibration import Calibration
from semifine.inference.model import TrainedModel
from semifine.inference.pipeline import find_files
from semifine.inference.predict import predict_to_table
from semifine.inference.prediction import PredictOptions
from semifine.inference.tables import Journal, Record
from semifine.inference.taxonomy import read_taxonomy
from tests.inference.prediction_jobs import predict, read_csv

OPTIONS = PredictOptions()


def test_a_resumed_job_writes_the_same_table(
    soc_model: TrainedModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = list(find_files([str(photos)]))
    predict_to_table(tmp_path / "whole.csv", soc_model, files, OPTIONS, batch_size=8)
    whole = {path.name for path in tmp_path.iterdir()}
    out = tmp_path / "p.csv"

    class PowerCut(Exception):
        pass

    def cut(done: int) -> None:
        if done >= 16:
            raise PowerCut

    with pytest.raises(PowerCut):
        predict_to_table(out, soc_model, files, OPTIONS, batch_size=8, progress=cut)
    assert sorted(path.name for path in tmp_path.iterdir() if path.name not in whole) == ["p.csv.unfinished"]
    (tmp_path / ".p.csv.partial").write_text("of a program that was killed\n")
    with (tmp_path / "p.csv.unfinished").open("a") as journal:
        journal.write('{"path": "torn')
    with pytest.raises(UserError, match="--resume"):
        predict_to_table(out, soc_model, files, OPTIONS)
    with pytest.raises(UserError, match="other options"):
        predict_to_table(out, soc_model, files, PredictOptions(top=2), resume=True)
    with pytest.raises(UserError, match=re.escape(f"other files: it has {files[0]} in the place of {files[3]};")):
        predict_to_table(out, soc_model, files[3:], OPTIONS, resume=True)
    with pytest.raises(UserError, match=re.escape(f"it has {files[2]} in the place of no file;")):
        predict_to_table(out, soc_model, files[:2], OPTIONS, resume=True)
    decoded: list[str] = []
    original = soc_model.preprocessor.decode_file
    monkeypatch.setattr(soc_model.preprocessor, "decode_file", lambda file: (decoded.append(file), original(file))[1])
    predict_to_table(out, soc_model, files, OPTIONS, batch_size=8, resume=True)
    assert sorted(decoded) == sorted(files[16:]), "finished images must not be predicted again"
    assert out.read_bytes() == (tmp_path / "whole.csv").read_bytes()
    assert not (tmp_path / "p.csv.unfinished").exists()
    assert not (tmp_path / ".p.csv.partial").exists()
    with pytest.raises(UserError, match="exists already"):
        predict_to_table(out, soc_model, files, OPTIONS)


def test_an_empty_journal_is_started_again_and_another_file_is_kept(
    soc_model: TrainedModel, photos: Path, tmp_path: Path
) -> None:
    files = list(find_files([str(photos)]))[:4]
    (tmp_path / "p.csv.unfinished").touch()
    assert predict_to_table(tmp_path / "p.csv", soc_model, files, OPTIONS).predicted == 2
    notes = tmp_path / "notes.csv.unfinished"
    notes.write_text("not\nours")
    with pytest.raises(UserError, match="remove the file"):
        predict_to_table(tmp_path / "notes.csv", soc_model, files, OPTIONS, resume=True)
    assert notes.read_text() == "not\nours"


def test_a_resumed_job_replaces_its_own_list_of_unreadable_files(
    soc_model: TrainedModel, photos: Path, tmp_path: Path
) -> None:
    out, files = tmp_path / "p.csv", list(find_files([str(photos)]))

    def stop(records: Iterator[Record]) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_table(out, soc_model, files, OPTIONS, write_also=stop)
    assert predict_to_table(out, soc_model, files, OPTIONS, resume=True).unreadable == 2
    assert len(read_csv(tmp_path / "p.csv.unreadable.csv")) == 2


def test_a_job_without_results_leaves_no_journal(
    soc_model: TrainedModel, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError

    monkeypatch.setattr(soc_model, "logits", fail)
    with pytest.raises(MemoryError):
        predict_to_table(tmp_path / "p.csv", soc_model, find_files([str(photos)]), OPTIONS)
    assert not list(tmp_path.iterdir())


def test_termination_leaves_only_the_journal(
    soc_folder: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = Journal.append

    def terminated(self: Journal, records: list[Record]) -> None:
        append(self, records)
        if len(records) > 1:  # predictions, not the header
            os.kill(os.getpid(), signal.SIGTERM)

    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(Journal, "append", terminated)
            assert predict(soc_folder, photos, "--batch-size", "8", "--out", tmp_path / "p.csv") == 143
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)
    assert [path.name for path in tmp_path.iterdir()] == ["p.csv.unfinished"]
    assert predict(soc_folder, photos, "--batch-size", "8", "--out", tmp_path / "p.csv", "--resume") == 0


def test_resuming_a_finished_table_says_so(
    onnx_file: Path, photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, package = tmp_path / "p.csv", tmp_path / "package"
    assert predict(onnx_file, photos, "--out", out) == 0
    finished = out.read_bytes()
    capsys.readouterr()
    assert predict("another.onnx", "other photos", "--out", out, "--resume", "--json") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"out": str(out), "finished": True}
    assert printed.err == f"note: {out} is finished already; model, files and options were not compared\n"
    assert predict(onnx_file, photos, "--out", out, "--resume", "--camtrap-dp", package) == 2
    error = capsys.readouterr().err
    assert error == f"semifine: {out} is finished already: choose another --out to get the package.\n"
    assert predict(onnx_file, photos, "--out", tmp_path / "q.csv", "--camtrap-dp", package) == 0
    assert predict(onnx_file, photos, "--out", out, "--resume", "--camtrap-dp", package) == 0
    assert out.read_bytes() == finished


def test_two_jobs_cannot_write_one_table(soc_model: TrainedModel, photos: Path, tmp_path: Path) -> None:
    out, files = tmp_path / "p.csv", list(find_files([str(photos)]))

    def start_another(done: int) -> None:  # noqa: ARG001
        with pytest.raises(UserError, match="Another job is writing"):
            predict_to_table(out, soc_model, files, OPTIONS, resume=True)

    summary = predict_to_table(out, soc_model, files, OPTIONS, batch_size=8, progress=start_another)
    assert summary.predicted + summary.unreadable == len(files)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.csv", "p.csv.unreadable.csv"]


def test_another_taxonomy_or_calibration_cannot_resume_a_job(
    soc_model: TrainedModel, photos: Path, tmp_path: Path
) -> None:
    out, files = tmp_path / "p.csv", list(find_files([str(photos)]))

    def options_with(genus: str) -> PredictOptions:
        table = tmp_path / "taxa.csv"
        table.write_text("species,genus\n" + "".join(f"{name},{genus}\n" for name in soc_model.class_names))
        return PredictOptions(taxonomy=read_taxonomy(table, soc_model.class_names))

    def stop(done: int) -> None:  # noqa: ARG001
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        predict_to_table(out, soc_model, files, options_with("Parus"), batch_size=8, progress=stop)
    with pytest.raises(UserError, match="other options"):
        predict_to_table(out, soc_model, files, options_with("Poecile"), batch_size=8, resume=True)
    other = copy.copy(soc_model)
    other.metadata = replace(soc_model.metadata, calibration=Calibration())
    with pytest.raises(UserError, match="other options"):
        predict_to_table(out, other, files, options_with("Parus"), batch_size=8, resume=True)
    predict_to_table(out, soc_model, files, options_with("Parus"), batch_size=8, resume=True)
