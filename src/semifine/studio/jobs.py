"""Starts, monitors and stops the trainings of the studio."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import statistics
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from semifine.config import read_train_settings
from semifine.config.loading import read_method_name
from semifine.errors import UserError
from semifine.files import open_regular
from semifine.methods.registry import is_method_file
from semifine.processes import child_environment
from semifine.runs import accuracy
from semifine.runs.analysis import wilson_interval
from semifine.runs.folder import RunFolder, is_locked, lock_holder, resume_command

STOP_SECONDS = 60
"""Time for a stopped training to save a checkpoint."""


class TrainingJob(ABC):
    """A training in ``folder`` that continues from the run ``old``."""

    def __init__(self, old: Path, folder: Path) -> None:
        self.old = old
        self.folder = folder
        self._stopped = False

    @property
    @abstractmethod
    def is_running(self) -> bool: ...

    @abstractmethod
    def _send(self, number: signal.Signals) -> None: ...

    @property
    def state(self) -> Literal["running", "finished", "stopped", "failed"]:
        if self.is_running:
            return "running"
        folder = RunFolder(self.folder)
        if folder.result.exists():
            return "finished"
        return "stopped" if self._stopped or _last_log_kind(folder.log) == "stopped" else "failed"

    def stop(self) -> None:
        """Lets the training save a checkpoint and exit. Does nothing if it has ended."""
        if not self.is_running:
            return
        self._send(signal.SIGTERM)
        self._stopped = True
        if not self._ends_within(STOP_SECONDS):
            self._send(signal.SIGKILL)  # its last checkpoint stays valid
            self._ends_within(STOP_SECONDS)

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.is_running


class ChildJob(TrainingJob):
    """A training that this studio started."""

    def __init__(self, old: Path, folder: Path, process: subprocess.Popen[bytes]) -> None:
        super().__init__(old, folder)
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def _send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


class DetachedJob(TrainingJob):
    """A training that another studio started, found by the lock of its folder."""

    @property
    def is_running(self) -> bool:
        return is_locked(self.folder)

    def _send(self, number: signal.Signals) -> None:
        process = lock_holder(self.folder)
        if process is None and self.is_running:
            raise UserError(f"The training in {self.folder} runs on another machine: stop it there.")
        if process is not None:
            with suppress(ProcessLookupError):  # it has just ended
                os.kill(process, number)


def _last_log_kind(log: Path) -> str:
    """Returns the kind of the last line of a run's log, which records how the run ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    try:
        return str(json.loads(lines[-1])["kind"])
    except (LookupError, ValueError, TypeError, RecursionError):  # no line, or an incomplete one
        return ""


@dataclass(frozen=True)
class TrainingOptions:
    """Options of the training page."""

    from_weights: bool = True
    """Start with the weights of the old run instead of its initial weights."""
    iterations: int | None = None
    """Training steps; None for the number of the old run."""


