"""Predictions on their way to a file: a line each as soon as it is made, so that a stopped job can go on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TextIO

from semifine.errors import UserError
from semifine.file_lock import try_to_lock

Record = dict[str, Any]


class Journal:
    """JSON lines beside the output: first what was asked for, then one record an image, in order.

    From its beginning until it is closed no other job can write to the same output.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".unfinished")
        self._file: TextIO | None = None
        self._is_bare = False
        """Whether it was begun here and holds no record yet."""

    def begin(self, asked: Record, resume: bool) -> bool:
        """Starts the journal, or goes on with the one that is there; nothing is ever overwritten.

        Gives back whether it goes on.
        """
        self._check_output()
        self._file = self.path.open("a", encoding="utf-8")
        if try_to_lock(self._file.fileno()) is False:
            raise UserError(f"Another job is writing {self.out} now: wait for it, or choose another --out.")
        self._check_output()  # a job that had the lock may have ended meanwhile
        if not self.path.stat().st_size:
            self.append([asked])
            self._is_bare = True
            return False
        if not resume:
            raise UserError(f"{self.path} holds unfinished predictions: go on with --resume, or remove it.")
        if next(self._whole_lines(), None) != asked:
            raise UserError(f"{self.path} was begun with another model or other options: repeat them, or remove it.")
        return True

    def append(self, records: list[Record]) -> None:
        """Keeps a batch, whatever becomes of this program.

        Nothing waits for the disk: after a power failure the last seconds' images are predicted again.
        """
        assert self._file is not None
        self._is_bare = False
        self._file.writelines(json.dumps(record) + "\n" for record in records)
        self._file.flush()

    def records(self) -> Iterator[Record]:
        """All records so far, one after the other; a torn end is cut off when they have been read."""
        lines = self._whole_lines()
        next(lines, None)
        return lines

    def finish(self) -> None:
        """All is done that can be done."""
        self._is_bare = False
        self.path.unlink()

    def close(self) -> None:
        if self._is_bare:
            self.path.unlink(missing_ok=True)  # there is nothing to go on with, so nobody needs to choose --resume
        if self._file is not None:
            self._file.close()

    def _check_output(self) -> None:
        if self.out.exists():
            raise UserError(f"{self.out} exists already; choose another --out.")

    def _whole_lines(self) -> Iterator[Record]:
        """The records; a torn end is cut off, so that the next batch begins on a line of its own."""
        good = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                good += len(line)
                yield record
        if 0 < good < self.path.stat().st_size:  # else it is no journal, and not ours to change
            os.truncate(self.path, good)
