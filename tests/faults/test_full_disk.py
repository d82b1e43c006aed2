"""Full disks, on a small mounted file system (skipped without permission to mount) and with /dev/full."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.errors import UserError
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.faults.bad_files import encode_image, finished_run


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """An empty file system of 32 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", place], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "--lazy", place], check=True)


def fill(disk: Path) -> None:
    with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 16))


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    out = tmp_path_factory.mktemp("whole") / "run"
    fit(tiny_settings(), out, display=Display(quiet=True))
    return weights(out)


class DiskFillingDisplay(Display):
    """Fills the disk after the sixth step."""

    def __init__(self, disk: Path) -> None:
        super().__init__(quiet=True)
        self.disk = disk

    def log_metrics(self, step: int, *_: Any) -> None:
        if step == 6:
            fill(self.disk)


def test_a_run_resumes_after_the_disk_was_full(disk: Path, whole: dict[str, torch.Tensor]) -> None:
    out = disk / "run"
    with pytest.raises(UserError, match="free disk space and continue with --resume"):
        fit(tiny_settings(), out, display=DiskFillingDisplay(disk))
    assert (out / "checkpoints" / "last").resolve().name == "step-00000004"
    assert weights(out)
    (disk / "filler").unlink()
    fit(tiny_settings(), out, resume=True, display=Display(quiet=True))
    torch.testing.assert_close(weights(out), whole, rtol=0, atol=0)


def open_full_device(_: Path, mode: str, encoding: str | None = None) -> IO[Any]:
    return open("/dev/full", mode, encoding=encoding)


@pytest.mark.parametrize(("module", "name"), [("runs.folder", "metrics.jsonl"), ("training.progress", "log.jsonl")])
def test_a_run_stops_if_metrics_or_log_cannot_be_written(
    module: str, name: str, whole: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, settings = tmp_path / "run", tiny_settings()

    class FileReplacingDisplay(Display):
        def log_metrics(self, step: int, *_: Any) -> None:
            if step == 6:
                monkeypatch.setattr(f"semifine.{module}.open_regular", open_full_device)
                self.log("a line for the log")

    with pytest.raises(UserError, match=rf"The disk is full \({out / name}\): free some space and continue"):
        fit(settings, out, display=FileReplacingDisplay(quiet=True))
    monkeypatch.undo()
    assert (out / "checkpoints" / "last").resolve().name >= "step-00000004"
    fit(settings, out, resume=True, display=Display(quiet=True))
    torch.testing.assert_close(weights(out), whole, rtol=0, atol=0)


@pytest.fixture
def command(tmp_path: Path) -> list[str]:
    """A command that decodes a few photos, which need more space than a full disk has."""
    for number, name in enumerate(["a", "b"]):
        (tmp_path / "photos" / "labeled" / name).mkdir(parents=True)
        image = encode_image((900, 800), (number, 9, 9), "JPEG")
        (tmp_path / "photos" / "labeled" / name / "1.jpg").write_bytes(image)
    return ["prepare", str(tmp_path / "photos"), "--image-size", "700", "--cache"]


def test_a_full_disk_during_decoding_leaves_no_files(
    disk: Path, command: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    fill(disk)
    assert main([*command, str(disk)]) == 2
    assert f"The disk is full ({disk})" in capsys.readouterr().err
    assert [path.name for path in disk.iterdir() if path.suffix != ".lock"] == ["filler"], "no partial store remains"
    (disk / "filler").unlink()
    assert main([*command, str(disk)]) == 0


def test_no_space_error_while_writing_decoded_images(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raises the error in the last system call, so no mounted file system is needed."""

    def fail(_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    cache = tmp_path / "cache"
    with monkeypatch.context() as patch:
        patch.setattr("semifine.data.store.sync_tree", fail)
        assert main([*command, str(cache)]) == 2
    assert f"The disk is full ({cache})" in capsys.readouterr().err
    assert [path.name for path in cache.iterdir() if path.suffix != ".lock"] == []
    assert main([*command, str(cache)]) == 0


COMMANDS = {
    "report": ("report", "{run}", "--out", "{disk}/report.html"),
    "figures": ("report", "{run}", "--out", "{elsewhere}/report.html", "--figures", "{disk}/figures"),
    "export": ("export", "{run}", "--out", "{disk}/model.safetensors"),
    "pt2": ("export", "{run}", "--out", "{disk}/model.pt2"),
    "csv": ("predict", "{run}", "{photos}", "--out", "{disk}/table.csv", "--batch-size", "2"),
    "parquet": ("predict", "{run}", "{photos}", "--out", "{disk}/table.parquet", "--batch-size", "2"),
    "camtrap": ("predict", "{run}", "{photos}", "--out", "{elsewhere}/table.csv", "--camtrap-dp", "{disk}/package"),
    "folder": ("prepare", "{photos}", "--write-folder", "{disk}/photos"),
}


def fill_in(command: str, disk: Path, elsewhere: Path) -> list[str]:
    """Returns the command line of a command that writes to the disk."""
    photos = elsewhere / "photos"
    for number in range(6):
        (photos / f"class {number % 2}").mkdir(parents=True, exist_ok=True)
        image = encode_image((20, 20), (number, 9, 9), "JPEG")
        (photos / f"class {number % 2}" / f"{number}.jpg").write_bytes(image)
    names = {"run": finished_run(), "photos": photos, "disk": disk, "elsewhere": elsewhere}
    return [argument.format(**names) for argument in COMMANDS[command]]


@pytest.mark.parametrize(
    ("command", "free"),
    [(command, 0) for command in COMMANDS if command != "figures"]
    + [(command, 4096) for command in ("csv", "parquet", "camtrap", "folder")],
)
def test_a_full_disk_leaves_no_partial_output_and_the_message_names_it(
    command: str, free: int, disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    arguments = fill_in(command, disk, elsewhere)
    fill(disk)
    os.truncate(disk / "filler", (disk / "filler").stat().st_size - free)
    assert main(arguments) == 2
    (message,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("semifine: ")]
    assert str(disk) in message
    assert "free some space" in message
    left = [path for path in disk.rglob("*") if path.is_file() and path.name != "filler"]
    assert all(path.suffix == ".unfinished" for path in left)
    if arguments[0] == "predict":
        (disk / "filler").unlink()
        assert "--resume" in message
        assert main([*arguments, "--resume"]) == 0


@pytest.mark.parametrize("command", [command for command in COMMANDS if command != "pt2"])
def test_no_space_error_while_syncing_output(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Raises the error when the output is synced, so no mounted file system is needed."""
    disk, elsewhere = tmp_path / "disk", tmp_path / "elsewhere"
    for folder in (disk, elsewhere):
        folder.mkdir()
    arguments = fill_in(command, disk, elsewhere)
    fsync = os.fsync

    def fail(descriptor: int) -> None:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
        if name.startswith(str(disk)) and ".partial" in name:
            raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    assert main(arguments) == 2
    assert str(disk) in capsys.readouterr().err.splitlines()[-1]
    assert not [path for path in disk.rglob("*") if path.is_file() and path.suffix != ".unfinished"]
