"""Runs of two processes with a failure in one of them: python fault_scenarios.py FOLDER."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from semifine.methods.base import Batch
from semifine.training import fabric
from semifine.training.evaluate import RunEvaluator
from semifine.training.fit import fit
from semifine.training.loader import BatchLoader
from semifine.training.progress import Display
from tests.conftest import tiny_settings
from tests.distributed.scenarios import NETWORK, Silent, in_processes

STEPS = 12
BAD_STEP = 6
PATIENCE = timedelta(seconds=4)


def run(out: Path, display: Display | None = None, **more: Any) -> None:
    settings = {**NETWORK, "iterations": STEPS, "log_every": 7, "save_every": 5, "evaluate_every": 100, **more}
    fit(tiny_settings("soc", **settings), out, resume=True, display=display or Silent())


def with_bad_images(rank: int, out: Path, on_nonfinite: str) -> None:
    """Trains with NaN images in one step of the last process only."""
    make: Callable[[BatchLoader, int], Batch] = BatchLoader.batch

    def broken(loader: BatchLoader, step: int) -> Batch:
        batch = make(loader, step)
        is_last = rank == int(os.environ.get("WORLD_SIZE", "1")) - 1
        for view in (*batch.labeled.values(), *batch.unlabeled.values()):
            view.mul_(float("nan") if is_last and step == BAD_STEP else 1.0)
        return batch

    BatchLoader.batch = broken  # type: ignore[method-assign]
    run(out, on_nonfinite=on_nonfinite)


def with_long_evaluations(out: Path) -> None:
    """Trains with evaluations in the first process that take longer than the timeout of a step."""
    fabric.STEP_TIMEOUT = PATIENCE
    evaluate = RunEvaluator.evaluate
    write_stats = RunEvaluator.write_stats

    def slow(function: Callable[..., Any]) -> Callable[..., Any]:
        def slowly(*arguments: Any) -> Any:
            time.sleep(2 * PATIENCE.total_seconds())
            return function(*arguments)

        return slowly

    RunEvaluator.evaluate = slow(evaluate)  # type: ignore[method-assign]
    RunEvaluator.write_stats = slow(write_stats)  # type: ignore[method-assign]
    run(out, evaluate_every=STEPS)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    outcomes: dict[str, Any] = {}

    def note(name: str, count: int, work: Callable[[int, Path], None]) -> None:
        outcomes[name] = in_processes(count, lambda rank: work(rank, folder / name))

    note("skipped", 2, lambda rank, out: with_bad_images(rank, out, "skip"))
    note("skipped-by-one", 1, lambda rank, out: with_bad_images(rank, out, "skip"))
    note("stopped", 2, lambda rank, out: with_bad_images(rank, out, "stop"))
    note("long", 2, lambda _, out: with_long_evaluations(out))
    (folder / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
