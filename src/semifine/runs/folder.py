"""The folder of a training run: layout, lock and small files."""

from __future__ import annotations

import json
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, Any

from semifine.errors import UserError
from semifine.files import (
    check_is_no_pipe,
    create_folder,
    damage_as_user_error,
    errors_name,
    lock_file,
    open_regular,
    parse_json,
    read_json,
    read_text,
    sync_to_disk,
    write_atomically,
)
from semifine.methods.registry import is_method_file
from semifine.runs.schemas import CLASSES, METRICS, RESULT, check_types

MAX_METRICS_BYTES = 256 << 20
MAX_STEP = 1 << 53
LOCK = ".lock"
LOCK_ATTEMPTS = 3
"""Attempts to acquire the lock, because ``is_locked`` in another process holds it briefly."""


@contextmanager
def locked(folder: Path, log: Callable[[str], object] = lambda _: None) -> Iterator[None]:
    """Holds the lock of a run folder. The system releases it if the process is killed.

    Args:
        folder: The run folder, which is created if it does not exist.
        log: Receives a warning if the file system has no locks.

    Raises:
        UserError: If another training holds the lock.
    """
    create_folder(folder)
    with open_regular(folder / LOCK, "a") as file:  # mode "a" keeps the line of the holder if the lock is refused
        is_held = lock_file(file, tries=LOCK_ATTEMPTS)
        if is_held is False:
            raise UserError(f"Another training is running in {folder}: wait for it, or choose another --out.")
        if is_held is None:
            log(f"The file system of {folder} has no locks: make sure that no other training is started there.")
        file.truncate(0)
        file.write(f"{os.getpid()} {socket.gethostname()}\n")
        file.flush()
        yield


def is_locked(folder: Path) -> bool:
    """Whether a training is running in the folder."""
    try:
        with _open_lock(folder / LOCK) as file:
            return lock_file(file, tries=LOCK_ATTEMPTS) is False
    except FileNotFoundError:
        return False


