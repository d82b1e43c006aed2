"""Runs of many settings side by side on one device, whose results are kept in one JSON file per part.

A part is a list of rows such as "SoC, seed 0". Its file has the settings and the result of each finished row. Rows that
are in the file with the same settings are not run again, also on another machine, so that a comparison can be made in
several sessions.
"""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from provenance import provenance
from semifine.config import resolve
from semifine.config.loading import flatten
from semifine.devices import resolve_device
from semifine.errors import Interrupted
from semifine.experiments.scheduler import Job, State, run_jobs, unique_jobs
from semifine.experiments.stages import Stage
from semifine.files import write_json
from semifine.runs.run import Run

PATHS = {"data.source", "data.images", "weights", "labels", "cache", "method.teacher", "method.voters"}
"""Settings that depend on the machine. Of paths, the results have the last part."""
TIMING = {"device", "compile", "cuda_graphs", "store", "cache", "evaluate_every", "save_every", "log_every", "loggers"}
"""Settings that do not change the result."""


@dataclass(frozen=True)
class Row:
    """A row of a part, with the stages whose last one is its result."""

    part: str
    title: str
    seed: int
    stages: tuple[Stage, ...]

    def settings(self) -> dict[str, Any]:
        """Returns the settings of the result that differ from the defaults, without folders of this machine."""
        found = flatten(resolve([self.stages[-1].settings]).as_dict())
        plain = flatten(resolve([{"data.source": found["data.source"], "method.name": found["method.name"]}]).as_dict())
        changed = {key: value for key, value in found.items() if value != plain.get(key) and key not in TIMING}
        changed |= {key: found[key] for key in ("data.source", "method.name", "iterations", "lr")}
        for key in PATHS & changed.keys():
            source, colon, path = str(changed[key]).partition(":")
            changed[key] = source + colon + Path(path).name if colon else Path(source).name
        return dict(json.loads(json.dumps(changed, default=str)))

    def job(self, runs: Path) -> list[Job]:
        """Returns the jobs of all stages. Rows of a part share stages of the same name and seed."""
        column = runs / self.part / f"seed-{self.seed}"
        return [Job(stage, column) for stage in self.stages]


def named(stages: Sequence[Stage], title: str, settings: Mapping[str, Any] | None = None) -> tuple[Stage, ...]:
    """Returns the stages with further settings of the last one, whose folder is named after the row."""
    *before, last = stages
    folder = "row-" + re.sub(r"[^a-z0-9.=]+", "-", title.lower()).strip("-")
    return (*before, Stage(**{**last.__dict__, "name": folder, "settings": {**last.settings, **(settings or {})}}))


