"""A training that the page starts: a run beside the old one, from its settings, with the labels of the log."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifine.errors import UserError
from semifine.run_folder import RunFolder
from semifine.studio.progress import last_line, show_progress
from semifine.studio.trainings import FoundTraining, OwnTraining, Training

LOG_EVERY = 10
"""Steps between signs of life: fewer than elsewhere, because somebody is looking."""


@dataclass(frozen=True)
class Request:
    """How to train on."""

    from_weights: bool = True
    """Begin with what the old run learnt, instead of where it began."""
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
        command += ["--labelled-first", "0"]  # it knows enough already; labels alone would make it forget
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