def _is_step(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MAX_STEP


def _open_lock(path: Path) -> IO[bytes]:
    """Opens the lock file for writing if permitted, because an exclusive lock on NFS needs that."""
    try:
        return path.open("r+b")
    except PermissionError:
        return path.open("rb")


def lock_holder(folder: Path) -> int | None:
    """Returns the process id of the training in the folder; None if there is none on this machine."""
    if not is_locked(folder):
        return None
    process, _, machine = (folder / LOCK).read_text(encoding="utf-8").strip().partition(" ")
    return int(process) if process.isdigit() and machine == socket.gethostname() else None


def resume_command(out: Path, method: str) -> str:
    """Returns the command that continues a run, with its method file if it has one.

    Example:
        >>> resume_command(Path("runs/birds"), "soc")
        'semifine train --out runs/birds --resume'
    """
    words = ["semifine", "train", "--out", str(out), "--resume", *(["--method", method] * is_method_file(method))]
    return shlex.join(words)


class RunFolder:
    """Paths and small files of a run.

    Example:
        >>> RunFolder(Path("runs/birds")).result.name
        'result.json'
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings = path / "settings.yaml"
        self.environment = path / "environment.json"
        self.log = path / "log.jsonl"
        self.metrics = path / "metrics.jsonl"
        self.result = path / "result.json"
        self.probe = path / "probe.json"
        self.classes = path / "classes.json"
        self.weights = path / "weights.json"
        self.labels = path / "labels.csv"
        self.class_stats = path / "classes.safetensors"
        self.calibration = path / "calibration.json"
        self.data = path / "data.json"
        self.samples = path / "samples.parquet"
        self.label_check = path / "label_check.csv"
        self.loggers = path / "loggers.json"
        self.checkpoints = path / "checkpoints"
        self.trial = path / "trial"

    @staticmethod
    def open(path: Path) -> RunFolder:
        """Opens the folder of a run, finished or not."""
        folder = RunFolder(path)
        if not folder.settings.is_file():
            raise UserError(f"{path} is not a run folder: it has no settings.yaml.")
        return folder

    def samples_at(self, step: int) -> Path:
        """Path of the sample statistics of an evaluation."""
        return self.path / "samples" / f"{step:08d}.parquet"

    def append_metrics(self, record: dict[str, Any]) -> None:
        """Appends a record to ``metrics.jsonl``."""
        with errors_name(self.metrics), open_regular(self.metrics, "a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def sync_metrics(self) -> int:
        """Syncs ``metrics.jsonl`` to disk, as a checkpoint requires, and returns the number of records."""
        if not self.metrics.exists():
            return 0
        sync_to_disk(self.metrics)
        sync_to_disk(self.path)
        return self.metrics.read_bytes().count(b"\n")

    def read_metrics(self) -> Iterator[dict[str, Any]]:
        """Yields the records of ``metrics.jsonl`` in order, without an incomplete last line."""
        if not self.metrics.exists():
            return
        with damage_as_user_error(self.metrics):
            check_is_no_pipe(self.metrics)
            lines = read_text(self.metrics, MAX_METRICS_BYTES, errors="replace").split("\n")
        while lines and not lines[-1]:
            lines.pop()
        for number, line in enumerate(lines, start=1):
            try:
                record = parse_json(line, self.metrics)
            except (ValueError, RecursionError):
                if number == len(lines):
                    return
                record = None
            if not isinstance(record, dict) or not _is_step(record.get("step")):
                raise UserError(
                    f"{self.metrics} is damaged: line {number} is not a record ({line[:60]}): remove this line to "
                    "continue without it."
                )
            check_types(self.metrics, record, METRICS, key=f"line {number}")
            yield record

    def truncate_metrics(self, step: int, saved: int | None = None) -> int:
        """Removes the records of later steps, which a resumed run logs again.

        Args:
            step: Step of the checkpoint from which the run resumes.
            saved: Number of records when the checkpoint was saved. Later lines, which a power failure may have
                damaged, are not read.

        Returns:
            The number of saved records that the file has lost.
        """
        kept = [json.dumps(record) for record in islice(self.read_metrics(), saved) if record["step"] <= step]
        write_atomically(self.metrics, "".join(line + "\n" for line in kept))
        return max(0, (saved or 0) - len(kept))

    def read_result(self) -> dict[str, Any]:
        """Reads ``result.json``; before the end of training the result of the probe, if the run has one.

        Raises:
            UserError: If the run has no result yet.
        """
        path = self.result if self.result.is_file() or not self.probe.is_file() else self.probe
        if not path.is_file():
            raise UserError(f"{self.path} has no result.json yet: the run is not finished; continue it with --resume.")
        result = read_json(path)
        check_types(path, result, RESULT)
        required = ("method", "data", "seed", *(["top5"] if result.get("top1") is not None else []))
        missing = {key for key in required if result.get(key) is None}
        if missing:
            raise UserError(f"{path} is damaged: the key {min(missing)!r} is missing; restore the file.")
        return result

    def read_class_names(self) -> list[str]:
        """Reads the names of the classes in the order of their ids."""
        content = read_json(self.classes)
        if not isinstance(content.get("names"), list):
            raise UserError(f"{self.classes} is damaged: it has no list of names; restore the file.")
        check_types(self.classes, content, CLASSES)
        return [str(name) for name in content["names"]]

    def check_classes(self, names: Sequence[str]) -> None:
        """Raises ``UserError`` if the data set has other classes, or another order of classes, than the run."""
        trained = self.read_class_names()
        if trained == list(names):
            return
        missing, new = sorted(set(trained) - set(names))[:1], sorted(set(names) - set(trained))[:1]
        changes = [f"missing: {name}" for name in missing] + [f"new: {name}" for name in new] or ["another order"]
        raise UserError(
            f"The data set of the run in {self.path} has changed its classes ({', '.join(changes)}): restore them, or "
            "train another run."
        )
