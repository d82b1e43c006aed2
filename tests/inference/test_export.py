"""Exported files agree with the run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from PIL import Image

from semifine.cli.main import main
from semifine.errors import UserError
from semifine.inference import export as exporting
from semifine.inference.export import export
from semifine.inference.model import TrainedModel
from semifine.inference.onnx_model import METADATA, OnnxModel
from semifine.inference.prediction import ModelMetadata

ROOT = Path(__file__).parents[2]

WITHOUT_TORCH = """
import sys
sys.modules["torch"] = None  # importing it would fail
from semifine.cli.main import main
code = main(["predict", sys.argv[1], sys.argv[2], "--out", sys.argv[3], "--quiet"])
sys.exit(code)
"""


def test_an_onnx_file_without_torch_agrees_with_the_run(
    soc_model: TrainedModel, onnx_file: Path, photos: Path, tmp_path: Path
) -> None:
    out = tmp_path / "p.jsonl"
    command = [sys.executable, "-c", WITHOUT_TORCH, str(onnx_file), str(photos / "wet day"), str(out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    files = [record["path"] for record in records]
    for record, own in zip(records, soc_model.predict(files), strict=True):
        assert record["names"] == own.names
        assert record["candidates"] == own.candidates
        assert record["conformal_set"] == own.conformal_set
        assert record["is_ood"] == own.is_ood
        np.testing.assert_allclose(record["probabilities"], own.probabilities, atol=1e-4)


def test_the_onnx_file_contains_all_metadata(soc_model: TrainedModel, onnx_file: Path) -> None:
    found, wanted = OnnxModel(onnx_file).metadata, soc_model.metadata
    assert found.as_dict() == wanted.as_dict()
    assert found.calibration.is_fitted
    assert found.clusters is not None


@pytest.mark.parametrize("format", ["torch", "safetensors"])
def test_other_formats_agree_with_the_run(soc_model: TrainedModel, tmp_path: Path, format: exporting.Format) -> None:
    out = tmp_path / f"model{exporting.SUFFIX[format]}"
    assert export(soc_model, out, format) < 1e-5
    (tmp_path / "plain").touch()
    assert out.stat().st_mode == (tmp_path / "plain").stat().st_mode, "the umask decides who may read it"
    if format == "torch":
        files = {"semifine": ""}
        program = torch.export.load(out, extra_files=files)
        assert ModelMetadata.from_dict(json.loads(files["semifine"])).class_names == soc_model.metadata.class_names
        images = torch.zeros(3, 32, 32, 3, dtype=torch.uint8)
        probabilities, logits, _ = program.module()(images)
        softened = torch.softmax(logits / soc_model.calibration.temperature, dim=1)
        torch.testing.assert_close(probabilities, softened)
    else:
        assert exporting.read_safetensors_metadata(out).as_dict() == soc_model.metadata.as_dict()
    with pytest.raises(UserError, match="exists already"):
        export(soc_model, out, format)


def test_the_suffix_selects_the_format(
    soc_folder: Path,
    soc_model: TrainedModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for options, message in (
        (["--format", "torch", "--out", "foo.onnx"], "--format torch writes .pt2 files, not 'foo.onnx'"),
        (["--format", "onnx", "--out", "foo"], "--format onnx writes .onnx files, not 'foo'"),
        (["--out", "foo.txt"], "--out must end in .onnx, .pt2 or .safetensors, not 'foo.txt'"),
    ):
        assert main(["export", str(soc_folder), *options]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(UserError, match=r"writes \.pt2 files"):
        export(soc_model, tmp_path / "foo.onnx", "torch")
    assert not list(tmp_path.iterdir())
    assert main(["export", str(soc_folder), "--out", "model.SafeTensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["format"] == "safetensors"
    assert exporting.read_safetensors_metadata(tmp_path / "model.SafeTensors").class_names


def _times(output: tuple[np.ndarray, np.ndarray], factor: float) -> tuple[np.ndarray, np.ndarray]:
    """Changes the logits and keeps the calibrated probabilities."""
    return output[0], factor * output[1]


def test_a_deviating_export_is_removed(
    soc_model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = exporting._read_safetensors
    monkeypatch.setattr(exporting, "_read_safetensors", lambda path: lambda images: _times(honest(path)(images), 1.2))
    with pytest.raises(UserError, match="differs from the run"):
        export(soc_model, tmp_path / "model.safetensors", "safetensors")
    assert not list(tmp_path.iterdir())


def test_other_files_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.onnx").write_bytes(b"nothing")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.jpg")
    for name in ("model.onnx", "none.onnx"):
        assert main(["predict", str(tmp_path / name), str(tmp_path / "a.jpg")]) == 2
        assert name in capsys.readouterr().err


@pytest.mark.parametrize(
    ("described", "part"),
    [
        ("{}", "is damaged"),
        ("[1]", "is damaged"),
        ("no JSON", "is damaged"),
        ('{"semifine_model": 99}', "later version"),
    ],
)
def test_invalid_metadata_is_an_error(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], described: str, part: str
) -> None:
    model = onnx.load(onnx_file)
    (entry,) = (entry for entry in model.metadata_props if entry.key == METADATA)
    entry.value = described
    onnx.save(model, tmp_path / "model.onnx")
    Image.new("RGB", (20, 20)).save(tmp_path / "a.jpg")
    assert main(["predict", str(tmp_path / "model.onnx"), str(tmp_path / "a.jpg")]) == 2
    assert part in capsys.readouterr().err


@pytest.mark.parametrize(
    "content", ["5", "[1]", "{", '{"%s": 5}', '{"%s": {"temperature": 1}}', '{"%s": {"later": 1}}']
)
def test_an_invalid_calibration_is_an_error(
    soc_folder: Path, soc_model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    copied = Path(shutil.copytree(soc_folder, tmp_path / "run", symlinks=True))
    (copied / "calibration.json").write_text(content % soc_model.identity if "%s" in content else content)
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    assert main(["predict", str(copied), str(tmp_path / "a.png"), "--device", "cpu"]) == 2
    assert "calibration.json is damaged, or of a later version: remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("key", "value"),
    [("image_size", "x"), ("image_size", 0), ("stored_side", 10**9), ("mean", [0.5]), ("std", 1), ("class_names", 3)],
)
def test_damaged_metadata_are_refused(key: str, value: object) -> None:
    sizes = {"image_size": 32, "stored_side": 37, "mean": (0.5, 0.5, 0.5), "std": (1.0, 1.0, 1.0)}
    values = ModelMetadata(class_names=("a", "b"), backbone="test_resnet", **sizes).as_dict()
    assert ModelMetadata.from_dict(values).as_dict() == values
    with pytest.raises((ValueError, TypeError)):
        ModelMetadata.from_dict(values | {key: value})
