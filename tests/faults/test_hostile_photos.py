"""Photos that are made to harm are listed as unreadable, and the rest of the job goes on."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from semifine.cli.main import main
from tests.faults.bad_files import decompression_bomb, encode_image, finished_run

UNREADABLE = {
    "holiday.jpg": "not a supported image format",
    "huge.jpg": "it is larger than 513 MB",
    "bomb.png": "exceeds limit",
    "endless.jpg": "not a regular file",
}


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Photos of two classes; some of the unlabeled ones are made to harm, and a program ``gs`` would leave a file."""
    root = tmp_path / "photos"
    for number, place in enumerate(["labeled/a", "labeled/b", *["unlabeled"] * 5]):
        (root / place).mkdir(parents=True, exist_ok=True)
        (root / place / f"{number}.jpg").write_bytes(encode_image((20, 16), (9, 40 * number, 99), "JPEG"))
    (root / "unlabeled" / "holiday.jpg").write_bytes(b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EOF\n")
    with (root / "unlabeled" / "huge.jpg").open("wb") as file:
        file.truncate(40 << 30)  # takes no space on the disk
    (root / "unlabeled" / "bomb.png").write_bytes(decompression_bomb())
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    return root


def test_prepare_lists_them(photos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "t.csv").write_text(
        "path,label\nlabeled/a/0.jpg,a\nlabeled/b/1.jpg,b\nendless.jpg,\n"
        + "".join(f"unlabeled/{name},\n" for name in sorted(os.listdir(photos / "unlabeled")))
    )
    (photos / "endless.jpg").symlink_to("/dev/zero")
    command = ["prepare", str(tmp_path / "t.csv"), "--data.root", str(photos), "--cache", str(tmp_path / "cache")]
    assert main([*command, "--image-size", "16"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    for name, reason in UNREADABLE.items():
        assert name in output
        assert reason in output
    assert not (tmp_path / "started").exists()


def test_predict_lists_them(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.csv"
    command = [
        "predict",
        str(finished_run()),
        str(photos),
        "--out",
        str(out),
        "--camtrap-dp",
        str(tmp_path / "package"),
    ]
    assert main([*command, "--device", "cpu", "--quiet"]) == 0
    with out.with_name("p.csv.unreadable.csv").open(newline="") as file:
        reasons = {Path(row["path"]).name: row["reason"] for row in csv.DictReader(file)}
    assert reasons.keys() == UNREADABLE.keys() - {"endless.jpg"}
    assert all(UNREADABLE[name] in reason for name, reason in reasons.items())
    assert len(out.read_text().splitlines()) == 1 + 7
    assert not (tmp_path / "started").exists()