class TrainingManager:
    """Runs at most one training at a time, as a separate process.

    If the studio ends in any way, the training saves a checkpoint and ends. Another studio of the run, or of a run
    trained from it, finds the process by the lock of its folder.

    Args:
        run: The run that the studio was started with.
        labels: The label log to train with.
        method_file: The method file that the person who started the studio has named.
        photo_options: Settings of the data source for photos without a run.
    """

    def __init__(
        self, run: Path, labels: Path, method_file: Path | None = None, photo_options: Sequence[str] = ()
    ) -> None:
        self._run = run
        self._photo_options = photo_options
        self._labels = labels
        self._method_file = method_file
        self._lock = threading.Lock()
        self._known_job: TrainingJob | None = None

    def start(self, run: Path, options: TrainingOptions) -> Path:
        """Starts a training from ``run`` and returns the folder of the new run."""
        with self._lock:
            job = self._job
            if job is not None and job.is_running:
                raise UserError(f"A training is already running in {job.folder}.")
            new = next_folder(run)
            command = training_command(run, new, self._labels, options, self._photo_options)
            command += self._method_options(run)
            with open_regular(output_file(new), "xb") as output:
                # Ctrl-C in the terminal must reach only the studio, which then stops the training itself.
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=child_environment(),
                    start_new_session=True,
                )
            self._known_job = ChildJob(run, new, process)
            return new

    def _method_options(self, run: Path) -> list[str]:
        """Returns the option with the method file of a run; the settings of the run alone must not execute it."""
        if not RunFolder(run).settings.exists():
            return []  # the run is a folder of photos
        method = read_method_name(RunFolder(run).settings)
        if not is_method_file(method):
            return []
        if self._method_file is None:
            raise UserError(
                f"The method of this run is the file {method} with code: read the file, then restart the studio with "
                f"--method {shlex.quote(method)}."
            )
        return ["--method", str(self._method_file.absolute())]

    @property
    def _job(self) -> TrainingJob | None:
        """The job that this studio started, or a running job of another studio."""
        if self._known_job is None:
            found = (DetachedJob(self._run, folder) for folder in studio_folders(self._run))
            self._known_job = next((job for job in found if job.is_running), None)
        return self._known_job

    def stop(self) -> None:
        """Lets the training save a checkpoint and exit. Does nothing if none is running."""
        with self._lock:
            if self._known_job is not None:
                self._known_job.stop()

    def close(self) -> None:
        """Stops the training if this studio started it."""
        if isinstance(self._known_job, ChildJob):
            self.stop()

    def status(self) -> dict[str, Any]:
        """Returns state, progress and accuracy as JSON values."""
        job = self._job
        if job is None:
            return {"state": "none", "estimate": read_speed(RunFolder(self._run))}
        state = job.state
        status = {
            "state": state,
            "estimate": read_speed(RunFolder(job.old)),
            **read_progress(RunFolder(job.old), RunFolder(job.folder), finished=state == "finished"),
        }
        if state == "failed":
            status["message"] = last_line(output_file(job.folder))
        if state == "stopped":
            status["message"] = _stopped_message(job.folder)
        return status

    @property
    def finished_run(self) -> Path | None:
        """The folder of the new run if the training has finished."""
        job = self._known_job
        return job.folder if job is not None and job.state == "finished" else None


def _stopped_message(folder: Path) -> str:
    if not RunFolder(folder).settings.exists():
        return "Stopped before the first step."
    command = resume_command(folder, read_method_name(RunFolder(folder).settings))
    return f"Stopped and saved. To continue, run: {command}"


LOG_EVERY = 10
"""Steps between metrics, fewer than the default, because the page shows the progress."""


def training_command(
    run: Path, out: Path, labels: Path, options: TrainingOptions, photo_options: Sequence[str] = ()
) -> list[str]:
    """Returns the command line that trains a new run with the labels.

    Args:
        run: The run to continue from, or a folder of photos without a run.
        out: The new run folder.
        labels: The label log.
        options: Options of the training page.
        photo_options: Settings of the data source for photos without a run.
    """
    command = [sys.executable, "-m", "semifine", "train"]
    is_run = RunFolder(run).settings.exists()
    command += ["--config", str(RunFolder(run).settings)] if is_run else [str(run), *photo_options]
    command += ["--labels", str(labels), "--out", str(out), "--quiet"]
    command += ["--log-every", str(LOG_EVERY)]
    if options.from_weights and is_run:
        command += ["--weights", str(run), "--no-pretrained", "--weights-head", "auto"]
        # A supervised warm-up would undo what the model learned from unlabeled images.
        command += ["--supervised-warmup", "0"]
    if options.iterations is not None:
        command += ["--iterations", str(options.iterations)]
    return command


def next_folder(run: Path) -> Path:
    """Returns the next free folder next to the run: birds-studio-1, birds-studio-2.

    Example:
        >>> next_folder(Path("runs/birds")).name
        'birds-studio-1'
    """
    number = 1
    while (folder := _numbered_folder(run, number)).exists() or output_file(folder).exists():
        number += 1
    return folder


def studio_folders(run: Path) -> Iterator[Path]:
    """Yields the folders of studio trainings that started from the run or from one of its successors."""
    name = re.compile(re.escape(_numbered_folder(run, 0).name.removesuffix("0")) + r"\d+")
    return (path for path in sorted(run.parent.iterdir()) if name.fullmatch(path.name) and path.is_dir())


def _numbered_folder(run: Path, number: int) -> Path:
    base = re.sub(r"-studio-\d+$", "", run.name)
    return run.with_name(f"{base}-studio-{number}")


def output_file(folder: Path) -> Path:
    """Returns the file for the console output of a training, next to the run folder, which the training creates."""
    return folder.with_name(folder.name + ".log")


