"""Kills trainings with SIGKILL at random times and compares the resumed runs with an uninterrupted one, bit for bit.

python benchmarks/kill.py --kills 30 --json benchmarks/results/kill.json

Starts, kills and resumes a run until it finishes, then starts the next run, until the number of kills is reached.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from provenance import provenance
from semifine.config import resolve
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.progress import Display

SETTINGS = {
    "data.genera": 3,
    "data.species": 2,
    "data.labeled_per_class": 3,
    "data.unlabeled_per_class": 9,
    "data.val_per_class": 2,
    "data.test_per_class": 4,
    "image_size": 32,
    "batch_size": 4,
    "mu": 2,
    "supervised_warmup": 0.0,
    "iterations": 16,
    "log_every": 3,
    "evaluate_every": 4,
    "save_every": 2,
    "device": "cpu",
}
TIMES = {"images_per_second", "step_seconds", "data_wait"}
"""Metrics that measure time and differ between any two runs."""
SHARE_WHILE_WRITING = 0.3
"""Share of the kills that wait until a checkpoint is being written. The others come at a random time."""


def start(out: Path, method: str) -> int:
    """Starts or resumes the run in a forked process, which has all modules loaded, and returns its process id."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        fit(resolve([{**SETTINGS, "method.name": method}]), out, resume=True, display=Display(quiet=True))
        code = 0
    except BaseException:
        traceback.print_exc()
    os._exit(code)


def killed_after(child: int, seconds: float, writing_in: Path | None = None) -> bool:
    """Kills the process after some seconds; returns False if it had finished. Raises if it had failed.

    With ``writing_in``, waits until a checkpoint is being written in this folder.
    """
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline or (writing_in and not any(writing_in.glob("checkpoints/.step-*.partial/*"))):
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            assert status == 0, "a resumed run failed"
            return False
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def has_partial_files(out: Path) -> bool:
    """Whether the kill interrupted the writing of a file or of a checkpoint."""
    folder = RunFolder(out)
    last = folder.checkpoints / "last"
    newest = max((path.name for path in folder.checkpoints.glob("step-*")), default="")
    return any(out.rglob("*.partial")) or (newest > last.resolve().name if last.exists() else bool(newest))


def are_equal(out: Path, other: Path) -> bool:
    """Whether two runs have the same final weights, state and logged metrics, bit for bit."""
    (tensors, numbers), (other_tensors, other_numbers) = (
        _read_tensors_and_metrics(out),
        _read_tensors_and_metrics(other),
    )
    same_names = tensors.keys() == other_tensors.keys() and numbers == other_numbers
    return same_names and all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())


def _read_tensors_and_metrics(out: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
    folder = RunFolder(out)
    checkpoint = folder.checkpoints / "last"
    state = torch.load(checkpoint / "training.pt", weights_only=True)
    tensors = load_file(checkpoint / "model.safetensors")
    for part in ("student", "method"):
        tensors |= {f"{part}.{name}": value for name, value in state[part].items()}
    return tensors, [
        {name: value for name, value in record.items() if name not in TIMES} for record in folder.read_metrics()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--method", default="soc")
    parser.add_argument("--seed", type=int, default=0, help="seed of the random times")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    counts: dict[str, int] = {"kills": 0, "in_mid_writing": 0, "runs": 0, "runs_equal_to_the_undisturbed": 0}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        started = time.monotonic()
        assert not killed_after(start(folder / "whole", options.method), 600)
        typical_seconds = time.monotonic() - started
        while counts["kills"] < options.kills:
            out = folder / f"run-{counts['runs']}"
            while not (out / "result.json").exists():
                seconds = rng.uniform(0, typical_seconds) if counts["kills"] < options.kills else 600
                writing_in = out if rng.random() < SHARE_WHILE_WRITING else None
                if killed_after(start(out, options.method), seconds, writing_in):
                    counts["kills"] += 1
                    counts["in_mid_writing"] += has_partial_files(out)
            counts["runs"] += 1
            counts["runs_equal_to_the_undisturbed"] += are_equal(out, folder / "whole")
    print(json.dumps(counts))
    if options.json:
        record = {**provenance(), "method": options.method, **counts}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    sys.exit(counts["runs_equal_to_the_undisturbed"] != counts["runs"])


if __name__ == "__main__":
    main()
