"""The label log: an append-only SQLite file of answers, and the labels it currently holds. Standard library only."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semifine.errors import UserError

LABEL, NONE_OF_THESE, UNSURE, SKIP, UNDO = "label", "none_of_these", "unsure", "skip", "undo"
VERDICTS = (LABEL, NONE_OF_THESE)
"""Answers that decide what an image shows. studio/static/answers.js lists the buttons."""
KINDS = (*VERDICTS, UNSURE, SKIP, UNDO)


@dataclass(frozen=True)
class Event:
    """A line of the log; ``number`` and ``time`` are given by the log."""

    person: str
    path: str
    kind: str
    class_name: str | None = None
    """The class of a ``label``, and of nothing else."""
    seen: int = 0
    """Number of the last event on this image that the person had before their eyes and meant to replace."""
    undoes: int | None = None
    """Number of the event that an ``undo`` takes back."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What the page showed: the candidates, the model and its guess."""
    number: int = 0
    time: str = ""

    @property
    def is_verdict(self) -> bool:
        """Whether it says what the image is, or is not."""
        return self.kind in VERDICTS

    def agrees_with(self, other: Event) -> bool:
        """Whether both say the same of an image."""
        return (self.kind, self.class_name) == (other.kind, other.class_name)


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
  kind TEXT NOT NULL CHECK (kind IN {KINDS}),
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


@dataclass(frozen=True)
class Replaced:
    """A verdict, and the one of another person that took its place."""

    old: Event
    by: Event


@dataclass(frozen=True)
class CurrentLabel:
    """The verdicts on one image that hold, and who else looked at it."""

    verdicts: tuple[Event, ...]
    """Verdicts that were neither taken back nor replaced."""
    replaced: tuple[Replaced, ...]
    """Verdicts that somebody else replaced, of people who have not spoken since."""
    passed: tuple[Event, ...]
    """The last word of each person who skipped the image or could not tell."""
    last: int
    """Number of the last event on this image; 0 where there is none."""

    @property
    def in_conflict(self) -> bool:
        return any(not verdict.agrees_with(self.verdicts[0]) for verdict in self.verdicts)

    @property
    def is_decided(self) -> bool:
        return len(self.verdicts) > 0 and not self.in_conflict

    @property
    def label(self) -> str | None:
        """The class, where all verdicts that hold agree on one."""
        return self.verdicts[-1].class_name if self.is_decided else None

    def verdict_of(self, person: str) -> Event | None:
        """What holds of what the person said."""
        return next((verdict for verdict in self.verdicts if verdict.person == person), None)


NOTHING = CurrentLabel((), (), (), 0)


def current_label(events: Sequence[Event]) -> CurrentLabel:
    """Folds the events of one image, in the order of their numbers.

    A verdict replaces the person's own earlier one, and those of others that differ, were seen, and were meant to be
    replaced. Who is unsure takes the own verdict back. Other verdicts that differ both hold: that is a conflict, until
    somebody who sees it settles it. An event that was taken back counts as if it had never been.
    """
    undone = {event.undoes for event in events if event.kind == UNDO}
    said = [event for event in events if event.kind != UNDO and event.number not in undone]
    verdicts: list[Event] = []
    replaced: list[Replaced] = []
    passed: dict[str, Event] = {}
    for event in said:
        passed.pop(event.person, None)
        if event.is_verdict:
            others = [old for old in verdicts if old.person != event.person]
            gone = [old for old in others if old.number <= event.seen and not old.agrees_with(event)]
            verdicts = [*(old for old in others if old not in gone), event]
            replaced = [earlier for earlier in replaced if earlier.old.person != event.person]
            replaced += [Replaced(old, event) for old in gone]
            continue
        passed[event.person] = event
        if event.kind == UNSURE:
            verdicts = [old for old in verdicts if old.person != event.person]
    last = events[-1].number if events else 0
    return CurrentLabel(tuple(verdicts), tuple(replaced), tuple(passed.values()), last)


def current_labels(events: Iterable[Event]) -> dict[str, CurrentLabel]:
    """What holds for each path."""
    of_path: dict[str, list[Event]] = {}
    for event in events:
        of_path.setdefault(event.path, []).append(event)
    return {path: current_label(of_image) for path, of_image in of_path.items()}


def agreed_labels(held: dict[str, CurrentLabel]) -> list[tuple[str, str]]:
    """Path and class of every image that has one undisputed class, in the order of paths."""
    return [(path, here.label) for path, here in sorted(held.items()) if here.label is not None]