def read_progress(old: RunFolder, new: RunFolder, finished: bool) -> dict[str, Any]:
    """Returns steps, evaluations, and the accuracy before and after the training as JSON values."""
    result = old.read_result() if old.result.exists() else {}
    before = final_accuracy(result)
    after = final_accuracy(new.read_result()) if finished else None
    iterations = read_train_settings(new.settings).iterations if new.settings.exists() else None
    metrics = _read_metrics(new.path, *_file_version(new.metrics))
    return {
        "run": new.path.name,
        "iterations": iterations,
        "step": metrics["step"],
        "seconds_left": seconds_left(metrics["step_seconds"], metrics["step"], iterations),
        "evaluations": [with_interval(evaluation, result) for evaluation in metrics["evaluations"]],
        "before": before,
        "after": after,
        "difference": compare_accuracies(before, after),
    }


def read_speed(run: RunFolder) -> dict[str, Any] | None:
    """Returns the steps of a run and the median seconds per step; None if the run has no metrics."""
    seconds = _read_metrics(run.path, *_file_version(run.metrics))["step_seconds"]
    if seconds is None:
        return None
    return {"step_seconds": seconds, "iterations": read_train_settings(run.settings).iterations}


def seconds_left(step_seconds: float | None, step: int, iterations: int | None) -> float | None:
    """Returns the time until the last step; None if it is unknown.

    Example:
        >>> seconds_left(0.5, step=20, iterations=100)
        40.0
        >>> seconds_left(None, step=0, iterations=100)
    """
    if step_seconds is None or iterations is None:
        return None
    return step_seconds * max(0, iterations - step)


def with_interval(evaluation: dict[str, Any], result: dict[str, Any]) -> dict[str, Any]:
    """Adds the number of images and the 95 % interval to an evaluation, if the run has recorded the number.

    Args:
        evaluation: Step, split and top-1 accuracy in percent.
        result: The content of ``result.json`` of a run on the same images.

    Example:
        >>> with_interval({"step": 10, "split": "test", "top1": 75.0}, {"images": {"test": 40}})["images"]
        40
    """
    images = int((result.get("images") or {}).get(evaluation["split"]) or 0)
    if not images:
        return evaluation
    interval = wilson_interval(evaluation["top1"], images)
    return {**evaluation, "images": images, "low": round(interval.low, 2), "high": round(interval.high, 2)}


@lru_cache(maxsize=2)  # the old run and the new run
def _read_metrics(run: Path, *version: int) -> dict[str, Any]:  # noqa: ARG001
    """Cached by the version of the file, because every open page polls the progress."""
    records = list(RunFolder(run).read_metrics())
    seconds = [record["step_seconds"] for record in records if record.get("step_seconds")]
    return {
        "step_seconds": statistics.median(seconds) if seconds else None,
        "step": max((int(record["step"]) for record in records), default=0),
        "evaluations": [
            {"step": record["step"], "split": split, "top1": record[f"{split}_top1"]}
            for record in records
            if record.get("kind") == "evaluation"
            for split in ("test", "val")
            if f"{split}_top1" in record
        ],
    }


def _file_version(file: Path) -> tuple[int, ...]:
    if not file.exists():
        return ()
    stat = file.stat()
    return stat.st_size, stat.st_mtime_ns


def final_accuracy(result: dict[str, Any]) -> dict[str, Any] | None:
    """Returns the top-1 accuracy of the final model with its 95 % interval; None if it was not measured.

    Example:
        >>> final_accuracy({"top1": None, "val": {"top1": 80.0}, "images": {"val": 40}})["text"]
        '80.0 % (95 % interval 65.2 to 89.5, 40 images)'
    """
    found = accuracy.final_accuracy(result)
    if found is None:
        return None
    interval = found.interval
    return {
        "split": found.title,
        "top1": found.top1,
        "images": found.images,
        "low": round(interval.low, 2) if interval else None,
        "high": round(interval.high, 2) if interval else None,
        "text": found.describe(),
    }


def compare_accuracies(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    """States whether the accuracy changed by more than chance; empty if the images of both accuracies differ.

    Example:
        >>> before, after = ({"split": "test", "top1": top1, "images": 60} for top1 in (60.0, 61.7))
        >>> compare_accuracies(before, after)
        '+1.7 points, within the 95 % margin of chance (±17.0)'
    """
    if not before or not after or any(before[key] != after[key] for key in ("split", "images")):
        return ""
    return accuracy.describe_difference(before["top1"], after["top1"], after["images"])


def last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "The training ended without a message."
