"""Files of a run that are pipes, devices, huge or links to themselves: no command waits for them or reads them."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from semifine.cli.main import main
from tests.faults.bad_files import encode_image, finished_run

TIME_LIMIT = 120
FILES = [
    *("settings.yaml", "result.json", "classes.json", "data.json", "environment.json", "metrics.jsonl", "log.jsonl"),
    *("classes.safetensors", "samples.parquet", "calibration.json", ".lock", "report.html"),
    *("checkpoints/last/model.safetensors", "checkpoints/last/training.pt", "checkpoints/last/checksums.json"),
]
SPECIAL: dict[str, Callable[[Path], None]] = {
    "pipe": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "loop": lambda path: path.symlink_to(path.name),
}


@pytest.fixture
def time_limit() -> Iterator[None]:
    """Raises in a read that would wait forever."""

    def stop(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(TIME_LIMIT)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.usefixtures("time_limit")
@pytest.mark.parametrize("kind", SPECIAL)
@pytest.mark.parametrize("name", FILES)
def test_no_command_waits_for_a_special_file(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(finished_run(), tmp_path / "run", symlinks=True))
    (run / name).unlink(missing_ok=True)
    SPECIAL[kind](run / name)
    (tmp_path / "1.png").write_bytes(encode_image((20, 16), (9, 9, 9), "PNG"))
    for command in (
        ["report", str(run)],
        ["evaluate", str(run), "--device", "cpu"],
        ["predict", str(run), str(tmp_path / "1.png"), "--device", "cpu", "--quiet"],
        ["train", "--out", str(run), "--resume", "--quiet", "--device", "cpu"],
    ):
        assert main(command) in (0, 2)
        error = capsys.readouterr().err
        assert "Traceback" not in error
        assert len(error) < 3000
