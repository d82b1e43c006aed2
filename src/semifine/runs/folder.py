"""The folder of a training run: its layout, its lock, and atomic writes."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from semifine.errors import UserError
from semifine.files import lock_file, read_json, write_atomically

LOCK = ".lock"
TRIES = 3
"""Attempts to take the lock: ``is_locked`` of another process holds it for a moment."""


@contextmanager
def locked(folder: Path, log: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Holds the folder's lock; the system releases it when the process ends, however it ends.

    On a file system without locks it logs a warning and goes on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / LOCK).open("a") as file:  # appending keeps the holder's line if the lock is refused
        is_held = lock_file(file, tries=TRIES)
        if is_held is False:
            raise UserError(f"Another training is running in {folder}; wait for it, or choose another --out.")
        if is_held is None:
            log(f"The file system of {folder} has no locks: make sure that no other training is started there.")
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a training is running in the folder now."""
    try:
        with _open_lock(folder / LOCK) as file:
            return lock_file(file, tries=TRIES) is False
    except FileNotFoundError:
        return False


def _open_lock(path: Path) -> IO[bytes]:
    """Opened for writing where permitted: NFS needs that for an exclusive lock."""
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")


def lock_holder(folder: Path) -> int | None:
    """The process id of the training in the folder; None if there is none, or if it runs on another machine."""
    if not is_locked(folder):
        return None
    process, _, machine = (folder / LOCK).read_text(encoding="utf-8").strip().partition(" ")
    return int(process) if process.isdigit() and machine == socket.gethostname() else None


class RunFolder:
    """Paths and small files of a run; knows nothing of training."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"
        self.environment = path / "environment.json"
        self.log = path / "log.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.classes = path / "classes.json"
        self.weights = path / "weights.json"
        self.labels = path / "labels.csv"
        self.class_stats = path / "classes.safetensors"
        self.calibration = path / "calibration.json"
        self.data = path / "data.json"
        self.samples = path / "samples.parquet"
        self.loggers = path / "loggers.json"
        self.checkpoints = path / "checkpoints"

    @staticmethod
    def open(path: Path) -> RunFolder:
        """A folder that a run has been started in."""
        folder = RunFolder(path)
        if not folder.settings.is_file():
            raise UserError(f"{path} is not a run folder: it has no settings.yaml.")
        return folder

    def samples_at(self, step: int) -> Path:
        """The facts at one evaluation."""
        return self.path / "samples" / f"{step:08d}.parquet"

    def append_metrics(self, record: dict[str, Any]) -> None:
        with self.metrics.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """The records in order; a last line that a crash cut short is left out."""
        if not self.metrics.exists():
            return
        lines = self.metrics.read_text(encoding="utf-8", errors="replace").split("\n")
        while lines and not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, start=1):
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                if number == len(lines):
                    return
                record = None
            if not isinstance(record, dict) or not isinstance(record.get("step"), int):
                raise UserError(
                    f"{self.metrics} is damaged: line {number} is no record of training ({line[:60]}). What the others "
                    "say is untouched; take this line out to go on without it."
                )
            yield record

    def keep_metrics_until(self, step: int) -> None:
        """Drops what was logged after a checkpoint, because the resumed run will log it again."""
        kept = [json.dumps(record) for record in self.read_metrics() if record["step"] <= step]
        write_atomically(self.metrics, "".join(line + "\n" for line in kept))

    def read_result(self) -> dict[str, Any]:
        if not self.result.is_file():
            raise UserError(f"{self.path} has no result.json yet: the run is not finished; continue it with --resume.")
        result = read_json(self.result)
        missing = {"method", "data", "seed", *(["top5"] if result.get("top1") is not None else [])} - result.keys()
        if missing:
            raise UserError(f"{self.result} is damaged: it does not say {min(missing)!r}.")
        return result

    def read_class_names(self) -> list[str]:
        """The classes that the run learned, in the order of their ids."""
        names = read_json(self.classes).get("names")
        if not isinstance(names, list):
            raise UserError(f"{self.classes} is damaged: it has no list of names.")
        return [str(name) for name in names]

    def check_classes(self, names: Sequence[str]) -> None:
        """What the run calls class 3 must still be that in its data, where folders may have come or gone."""
        learned = self.read_class_names()
        if learned == list(names):
            return
        gone, new = sorted(set(learned) - set(names))[:1], sorted(set(names) - set(learned))[:1]
        changes = [f"gone: {name}" for name in gone] + [f"new: {name}" for name in new] or ["their order"]
        raise UserError(
            f"The data of the run in {self.path} has other classes than it learned ({', '.join(changes)}): bring them "
            "back as they were, or train another run."
        )
