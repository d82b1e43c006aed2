"""A training as the studio sees it from outside: a program that runs, ends, and can be stopped."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Literal

from semifine.engine.lock import holder, is_locked
from semifine.errors import UserError
from semifine.run_folder import RunFolder

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
        process = holder(self.folder)
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
