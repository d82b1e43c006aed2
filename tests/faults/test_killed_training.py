"""Trainings that are killed with SIGKILL, or stopped with SIGTERM or SIGINT."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.runs.folder import locked
from semifine.training.fabric import catch_stop_signals
from semifine.training.progress import Display

ROOT = Path(__file__).parents[2]
OPTIONS = (
    "--method soc --image-size 32 --iterations 12 --batch-size 4 --mu 2 --log-every 1 --evaluate-every 100 "
    "--save-every 100 --device cpu --data.genera 3 --data.species 2 --data.unlabeled-per-class 9 "
    "--data.test-per-class 3 --quiet"
).split()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_resuming_after_sigkill_gives_the_same_weights() -> None:
    """Runs benchmarks/kill.py with a few kills."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, str(ROOT / "benchmarks" / "kill.py"), "--kills", "5", "--seed", "7"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=850)
    assert done.returncode == 0, done.stderr[-3000:]
    counts = json.loads(done.stdout)
    assert counts["kills"] == 5
    assert counts["runs_equal_to_the_undisturbed"] == counts["runs"] > 0


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, torch.Tensor]:
    return weights_after(tmp_path_factory.mktemp("undisturbed") / "run", code=0)


def weights_after(out: Path, code: int) -> dict[str, torch.Tensor]:
    assert main(["train", "--out", str(out), "--resume", *OPTIONS]) == code
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_and_exits_with_its_code(
    number: signal.Signals, uninterrupted: dict[str, torch.Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(_: Display, step: int, *__: Any) -> None:
        if step == 5:
            os.kill(os.getpid(), number)

    with monkeypatch.context() as patch:
        patch.setattr(Display, "log_metrics", send)
        weights_after(tmp_path / "run", code=128 + number)
    assert (tmp_path / "run" / "checkpoints" / "last").resolve().name == "step-00000005"
    resumed = weights_after(tmp_path / "run", code=0)
    torch.testing.assert_close(resumed, uninterrupted, rtol=0, atol=0)


def test_a_second_ctrl_c_interrupts_at_once() -> None:
    with catch_stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal_number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_before_training_starts_has_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("semifine.training.fit.fit", interrupt)
    assert main(["train", "--out", "nowhere"]) == 130
    assert capsys.readouterr().err == "semifine: interrupted\n"


def test_a_folder_is_locked_until_its_training_ends_or_is_killed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    reader, writer = os.pipe()
    first = os.fork()
    if not first:
        with locked(out):
            os.write(writer, b"!")
            signal.pause()
    assert os.read(reader, 1) == b"!"
    assert main(["train", "--out", str(out), *OPTIONS]) == 2
    assert f"Another training is running in {out}" in capsys.readouterr().err
    os.kill(first, signal.SIGKILL)
    os.waitpid(first, 0)
    assert main(["train", "--out", str(out), *OPTIONS]) == 0
