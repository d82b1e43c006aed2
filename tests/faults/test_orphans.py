"""No process outlives the process that started it, even if that one is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from semifine.config.loading import flatten
from semifine.data.decode_pool import supports_processes
from semifine.processes import PARENT
from tests.conftest import tiny_settings
from tests.distributed.process_runs import ENVIRONMENT, OPTIONS

pytestmark = [
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc to list processes"),
    pytest.mark.timeout(900),
]
PATIENCE = 100
"""Seconds after which a test fails; before, children lived on without limit. Trainings have 60 to save a checkpoint."""
PATIENCE_WITH_START = 600
"""The same for the start, in which a loaded machine needs long to import PyTorch."""

DECODING = """
import sys
from semifine.data.decode_pool import decode_in_processes
list(decode_in_processes([sys.argv[1:]], lambda packed, reasons: None, shorter_side=16, full_size_pixels=1200,
                         group_size=1, workers=2))
"""

EXPERIMENT = """
import json, pathlib, sys
from semifine.experiments.scheduler import Job, run_jobs
from semifine.experiments.stages import Stage
job = Job(Stage("supervised", json.loads(sys.argv[1])), pathlib.Path.cwd())
run_jobs([job], at_once=1, options=[], on_change=lambda: None)
"""


def parents() -> dict[int, int]:
    """Returns the parent of each process that has not ended."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it has just ended
            continue
        if state not in "ZX":
            found[int(entry.name)] = int(parent)
    return found


def descendants(process: int) -> set[int]:
    parent_of = parents()
    found: set[int] = set()
    while new := {child for child, parent in parent_of.items() if parent in {process, *found}} - found:
        found |= new
    return found


def watches_its_parent(process: int) -> bool:
    """Whether a process is one of semifine's, not a short one such as ``git``."""
    try:
        return f"{PARENT}=".encode() in Path(f"/proc/{process}/environ").read_bytes()
    except OSError:  # it has just ended
        return False


def wait_until(condition: Callable[[], object], patience: float = PATIENCE) -> None:
    deadline = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def kill_and_wait_for_children(command: list[str], folder: Path, has_started: Callable[[set[int]], object]) -> None:
    """Kills a program when its children have started, and waits until they have ended."""
    with subprocess.Popen(
        command, env=ENVIRONMENT, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        children: set[int] = set()
        try:
            wait_until(lambda: has_started(descendants(process.pid)) or process.poll() is not None, PATIENCE_WITH_START)
            children = descendants(process.pid)
            assert children
            process.kill()
            wait_until(lambda: not children & parents().keys())
        finally:
            process.kill()
            for child in children & parents().keys():
                os.kill(child, signal.SIGKILL)


def train(*more: str) -> list[str]:
    return [sys.executable, "-m", "semifine", "train", "--out", "run", "--iterations", "100000", *OPTIONS, *more]


@pytest.mark.slow
def test_the_second_process_while_it_starts(tmp_path: Path) -> None:
    kill_and_wait_for_children(
        train("--devices", "2"), tmp_path, lambda children: any(map(watches_its_parent, children))
    )


@pytest.mark.skipif(not supports_processes(), reason="this system has no memory for processes to share")
def test_a_decode_worker_that_reads_an_endless_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "endless.jpg")
    command = [sys.executable, "-c", DECODING, str(tmp_path / "endless.jpg")]
    kill_and_wait_for_children(command, tmp_path, lambda children: len(children) == 3)


@pytest.mark.slow
def test_a_training_of_an_experiment_saves_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "supervised"
    settings = tiny_settings("supervised", iterations=100_000, evaluate_every=100_000, save_every=100_000)
    command = [sys.executable, "-c", EXPERIMENT, json.dumps(flatten(settings.as_dict()))]
    kill_and_wait_for_children(command, tmp_path, lambda _: (run / "metrics.jsonl").exists())
    assert list(run.glob("checkpoints/step-*"))
