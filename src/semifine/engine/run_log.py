"""The log of a run folder: what was said, every warning and every ending, with their times."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import warnings
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semifine.engine.display import Display
from semifine.engine.interruption import Interrupted
from semifine.version import code_version


class RunLog:
    """Appends one JSON object a line; processes of a run share the file."""

    def __init__(self, path: Path, process: int) -> None:
        self._path = path
        self._process = process

    def write(self, kind: str, text: str) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = json.dumps({"time": now, "process": self._process, "kind": kind, "text": text}, ensure_ascii=False)
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("ab+") as file:
            if file.tell() and not self._ends_a_line(file):
                line = "\n" + line  # the line before was cut short when a process or the disk ended
            file.write(line.encode("utf-8", "backslashreplace") + b"\n")

    @staticmethod
    def _ends_a_line(file: Any) -> bool:
        file.seek(-1, os.SEEK_END)
        return bool(file.read(1) == b"\n")


@contextlib.contextmanager
def recording(path: Path, display: Display, process: int) -> Iterator[None]:
    """For the time of the context what the first process says, and what any warns of and raises, goes to the log."""
    log = RunLog(path, process)
    log.write("start", f"semifine {code_version()}, process id {os.getpid()}")
    show, handler = warnings.showwarning, _LogHandler(log)

    def show_and_log(message: Warning | str, category: type[Warning], *where: Any) -> None:
        log.write("warning", f"{category.__name__}: {message}")
        show(message, category, *where)

    warnings.showwarning = show_and_log  # type: ignore[assignment]
    logging.getLogger().addHandler(handler)
    try:
        with display.logged(lambda text: log.write("said", text)) if process == 0 else contextlib.nullcontext():
            yield
        log.write("end", "finished")
    except BaseException as error:
        with contextlib.suppress(OSError):  # a full disk, say, is itself what ended the run
            log.write("stopped" if isinstance(error, Interrupted) else "error", str(error) or type(error).__name__)
        raise
    finally:
        logging.getLogger().removeHandler(handler)
        warnings.showwarning = show


class _LogHandler(logging.Handler):
    """Warnings of libraries that speak through Python's logging."""

    def __init__(self, log: RunLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.write("warning", record.getMessage())
