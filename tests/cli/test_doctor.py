"""semifine doctor."""

from __future__ import annotations

import json
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from semifine.cli.doctor import diagnose
from semifine.cli.main import main

Usage = namedtuple("Usage", "total used free")


def test_diagnosis_contains_versions_and_disk_space(tmp_path: Path) -> None:
    (tmp_path / "images-abc").mkdir()
    (tmp_path / "images-abc" / "pixels.bin").write_bytes(bytes(2_000_000))
    environment = diagnose(tmp_path).environment
    assert torch.__version__.startswith(environment["torch"])
    assert environment["decoded images"].startswith("1 data sets, 0.00 GB")
    assert "GB" in environment["free disk space"]


def test_little_disk_space_is_a_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 10**8))
    (problem,) = diagnose(tmp_path / "not" / "there" / "yet").problems
    assert "Only 0.1 GB are free" in problem


def test_doctor_prints_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--cache", str(tmp_path)]) == 0
    assert "torch" in capsys.readouterr().out
    assert main(["doctor", "--cache", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["environment"]["timm"]
