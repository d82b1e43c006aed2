"""The label log: an append-only SQLite file of labeling events, and the labels that follow from them.

It uses the standard library only.
"""

from __future__ import annotations

import json
import re
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semifine.data.label_classes import resolve_classes
from semifine.data.label_events import (
    CLASS_KINDS,
    KINDS,
    KINDS_WITH_CLASS,
    KINDS_WITH_TARGET,
    LABEL,
    NO_LABEL,
    NONE_OF_THESE,
    SKIP,
    UNDO,
    UNSURE,
    VERDICTS,
    CurrentLabel,
    Event,
    Replaced,
    current_label,
)
from semifine.errors import UserError
from semifine.files import create_folder

__all__ = [
    "CLASS_KINDS",
    "KINDS",
    "LABEL",
    "NONE_OF_THESE",
    "NO_LABEL",
    "SKIP",
    "UNDO",
    "UNSURE",
    "VERDICTS",
    "CurrentLabel",
    "Event",
    "LabelLog",
    "Replaced",
    "agreed_labels",
    "check_is_log",
    "current_label",
    "current_labels",
    "is_sqlite",
    "read_events",
]


MAX_SECONDS = 60.0
"""Time limit of a statement. A million events are read in a few seconds."""
PROGRESS_STEPS = 100_000
"""Number of SQLite's instructions between checks of the time."""
MAX_VALUE_BYTES = 10 << 20
"""Length of the longest text in an event."""
FORMAT = 2
APPLICATION_ID = 0x5EF1_1AB5
"""Identifies a label log; stored at byte 68 of the SQLite file."""
SQLITE_HEADER = b"SQLite format 3\x00"

COLUMNS = "number, time, person, path, kind, class, target, seen, undoes, shown"
SCHEMA = f"""
CREATE TABLE events (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  time TEXT NOT NULL,
  person TEXT NOT NULL,
  path TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN {KINDS}),
  class TEXT CHECK ((class IS NOT NULL) = (kind IN {KINDS_WITH_CLASS})),
  target TEXT CHECK ((target IS NOT NULL) = (kind IN {KINDS_WITH_TARGET})),
  seen INTEGER NOT NULL,
  undoes INTEGER REFERENCES events (number) CHECK ((undoes IS NOT NULL) = (kind = 'undo')),
  shown TEXT NOT NULL
);
CREATE INDEX events_by_path ON events (path);
CREATE TRIGGER no_update BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
CREATE TRIGGER no_delete BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'the log is append-only'); END;
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {FORMAT};
"""


_TRIGGER = re.compile(r"CREATE TRIGGER \w+ BEFORE (UPDATE|DELETE) ON events BEGIN SELECT RAISE\(ABORT, '[^']*'\); END")


class LabelLog:
    """Appends and reads events. Threads and processes may share a file.

    Args:
        file: The log; created if it does not exist.

    Raises:
        UserError: If the file is not a label log or cannot be opened.

    Example:
        >>> log = LabelLog(Path("labels.db"))
        >>> _ = log.append([Event("Ada", "1.jpg", LABEL, "robin")])
        >>> agreed_labels(current_labels(log.events()))
        [('1.jpg', 'robin')]
        >>> log.close()
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self._lock = threading.Lock()
        if file.exists():
            check_is_log(file)
        try:
            create_folder(file.parent)
            self._connection = sqlite3.connect(file, check_same_thread=False, isolation_level=None, timeout=30)
            _distrust(self._connection)
            self._initialize()
            with _time_limit(self._connection):
                _check_schema(self._connection, file)
        except (sqlite3.Error, OSError) as error:
            raise UserError(f"Cannot open the labels {file}: {error}. Choose another file with --db.") from error

    def _initialize(self) -> None:
        # Each label is on disk before the request is answered, so that a power failure loses none.
        self._connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():  # if two processes start at once, one creates the table
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _statements(SCHEMA):
                    self._connection.execute(statement)
        # After the table is created, so that application id and version are in the main file from the beginning.
        self._connection.execute("PRAGMA journal_mode = WAL")
        # Each commit is written to the main file, so that a copy of this file alone is complete after a crash.
        self._connection.execute("PRAGMA wal_autocheckpoint = 1")

    def append(self, events: Sequence[Event]) -> list[Event]:
        """Writes all events or none, and returns them with number and time."""
        now = datetime.now(UTC).isoformat(timespec="microseconds")  # the events of one answer share it
        try:
            with self._lock, _time_limit(self._connection), self._transaction():
                return [self._insert(replace(event, time=now)) for event in events]
        except (sqlite3.OperationalError, sqlite3.DataError) as error:
            raise UserError(
                f"The label could not be written to {self.file} ({error}): check the disk and answer again."
            ) from error

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
        values = (event.person, event.path, event.kind, event.class_name, event.target, event.seen, event.undoes, shown)
        cursor = self._connection.execute(
            "INSERT INTO events (time, person, path, kind, class, target, seen, undoes, shown) "
            "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (event.time, *values),
        )
        assert cursor.lastrowid is not None
        return replace(event, number=cursor.lastrowid)

    def events(self, after: int = 0) -> list[Event]:
        """Returns the events with a number higher than ``after``, in order."""
        try:
            with self._lock:
                return _read(self._connection, after, self.file)
        except sqlite3.Error as error:
            raise UserError(f"Cannot read the labels {self.file}: {error}.") from error

    def latest(self, count: int, before: int = 0, person: str | None = None) -> list[Event]:
        """Returns the last events, the newest first.

        Args:
            count: The highest number of events.
            before: Number of an event that is newer than all of them; 0 to start with the newest.
            person: Whose events; None for everybody.
        """
        query = f"SELECT {COLUMNS} FROM events WHERE (? = 0 OR number < ?) AND (? IS NULL OR person = ?)"
        try:
            with self._lock, _time_limit(self._connection):
                values = (before, before, person, person, count)
                rows = self._connection.execute(f"{query} ORDER BY number DESC LIMIT ?", values)
                return [_event(row, self.file) for row in rows]
        except sqlite3.Error as error:
            raise UserError(f"Cannot read the labels {self.file}: {error}.") from error

    def close(self) -> None:
        """Closes the file."""
        self._connection.close()


def read_events(file: Path) -> list[Event]:
    """Reads all events of a log without changing the file."""
    check_is_log(file)
    try:
        connection = sqlite3.connect(f"{file.absolute().as_uri()}?mode=ro", uri=True, timeout=30)
        try:
            _distrust(connection)
            with _time_limit(connection):
                _check_schema(connection, file)
            return _read(connection, 0, file)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise UserError(f"Cannot read the labels {file}: {error}.") from error


def is_sqlite(file: Path) -> bool:
    """Whether a file has the header of an SQLite database."""
    with file.open("rb") as stream:
        return stream.read(len(SQLITE_HEADER)) == SQLITE_HEADER


def check_is_log(file: Path) -> None:
    """Raises UserError if a file is not a label log or has a newer format. An empty file is valid."""
    try:
        with file.open("rb") as stream:
            header = stream.read(100)
    except OSError as error:
        raise UserError(f"Cannot read the labels {file}: {error.strerror or error}.") from error
    if not header:
        return
    if not header.startswith(SQLITE_HEADER) or int.from_bytes(header[68:72], "big") != APPLICATION_ID:
        raise UserError(f"{file} is not a label log of the studio; choose another file.")
    version = int.from_bytes(header[60:64], "big")
    if version > FORMAT:
        raise UserError(f"{file} was written by a newer version of semifine (format {version}); update semifine.")
    if 0 < version < FORMAT:
        raise UserError(
            f"{file} was written by an older version of semifine (format {version}): export its labels to a CSV file "
            "with that version, and choose a new file."
        )


def _distrust(connection: sqlite3.Connection) -> None:
    """Prevents code in the schema of a file from calling functions with side effects, and limits its values."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)


