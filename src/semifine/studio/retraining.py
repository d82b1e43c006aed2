"""A training that the page starts: a run beside the old one, from its settings, with the labels of the log."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from semifine.config import read_train_settings
from semifine.errors import UserError
from semifine.run_folder import RunFolder

PATIENCE = 60
"""Seconds that a stopped training may take to save itself."""


@dataclass(frozen=True)
class Request:
    """How to train on."""

    from_weights: bool = True
    """Begin with what the old run learnt, instead of where it began."""
    iterations: int | None = None
    """Training steps; None for as many as the old run had."""


class Retraining:
    """At most one training at a time, as a program of its own."""

    def __init__(self, labels: Path) -> None:
        self._labels = labels
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._old = self._new = self._messages = Path()
        self._stopped = False

    def start(self, run: Path, request: Request) -> Path:
        """Starts and returns the folder of the new run."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise UserError(f"A training is running already, in {self._new}.")
            self._old, self._new = run, next_folder(run)
            self._messages = self._new.with_name(self._new.name + ".log")
            command = training_command(run, self._new, self._labels, request)
            with self._messages.open("wb") as messages:
                # A session of its own: Ctrl-C in the terminal is for the studio, which then stops it with care.
                self._process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=messages, stderr=messages, start_new_session=True
                )
            self._stopped = False
            return self._new

    def stop(self) -> None:
        """Lets the training save itself and end; nothing happens where none is running."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                return
            self._stopped = True
            self._process.terminate()
            try:
                self._process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                self._process.kill()  # its last checkpoint stays valid
                self._process.wait()

    def status(self) -> dict[str, Any]:
        """What the page shows of the training, in plain values."""
        if self._process is None:
            return {"state": "none"}
        code = self._process.poll()
        folder = RunFolder(self._new)
        records = list(folder.read_metrics())
        status: dict[str, Any] = {
            "state": "running"
            if code is None
            else "finished"
            if code == 0
            else "stopped"
            if self._stopped
            else "failed",
            "run": self._new.name,
            "step": max((int(record["step"]) for record in records), default=0),
            "iterations": read_train_settings(folder.settings).iterations if folder.settings.exists() else None,
            "evaluations": [
                {"step": record["step"], "split": split, "top1": record[f"{split}_top1"]}
                for record in records
                if record.get("kind") == "evaluation"
                for split in ("test", "val")
                if f"{split}_top1" in record
            ],
            "before": accuracy_in(RunFolder(self._old).read_result()),
            "after": accuracy_in(folder.read_result()) if code == 0 else None,
        }
        if status["state"] == "failed":
            status["message"] = last_line(self._messages)
        if status["state"] == "stopped":
            status["message"] = f"Stopped and saved. Go on with: semifine train --out {self._new} --resume"
        return status

    def _state(self, code: int | None) -> str:
        if code is None:
            return "running"
        if code == 0:
            return "finished"
        return "stopped" if self._stopped else "failed"

    @property
    def finished_run(self) -> Path | None:
        """The folder of the new run, once it is finished."""
        return self._new if self._process is not None and self._process.poll() == 0 else None


def training_command(run: Path, out: Path, labels: Path, request: Request) -> list[str]:
    """The command that a person could type instead."""
    command = [sys.executable, "-m", "semifine", "train", "--config", str(RunFolder(run).settings)]
    command += ["--labels", str(labels), "--out", str(out), "--quiet"]
    if request.from_weights:
        command += ["--weights", str(run), "--no-pretrained", "--weights-head", "auto"]
    if request.iterations is not None:
        command += ["--iterations", str(request.iterations)]
    return command


def next_folder(run: Path) -> Path:
    """A new folder beside the run: birds, birds-studio-1, birds-studio-2."""
    base = re.sub(r"-studio-\d+$", "", run.name)
    number = 1
    while any((run.parent / f"{base}-studio-{number}{end}").exists() for end in ("", ".log")):
        number += 1
    return run.parent / f"{base}-studio-{number}"


def accuracy_in(result: dict[str, Any]) -> dict[str, Any] | None:
    """Top-1 of the last model on test images, else on validation images; None where there are neither."""
    if result.get("top1") is not None:
        return {"split": "test", "top1": result["top1"]}
    return {"split": "val", "top1": result["val"]["top1"]} if "val" in result else None


def last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "The training ended without a word."
