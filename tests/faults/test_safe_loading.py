"""Files with code instead of data: no reader executes the code."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from semifine.cli.main import main
from semifine.data.decode import compute_digest
from semifine.runs.checkpoint import CHECKSUMS, TRAINING_STATE, WEIGHTS
from tests.faults.bad_files import encode_image, finished_run

SOURCES = Path(__file__).parents[2] / "src" / "semifine"


class Malicious:
    """Pickles as a call that leaves a file behind."""

    def __reduce__(self) -> Any:
        return os.system, ("touch executed",)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that can be resumed."""
    monkeypatch.chdir(tmp_path)
    out = Path(shutil.copytree(finished_run(), tmp_path / "run", symlinks=True))
    (out / "result.json").unlink()
    return out


def resume(run: Path) -> int:
    return main(["train", "--out", str(run), "--resume", "--quiet"])


def renew_checksums(checkpoint: Path) -> None:
    """Updates the checksums, as an attacker with access to the checkpoint would."""
    checksums = {
        name: hashlib.blake2b((checkpoint / name).read_bytes()).hexdigest() for name in (TRAINING_STATE, WEIGHTS)
    }
    (checkpoint / CHECKSUMS).write_text(json.dumps(checksums))


def test_the_malicious_file_executes_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verifies that the other tests can fail."""
    monkeypatch.chdir(tmp_path)
    pickle.loads(pickle.dumps(Malicious()))
    assert Path("executed").exists()


@pytest.mark.parametrize("form", ["torch", "bare pickle"])
def test_a_training_state(form: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checkpoint = run / "checkpoints" / "last"
    if form == "torch":
        torch.save({"step": 1, "method": Malicious()}, checkpoint / TRAINING_STATE)
    else:
        (checkpoint / TRAINING_STATE).write_bytes(pickle.dumps(Malicious()))
    renew_checksums(checkpoint)
    assert resume(run) == 2
    assert "training.pt is not a training state of semifine" in capsys.readouterr().err
    assert not Path("executed").exists()


@pytest.mark.parametrize("name", ["model.safetensors", "model.pt"])
def test_weights(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path(name).write_bytes(pickle.dumps(Malicious()))
    assert main(["train", "--out", "other", "--config", str(run / "settings.yaml"), "--weights", name, "--quiet"]) == 2
    assert f"{name} cannot be read" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_evaluated_weights(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (run / "checkpoints" / "last" / WEIGHTS).write_bytes(pickle.dumps(Malicious()))
    renew_checksums(run / "checkpoints" / "last")
    assert main(["evaluate", str(run)]) == 2
    assert "is damaged" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_settings(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with (run / "settings.yaml").open("a") as file:
        file.write('color: !!python/object/apply:os.system ["touch executed"]\n')
    assert resume(run) == 2
    assert "is not valid YAML" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_decoded_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """An index with a valid checksum and an array of objects is reported, not opened, and written again."""
    monkeypatch.chdir(tmp_path)
    for number, name in enumerate(["a", "b"]):
        (tmp_path / "photos" / "labeled" / name).mkdir(parents=True)
        (tmp_path / "photos" / "labeled" / name / "1.jpg").write_bytes(encode_image((20, 20), (number, 9, 9), "JPEG"))
    command = ["prepare", "photos", "--cache", "cache", "--image-size", "16"]
    assert main(command) == 0
    store = next(Path("cache").glob("images-*/store.json")).parent
    index = io.BytesIO()
    np.savez(index, offset=np.array([Malicious()], dtype=object))
    (store / "index.npz").write_bytes(index.getvalue())
    metadata = json.loads((store / "store.json").read_text())
    (store / "store.json").write_text(json.dumps(metadata | {"index": compute_digest(index.getvalue()).hex()}))
    capsys.readouterr()
    assert main(command) == 0
    assert "are damaged (Object arrays cannot be loaded" in capsys.readouterr().err
    assert not Path("executed").exists()


def test_no_module_reads_pickles() -> None:
    """Calls that could execute code from a file are called with an option that prevents it."""
    safe = {"torch.load": "weights_only=True", "np.load": "allow_pickle=False"}
    forbidden = {"pickle.load", "pickle.loads", "pickle.Unpickler", "yaml.load", "yaml.unsafe_load", "pd.read_pickle"}
    found: set[str] = set()
    for file in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in forbidden, f"{file}, line {node.lineno}"
                if name in safe:
                    assert safe[name] in ast.unparse(node), f"{file}, line {node.lineno}"
                    found.add(name)
    assert found == set(safe), "this test expects calls that no longer exist"