class Results:
    """The results of one part in a JSON file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.entries: list[dict[str, Any]] = read_json_list(file)

    def find(self, row: Row) -> dict[str, Any] | None:
        """Returns the result of a row; None if it has not been run with these settings."""
        settings = row.settings()
        same = (entry for entry in self.entries if (entry["row"], entry["seed"]) == (row.title, row.seed))
        return next((entry for entry in same if entry["settings"] == settings), None)

    def add(self, row: Row, run: Run) -> None:
        """Adds the result of a finished row, in the place of an earlier one with other settings."""
        others = [entry for entry in self.entries if (entry["row"], entry["seed"]) != (row.title, row.seed)]
        self.entries = [*others, {"row": row.title, "seed": row.seed, "settings": row.settings(), **summarize(run)}]

    def write(self, device: str) -> None:
        self.file.parent.mkdir(parents=True, exist_ok=True)
        write_json(self.file, {**provenance(device), "results": self.entries})


def read_json_list(file: Path) -> list[dict[str, Any]]:
    return list(json.loads(file.read_text(encoding="utf-8"))["results"]) if file.exists() else []


def summarize(run: Run) -> dict[str, Any]:
    """Returns the accuracies of a run with their standard errors in points, and where it was measured."""
    result, kept = run.result, {}
    for key in ("iterations", "top1", "top5", "val", "chosen", "weight", "probe", "trained", "images", "seconds"):
        if result.get(key) is not None:
            kept[key] = result[key]
    images = result["images"]["test"]
    if result.get("top1") is not None and images:
        kept["standard_error"] = {
            name: round(float(result[name] * (100 - result[name]) / images) ** 0.5, 2) for name in ("top1", "top5")
        }
    if (confusion := run.confusion) is not None:
        kept["class_accuracy"] = [
            round(100 * float(row[label]) / max(int(row.sum()), 1), 1) for label, row in enumerate(confusion)
        ]
    unlabeled = result.get("unlabeled") or {}
    kept["unlabeled"] = {
        key: unlabeled[key]
        for key in ("pseudo_label_accuracy", "candidates", "candidate_hit_rate", "accepted")
        if key in unlabeled
    }
    return {**kept, "environment": result["environment"]}


def run_rows(rows: Sequence[Row], results: Path, runs: Path, at_once: int, device: str, minutes: float | None) -> bool:
    """Runs all rows that have no result yet, in their order, and writes the results as they come.

    Args:
        rows: Rows of one or several parts.
        results: Folder of the JSON files, one per part.
        runs: Folder of the runs.
        at_once: Number of simultaneous runs.
        device: Value of ``--device``.
        minutes: Stops the runs after this time; they continue with the next call.

    Returns:
        Whether all rows are finished.
    """
    files = {part: Results(results / f"{part}.json") for part in dict.fromkeys(row.part for row in rows)}
    waiting = [row for row in rows if files[row.part].find(row) is None]
    jobs = unique_jobs([job for row in waiting for job in row.job(runs.absolute())])
    by_folder = {job.folder.path: job for job in jobs}
    last = {id(row): by_folder[row.job(runs.absolute())[-1].folder.path] for row in waiting}
    kind = resolve_device(device)

    def keep_finished() -> None:
        for row in list(waiting):
            job = last[id(row)]
            if job.state is State.DONE:
                waiting.remove(row)
                files[row.part].add(row, Run(job.folder.path))
                files[row.part].write(kind)
                print(f"{row.part}: {row.title}, seed {row.seed}: {describe(files[row.part].find(row))}", flush=True)

    print(f"{len(rows)} rows, {len(waiting)} of them to run in {len(jobs)} runs, {at_once} at once", flush=True)
    with stop_after(minutes):
        try:
            run_jobs(jobs, at_once, ["--device", device], keep_finished, lambda line: print(line, flush=True))
        except Interrupted:
            print(f"stopped; {len(waiting)} rows are not finished")
    for job in jobs:
        if job.state is State.FAILED:
            print(f"{job.folder.path} failed: {job.reason}")
    return not waiting


def describe(entry: Mapping[str, Any] | None) -> str:
    """Returns the accuracies of a result in one line."""
    assert entry is not None
    scores = {"test": entry, "val": entry.get("val") or {}}
    return ", ".join(
        f"{name} {found['top1']:.1f} / {found['top5']:.1f}" for name, found in scores.items() if found.get("top1")
    )


def format_table(results: Path, parts: Iterable[str]) -> str:
    """Returns the rows of several parts as one Markdown table: mean ± deviation over seeds, and the standard error.

    The standard error is that of the same test images, which seeds do not reduce, or that of the seeds if it is larger.
    """
    by_row: dict[str, list[dict[str, Any]]] = {}
    for part in parts:
        for entry in read_json_list(results / f"{part}.json"):
            if entry.get("top1") is not None:
                by_row.setdefault(entry["row"], []).append(entry)
    lines = [
        "| row | seeds | steps | top-1 | standard error | top-5 | standard error |",
        "|---|---|---|---|---|---|---|",
    ]
    for row, found in sorted(by_row.items(), key=lambda item: -mean(entry["top1"] for entry in item[1])):
        cells = []
        for name in ("top1", "top5"):
            values = [entry[name] for entry in found]
            spread = f" ± {stdev(values):.1f}" if len(values) > 1 else ""
            of_seeds = stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0
            error = max(of_seeds, mean(entry["standard_error"][name] for entry in found))
            cells += [f"{mean(values):.1f}{spread}", f"{error:.1f}"]
        lines.append(f"| {row} | {len(found)} | {found[0]['iterations']} | {' | '.join(cells)} |")
    return "\n".join(lines)


@contextmanager
def stop_after(minutes: float | None) -> Iterator[None]:
    """Sends this process SIGTERM after some minutes, with which runs save and stop."""
    timer = threading.Timer((minutes or 0) * 60, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    if minutes:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def print_plan(rows: Iterable[Row], results: Path, milliseconds: float) -> None:
    """Prints the number of rows of each part, and the time of their steps on the device if it ran one at a time.

    Args:
        rows: The rows.
        results: Folder of the JSON files.
        milliseconds: Time for one image in a forward pass; a forward and a backward pass count as three.
    """
    total, parts = 0.0, {row.part: Results(results / f"{row.part}.json") for row in rows}
    for part, found in parts.items():
        chosen = [row for row in rows if row.part == part]
        to_run = [row for row in chosen if found.find(row) is None]
        stages = {(row.seed, stage.name): stage for row in to_run for stage in row.stages}
        seconds = sum(step_cost(stage.settings) for stage in stages.values()) * milliseconds / 1000
        total += seconds
        print(f"{part:<12}{len(chosen):4} rows, {len(to_run):4} to run, {seconds / 60:7.1f} min")
    print(f"{'all':<12}{total / 60:31.1f} min")


def step_cost(settings: Mapping[str, Any]) -> float:
    """Returns the forward passes of images in a run; a backward pass counts as two."""
    train = resolve([settings])
    method, batch, mu = train.method, train.train.batch_size, train.train.mu
    if method == "probe":
        return 12_000
    unlabeled = 0 if method in ("supervised", "oracle") else mu * batch * (1 + 3)
    return float(train.train.iterations * (3 * batch + unlabeled))
