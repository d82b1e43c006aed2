"""Helpers that start runs of several processes and read their results."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
OPTIONS = (
    "--device cpu --backbone test_convnext --image-size 32 --batch-size 4 --mu 2 --data.genera 3 --data.species 2 "
    "--supervised-warmup 0 --log-every 2 --quiet --json"
).split()


def run_program(name: str, folder: Path, seconds: int) -> Path:
    """Runs a program of this folder, which writes its runs and ``outcomes.json`` to ``folder``."""
    command = [sys.executable, str(Path(__file__).with_name(name)), str(folder)]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder


def outcome(runs: Path, name: str) -> dict[str, Any]:
    return dict(json.loads((runs / "outcomes.json").read_text())[name])


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "checkpoints" / "last" / "model.safetensors")


def state(run: Path) -> dict[str, Any]:
    return dict(torch.load(run / "checkpoints" / "last" / "training.pt", weights_only=True))


def wait_for_metrics(out: Path) -> None:
    """Waits until the run has logged its first metrics."""
    metrics, deadline = out / "metrics.jsonl", time.monotonic() + 120
    while not (metrics.exists() and metrics.stat().st_size) and time.monotonic() < deadline:
        time.sleep(0.1)
