"""Trains a tiny network for many steps and fails if the memory of the process grows.

python benchmarks/soak.py --steps 200000 --out runs/soak --json benchmarks/results/soak.json

The run logs, evaluates and saves checkpoints as usual. After Ctrl-C, the same command continues.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch

from provenance import provenance
from semifine.config import resolve
from semifine.errors import Interrupted
from semifine.training.fit import fit
from semifine.training.progress import Display

SETTINGS = {
    "data.genera": 2,
    "data.species": 2,
    "data.labeled_per_class": 4,
    "data.unlabeled_per_class": 16,
    "data.val_per_class": 2,
    "data.test_per_class": 4,
    "data.image_side": 16,
    "image_size": 16,
    "backbone": "test_resnet",
    "batch_size": 2,
    "mu": 1,
    "supervised_warmup": 0.0,
    "device": "cpu",
}
EVALUATE_EVERY = 5_000
WARMUP = EVALUATE_EVERY + 1_000
"""Steps before the first comparison, because libraries fill their caches and the first evaluation loads pyarrow."""
ALLOWED_GROWTH = 20.0
"""Megabytes by which memory may grow after the warmup."""


class MemoryRecorder(Display):
    """Records the memory of the process whenever the run logs."""

    def __init__(self) -> None:
        super().__init__(quiet=True)
        self.samples: list[tuple[int, float]] = []

    def log_metrics(self, step: int, *_: Any) -> None:
        self.samples.append((step, resident_megabytes()))


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--method", default="soc")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", help="append the memory of this part of the run to this file"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    every = {"log_every": 500, "evaluate_every": EVALUATE_EVERY}
    settings = resolve([{**SETTINGS, **every, "method.name": options.method, "iterations": options.steps}])
    recorder, started = MemoryRecorder(), time.perf_counter()
    try:
        fit(settings, options.out, resume=True, display=recorder)
    except Interrupted as stop:
        print(f"stopped by {stop}")
    first, last = recorder.samples[0][0], recorder.samples[-1][0]
    warm = [memory for step, memory in recorder.samples if step >= first + WARMUP]
    if not warm:
        sys.exit(f"{last - first} steps are too few: the comparison starts after {WARMUP} steps.")
    growth = max(warm) - warm[0]
    print(f"steps {first} to {last} of {options.method} in {time.perf_counter() - started:.0f} s: {warm[0]:.0f} MB")
    print(
        f"after warmup, {warm[-1]:.0f} MB at the end, at most {growth:+.1f} MB between; limit {ALLOWED_GROWTH:.0f} MB"
    )
    if options.json:
        parts = json.loads(options.json.read_text(encoding="utf-8")) if options.json.exists() else []
        samples = [[step, round(memory, 1)] for step, memory in recorder.samples]
        part = {**provenance(), "method": options.method, "growth_megabytes": round(growth, 1)}
        parts.append({**part, "megabytes": samples})
        options.json.write_text(json.dumps(parts) + "\n", encoding="utf-8")
    sys.exit(growth > ALLOWED_GROWTH)


if __name__ == "__main__":
    main()
