"""Two processes that share every batch learn what one process learns, for every method."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from semifine.methods import method_names

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("train_all.py")
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}


def call(*command: str) -> None:
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-4000:]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All methods, trained by one process and by two."""
    folder = tmp_path_factory.mktemp("runs")
    call(sys.executable, str(PROGRAM), str(folder / "teachers"), "supervised")
    (folder / "teachers" / "supervised").rename(folder / "teacher")
    call(sys.executable, str(PROGRAM), str(folder / "one"))
    call(
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(PROGRAM),
        str(folder / "two"),
    )
    return folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def state(run: Path) -> dict[str, Any]:
    return dict(torch.load(run / "checkpoints" / "last" / "training.pt", weights_only=True))


@pytest.mark.parametrize("name", method_names())
def test_the_weights_are_those_of_one_process(name: str, runs: Path) -> None:
    torch.testing.assert_close(weights(runs / "two" / name), weights(runs / "one" / name), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", method_names())
def test_the_state_of_the_method_is_that_of_one_process(name: str, runs: Path) -> None:
    two, one = (state(runs / folder / name)["method"] for folder in ("two", "one"))
    torch.testing.assert_close(two, one, rtol=1e-4, atol=1e-5)


def test_the_logged_numbers_are_of_all_processes(runs: Path) -> None:
    two, one = (
        [json.loads(line) for line in (runs / folder / "soc" / "metrics.jsonl").read_text().splitlines()]
        for folder in ("two", "one")
    )
    for ours, theirs in zip(two, one, strict=True):
        for key in ("loss", "loss_unlabelled", "pseudo_label_accuracy", "test_top1"):
            if key in theirs:
                assert ours[key] == pytest.approx(theirs[key], rel=1e-3)


def test_a_run_says_how_many_processes_it_had(runs: Path) -> None:
    result = json.loads((runs / "two" / "soc" / "result.json").read_text())
    assert result["environment"]["processes"] == 2


def command(out: Path, *more: str) -> list[str]:
    words = (
        "train --device cpu --devices 2 --backbone test_convnext --image-size 32 --batch-size 4 --mu 2 --data.genera 3"
    )
    words += " --data.species 2 --labelled-first 0 --log-every 2 --quiet --json"
    return [sys.executable, "-m", "semifine", *words.split(), "--out", str(out), *more]


def test_the_command_starts_its_processes_and_one_speaks(tmp_path: Path) -> None:
    done = subprocess.run(
        command(tmp_path / "run", "--iterations", "4"), env=ENVIRONMENT, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout)["environment"]["processes"] == 2


def test_two_processes_stop_together_after_saving(tmp_path: Path) -> None:
    endless = command(
        tmp_path / "run", "--iterations", "100000", "--save-every", "100000", "--evaluate-every", "100000"
    )
    running = subprocess.Popen(endless, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    metrics = tmp_path / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.2)
    running.send_signal(signal.SIGTERM)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 128 + signal.SIGTERM, said[-2000:]
    assert state(tmp_path / "run")["step"] > 0


def test_a_run_of_two_processes_goes_on_in_one(tmp_path: Path) -> None:
    """Stopped after 4 of 8 steps by two processes; the weights after the rest are those of an undisturbed run."""
    whole = [word for word in command(tmp_path / "whole", "--iterations", "8", "--save-every", "4") if word != "--json"]
    call(*whole[: whole.index("--devices")], "--devices", "1", *whole[whole.index("--devices") + 2 :])
    call(*command(tmp_path / "parts", "--iterations", "8", "--save-every", "4"))
    checkpoints = tmp_path / "parts" / "checkpoints"
    (checkpoints / "last").unlink()
    (checkpoints / "last").symlink_to("step-00000004")
    (tmp_path / "parts" / "result.json").unlink()
    call(*whole[:3], "train", "--out", str(tmp_path / "parts"), "--resume", "--devices", "1", "--quiet")
    torch.testing.assert_close(weights(tmp_path / "parts"), weights(tmp_path / "whole"), rtol=1e-4, atol=1e-6)
