"""Trainings that the studio starts, watches and stops."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from semifine.config import read_train_settings
from semifine.errors import UserError
from semifine.runs.folder import RunFolder, is_locked, lock_holder


def show_progress(old: RunFolder, new: RunFolder, finished: bool) -> dict[str, Any]:
    """Steps, accuracies on the way, before and after, in plain values."""
    return {
        "run": new.path.name,
        "iterations": read_train_settings(new.settings).iterations if new.settings.exists() else None,
        **_course(new.path, *_version(new.metrics)),
        "before": accuracy_in(old.read_result()),
        "after": accuracy_in(new.read_result()) if finished else None,
    }


@lru_cache(maxsize=1)
def _course(run: Path, *version: int) -> dict[str, Any]:  # noqa: ARG001
    """Read once for each version of the file: every open page asks every other second."""
    records = list(RunFolder(run).read_metrics())
    return {
        "step": max((int(record["step"]) for record in records), default=0),
        "evaluations": [
            {"step": record["step"], "split": split, "top1": record[f"{split}_top1"]}
            for record in records
            if record.get("kind") == "evaluation"
            for split in ("test", "val")
            if f"{split}_top1" in record
        ],
    }


def _version(file: Path) -> tuple[int, ...]:
    if not file.exists():
        return ()
    now = file.stat()
    return now.st_size, now.st_mtime_ns


def accuracy_in(result: dict[str, Any]) -> dict[str, Any] | None:
    """Top-1 of the last model on test images, else on validation images; None where there are neither."""
    if result.get("top1") is not None:
        return {"split": "test", "top1": result["top1"]}
    return {"split": "val", "top1": result["val"]["top1"]} if "val" in result else None


def last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "The training ended without a word."


PATIENCE = 60
"""Seconds that a stopped training may take to save itself."""


class Training(ABC):
    """Trains in ``folder``, on from the run ``old``."""

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
        return "stopped" if self._stopped or _last_kind(folder.log) == "stopped" else "failed"

    def stop(self) -> None:
        """Lets it save itself and end; nothing happens where it has ended."""
        if not self.is_running:
            return
        self._send(signal.SIGTERM)
        self._stopped = True
        if not self._ends_within(PATIENCE):
            self._send(signal.SIGKILL)  # its last checkpoint stays valid
            self._ends_within(PATIENCE)

    def _ends_within(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while self.is_running and time.monotonic() < deadline:
            time.sleep(0.05)
        return not self.is_running


class OwnTraining(Training):
    """One that this studio began."""

    def __init__(self, old: Path, folder: Path, process: subprocess.Popen[bytes]) -> None:
        super().__init__(old, folder)
        self._process = process

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def _send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)


class FoundTraining(Training):
    """One that was running when this studio came: known by the lock of its folder."""

    @property
    def is_running(self) -> bool:
        return is_locked(self.folder)

    def _send(self, number: signal.Signals) -> None:
        process = lock_holder(self.folder)
        if process is None and self.is_running:
            raise UserError(f"The training in {self.folder} runs on another machine: stop it there.")
        if process is not None:
            with suppress(ProcessLookupError):  # it ended just now
                os.kill(process, number)


def _last_kind(log: Path) -> str:
    """Of the last line of a run's log: how it ended."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    try:
        return str(json.loads(lines[-1])["kind"])
    except (IndexError, ValueError, KeyError, TypeError):  # it ended before a word, or in the middle of one
        return ""


LOG_EVERY = 10
"""Steps between signs of life: fewer than elsewhere, because somebody is looking."""


@dataclass(frozen=True)
class Request:
    """How to train on."""

    from_weights: bool = True
    """Begin with what the old run learned, instead of where it began."""
    iterations: int | None = None
    """Training steps; None for as many as the old run had."""


class Retraining:
    """At most one training at a time, as a program of its own.

    It outlives a studio that is killed; the next studio of the run, or of one that came from it, takes it up.
    """

    def __init__(self, run: Path, labels: Path) -> None:
        self._run = run
        self._labels = labels
        self._lock = threading.Lock()
        self._known: Training | None = None

    def start(self, run: Path, request: Request) -> Path:
        """Starts and returns the folder of the new run."""
        with self._lock:
            training = self._training
            if training is not None and training.is_running:
                raise UserError(f"A training is running already, in {training.folder}.")
            new = next_folder(run)
            command = training_command(run, new, self._labels, request)
            with messages_of(new).open("wb") as messages:
                # A session of its own: Ctrl-C in the terminal is for the studio, which then stops it with care.
                process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
                )
            self._known = OwnTraining(run, new, process)
            return new

    @property
    def _training(self) -> Training | None:
        """The one that was started, else one that is found running, also if it was found late."""
        if self._known is None:
            found = (FoundTraining(self._run, folder) for folder in studio_folders(self._run))
            self._known = next((training for training in found if training.is_running), None)
        return self._known

    def stop(self) -> None:
        """Lets the training save itself and end; nothing happens where none is running."""
        with self._lock:
            if self._known is not None:
                self._known.stop()

    def close(self) -> None:
        """Stops a training of this studio's own; one that was found may be watched from another studio."""
        if isinstance(self._known, OwnTraining):
            self.stop()

    def status(self) -> dict[str, Any]:
        """What the page shows of the training, in plain values."""
        training = self._training
        if training is None:
            return {"state": "none"}
        state = training.state
        status = {
            "state": state,
            **show_progress(RunFolder(training.old), RunFolder(training.folder), finished=state == "finished"),
        }
        if state == "failed":
            status["message"] = last_line(messages_of(training.folder))
        if state == "stopped":
            status["message"] = _how_to_go_on(training.folder)
        return status

    @property
    def finished_run(self) -> Path | None:
        """The folder of the new run, once it is finished."""
        training = self._known
        return training.folder if training is not None and training.state == "finished" else None


def _how_to_go_on(folder: Path) -> str:
    if not RunFolder(folder).settings.exists():
        return "Stopped before it began."
    return f"Stopped and saved. Go on with: semifine train --out {shlex.quote(str(folder))} --resume"


def training_command(run: Path, out: Path, labels: Path, request: Request) -> list[str]:
    """The command that a person could type instead."""
    command = [sys.executable, "-m", "semifine", "train", "--config", str(RunFolder(run).settings)]
    command += ["--labels", str(labels), "--out", str(out), "--quiet"]
    command += ["--log-every", str(LOG_EVERY)]
    if request.from_weights:
        command += ["--weights", str(run), "--no-pretrained", "--weights-head", "auto"]
        command += ["--supervised-warmup", "0"]  # it knows enough already; labels alone would make it forget
    if request.iterations is not None:
        command += ["--iterations", str(request.iterations)]
    return command


def next_folder(run: Path) -> Path:
    """A new folder beside the run: birds, birds-studio-1, birds-studio-2."""
    number = 1
    while (folder := _numbered(run, number)).exists() or messages_of(folder).exists():
        number += 1
    return folder


def studio_folders(run: Path) -> Iterator[Path]:
    """The folders that studios made for the run, or for one that came from it."""
    name = re.compile(re.escape(_numbered(run, 0).name.removesuffix("0")) + r"\d+")
    return (path for path in sorted(run.parent.iterdir()) if name.fullmatch(path.name) and path.is_dir())


def _numbered(run: Path, number: int) -> Path:
    base = re.sub(r"-studio-\d+$", "", run.name)
    return run.with_name(f"{base}-studio-{number}")


def messages_of(folder: Path) -> Path:
    """What a training says, beside its folder, which it makes itself."""
    return folder.with_name(folder.name + ".log")