@contextmanager
def _time_limit(connection: sqlite3.Connection) -> Iterator[None]:
    """Interrupts statements after ``MAX_SECONDS``; waiting for the lock of another process does not count."""
    end = time.monotonic() + MAX_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, PROGRESS_STEPS)
    try:
        yield
    finally:
        connection.set_progress_handler(None, PROGRESS_STEPS)


def _check_schema(connection: sqlite3.Connection, file: Path) -> None:
    """Raises UserError if ``events`` is not the table of :data:`SCHEMA`, but for example a view that never ends."""
    query = "SELECT type, sql FROM sqlite_master WHERE type != 'index' AND 'events' IN (name, tbl_name)"
    found = [(kind, str(sql)) for kind, sql in connection.execute(query)]
    tables = [sql for kind, sql in found if kind != "trigger"]
    triggers = [sql for kind, sql in found if kind == "trigger"]
    is_table = len(tables) == 1 and tables[0].startswith("CREATE TABLE events")
    columns = connection.execute("SELECT name, hidden FROM pragma_table_xinfo('events')").fetchall() if is_table else []
    if columns != [(name, 0) for name in COLUMNS.split(", ")] or not all(map(_TRIGGER.fullmatch, triggers)):
        raise UserError(f"{file} is damaged: the table of its events is not the studio's; restore it from a copy.")


def _read(connection: sqlite3.Connection, after: int, file: Path) -> list[Event]:
    query = f"SELECT {COLUMNS} FROM events WHERE number > ? ORDER BY number"
    with _time_limit(connection):
        return [_event(row, file) for row in connection.execute(query, (after,))]


def _event(row: tuple[Any, ...], file: Path) -> Event:
    """Checks the types of a row, because SQLite does not."""
    number, moment, person, path, kind, class_name, target, seen, undoes, shown = row
    is_valid = isinstance(number, int) and all(isinstance(text, str) for text in (moment, person, path, shown))
    is_valid &= kind in KINDS and isinstance(class_name, str) == (kind in KINDS_WITH_CLASS)
    is_valid &= isinstance(target, str) == (kind in KINDS_WITH_TARGET)
    is_valid &= isinstance(seen, int) and isinstance(undoes, int) == (kind == UNDO)
    try:
        details = json.loads(shown) if is_valid else None
    except (ValueError, RecursionError):
        details = None
    if not isinstance(details, dict):
        raise UserError(f"{file} is damaged: event {str(number)[:20]} is not an answer; restore it from a copy.")
    return Event(person, path, kind, class_name, seen, undoes, details, number, moment, target)


def _statements(script: str) -> list[str]:
    """Splits a script into statements. The statement in a trigger ends within a line."""
    return [part.strip() for part in script.split(";\n") if part.strip()]


def current_labels(events: Iterable[Event]) -> dict[str, CurrentLabel]:
    """Computes the current state of each image, by path, with the current names of classes."""
    by_path: dict[str, list[Event]] = {}
    for event in resolve_classes(events)[0]:
        by_path.setdefault(event.path, []).append(event)
    return {path: current_label(path_events) for path, path_events in by_path.items()}


def agreed_labels(labels: Mapping[str, CurrentLabel]) -> list[tuple[str, str]]:
    """Path and class of each image whose verdicts agree on a class, sorted by path."""
    return [(path, state.label) for path, state in sorted(labels.items()) if state.label is not None]
