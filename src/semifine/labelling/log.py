"""The log of labels: one SQLite file that events are appended to, the moment they happen."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from semifine.errors import UserError
from semifine.labelling.events import Event

FORMAT = 1
# Marks the file as ours; `file` and other programs read it at byte 68 of every SQLite file.
APPLICATION_ID = 0x5EF1_1AB5
SQLITE_BEGINS = b"SQLite format 3\x00"

COLUMNS = "number, time, person, path, kind, class, seen, undoes, shown"
SCHEMA = f"""
CREATE TABLE events (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  time TEXT NOT NULL,
  person TEXT NOT NULL,
  path TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('label', 'none_of_these', 'unsure', 'skip', 'undo')),
  class TEXT CHECK ((class IS NOT NULL) = (kind = 'label')),
  seen INTEGER NOT NULL,
  undoes INTEGER REFERENCES events (number) CHECK ((undoes IS NOT NULL) = (kind = 'undo')),
  shown TEXT NOT NULL
);
CREATE INDEX events_by_path ON events (path);
CREATE TRIGGER nothing_changes BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;
CREATE TRIGGER nothing_goes BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the log only grows'); END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


class LabelLog:
    """Appends and reads events; threads and processes may share a file."""

    def __init__(self, file: Path) -> None:
        """Opens the log, and begins it where the file does not exist."""
        self.file = file
        self._lock = threading.Lock()
        if file.exists():
            check_is_log(file)
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None, timeout=30)
            self._begin()
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"Cannot open the labels {file}: {error}. Name another file with --db.") from error

    def _begin(self) -> None:
        # Every label is on the disk before its answer goes out, even when the power fails right after.
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():  # of two programs that start at once, one makes the table
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _statements(SCHEMA):
                    self._connection.execute(statement)
        # Only now, so that the marks of the file are in the file itself from the first moment.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # Into the file itself at every commit: somebody may copy it, and no other, after a crash.
        self._connection.execute("PRAGMA wal_autocheckpoint = 1")

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Writes all of them or none, and returns them with their numbers and time."""
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        try:
            with self._lock, self._transaction():
                return [self._insert(replace(event, time=now)) for event in events]
        except sqlite3.OperationalError as error:
            raise UserError(f"The label could not be written to {self.file}: {error}.") from error

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _insert(self, event: Event) -> Event:
        shown = json.dumps(event.shown, ensure_ascii=False)
        values = (event.person, event.path, event.kind, event.class_name, event.seen, event.undoes, shown)
        cursor = self._connection.execute(
            "INSERT INTO events (time, person, path, kind, class, seen, undoes, shown) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (event.time, *values),
        )
        assert cursor.lastrowid is not None
        return replace(event, number=cursor.lastrowid)

    def events(self, after: int = 0) -> list[Event]:
        """The events with a higher number, in order."""
        with self._lock:
            return _read(self._connection, after)

    def close(self) -> None:
        self._connection.close()


def read_events(file: Path) -> list[Event]:
    """All events of a log, which is not changed by it."""
    check_is_log(file)
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            return _read(connection, 0)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UserError(f"Cannot read the labels {file}: {error}.") from error


def is_sqlite(file: Path) -> bool:
    """Whether a file says of itself that it is an SQLite data base."""
    with file.open("rb") as stream:
        return stream.read(len(SQLITE_BEGINS)) == SQLITE_BEGINS


def check_is_log(file: Path) -> None:
    """Raises UserError for a file that is no log of labels, or of a later format; an empty one can become a log."""
    try:
        with file.open("rb") as stream:
            header = stream.read(100)
    except OSError as error:
        raise UserError(f"Cannot read the labels {file}: {error.strerror or error}.") from error
    if not header:
        return
    if not header.startswith(SQLITE_BEGINS) or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise UserError(f"{file} is not a log of labels that the studio made; name another file.")
    version = int.from_bytes(header[60:64], "big")
    if version > FORMAT:
        raise UserError(f"{file} was made by a later version of semifine (format {version}); update semifine.")


def _read(connection: sqlite3.Connection, after: int) -> list[Event]:
    query = f"SELECT {COLUMNS} FROM events WHERE number > ? ORDER BY number"
    return [
        Event(
            number=number,
            time=time,
            person=person,
            path=path,
            kind=kind,
            class_name=class_name,
            seen=seen,
            undoes=undoes,
            shown=json.loads(shown),
        )
        for number, time, person, path, kind, class_name, seen, undoes, shown in connection.execute(query, (after,))
    ]


def _statements(script: str) -> list[str]:
    """The statements of a script; those of a trigger end inside a line."""
    return [part.strip() for part in script.split(";\n") if part.strip()]
