"""kill -9 at random moments, and resume: the weights must be those of the undisturbed run, bit for bit.

python benchmarks/kill.py --kills 30 --json benchmarks/results/kill.json

A run is started, killed and resumed until it is done; then the next begins, until all kills are spent.
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
"""What is measured and differs between any two runs."""
AIMED = 0.3
"""Share of the kills that wait for a checkpoint to be in writing; the others come when they come."""


def start(out: Path, method: str) -> int:
    """Begins or resumes the run in a process of its own, which begins where this one stands: all code is loaded."""
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
    """Whether the process was still at work when it was killed; a process that failed by itself is an error.

    With ``writing_in`` the kill waits until a checkpoint of that run is being written.
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


def is_in_mid_writing(out: Path) -> bool:
    """Whether something was left half done: a file or a checkpoint without its place."""
    folder = RunFolder(out)
    last = folder.checkpoints / "last"
    newest = max((path.name for path in folder.checkpoints.glob("step-*")), default="")
    return any(out.rglob("*.partial")) or (newest > last.resolve().name if last.exists() else bool(newest))


def are_equal(out: Path, other: Path) -> bool:
    """Whether two runs ended with the same weights and state, and logged the same numbers on the way, bit for bit."""
    (tensors, numbers), (other_tensors, other_numbers) = _content(out), _content(other)
    same_names = tensors.keys() == other_tensors.keys() and numbers == other_numbers
    return same_names and all(torch.equal(value, other_tensors[name]) for name, value in tensors.items())


def _content(out: Path) -> tuple[dict[str, torch.Tensor], list[dict[str, Any]]]:
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
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts there")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rng = random.Random(options.seed)
    counts = {"kills": 0, "in_mid_writing": 0, "runs": 0, "runs_equal_to_the_undisturbed": 0}
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        began = time.monotonic()
        assert not killed_after(start(folder / "whole", options.method), 600)
        usual = time.monotonic() - began
        while counts["kills"] < options.kills:
            out = folder / f"run-{counts['runs']}"
            while not (out / "result.json").exists():
                patience = rng.uniform(0, usual) if counts["kills"] < options.kills else 600
                writing_in = out if rng.random() < AIMED else None
                if killed_after(start(out, options.method), patience, writing_in):
                    counts["kills"] += 1
                    counts["in_mid_writing"] += is_in_mid_writing(out)
            counts["runs"] += 1
            counts["runs_equal_to_the_undisturbed"] += are_equal(out, folder / "whole")
    print(json.dumps(counts))
    if options.json:
        options.json.write_text(json.dumps(counts) + "\n", encoding="utf-8")
    sys.exit(counts["runs_equal_to_the_undisturbed"] != counts["runs"])


if __name__ == "__main__":
    main()
