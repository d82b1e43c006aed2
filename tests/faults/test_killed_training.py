"""kill -9 in mid-training, and signals that ask politely."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

PROGRAM = Path(sys.executable).parent / "semifine"
OPTIONS = (
    "--method soc --image-size 32 --iterations 40 --batch-size 4 --mu 2 --log-every 5 --evaluate-every 10 "
    "--save-every 3 --device cpu --data.genera 3 --data.species 2 --data.unlabelled-per-class 9 "
    "--data.test-per-class 3 --quiet"
).split()


def start(out: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen([PROGRAM, "train", "--out", out, "--resume", *OPTIONS], env={"OMP_NUM_THREADS": "1"})


def wait_for_checkpoint(out: Path, process: subprocess.Popen[bytes], after: set[str]) -> None:
    """Until a checkpoint is written that was not there before."""
    for _ in range(6000):
        if process.poll() is not None or {path.name for path in out.glob("checkpoints/step-*")} - after:
            return
        time.sleep(0.01)
    raise AssertionError("no checkpoint came")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    assert start(out).wait() == 0
    return out


def assert_same_run(out: Path, other: Path) -> None:
    path = Path("checkpoints") / "last" / "model.safetensors"
    torch.testing.assert_close(load_file(out / path), load_file(other / path), rtol=0, atol=0)
    numbers = [
        [line for line in (folder / "metrics.jsonl").read_text().splitlines() if '"evaluation"' in line]
        for folder in (out, other)
    ]
    assert numbers[0] == numbers[1]


@pytest.mark.slow
def test_kill_9_and_resume_give_the_undisturbed_weights(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for _ in range(2):
        before = {path.name for path in out.glob("checkpoints/step-*")}
        process = start(out)
        wait_for_checkpoint(out, process, before)
        process.kill()
        assert process.wait() == -signal.SIGKILL
    assert start(out).wait() == 0
    assert_same_run(out, undisturbed)


@pytest.mark.slow
def test_a_signal_saves_and_exits_with_its_code(undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    process = start(out)
    wait_for_checkpoint(out, process, set())
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert start(out).wait() == 0
    assert_same_run(out, undisturbed)
