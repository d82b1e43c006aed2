"""The label log: events are appended atomically and never lost, and current labels follow from them."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from semifine.data import label_log
from semifine.data.label_log import (
    LABEL,
    NO_LABEL,
    NONE_OF_THESE,
    SKIP,
    UNDO,
    UNSURE,
    CurrentLabel,
    Event,
    LabelLog,
    agreed_labels,
    current_label,
    current_labels,
    read_events,
)
from semifine.errors import UserError


def label(name: str, person: str = "Ada", seen: int = 0, path: str = "a.jpg") -> Event:
    return Event(person, path, LABEL, name, seen)


def after(*events: Event) -> CurrentLabel:
    """Returns the current label after events with the numbers 1, 2, ..."""
    numbered = [
        Event(event.person, event.path, event.kind, event.class_name, event.seen, event.undoes, number=number)
        for number, event in enumerate(events, 1)
    ]
    return current_label(numbered)


def undo(number: int, person: str = "Ada") -> Event:
    return Event(person, "a.jpg", UNDO, undoes=number)


def test_a_label_is_current() -> None:
    assert after(label("tit")).label == "tit"
    assert current_label([]) == NO_LABEL


def test_changing_a_label_is_not_a_conflict() -> None:
    current = after(label("tit"), label("finch"))
    assert current.label == "finch"
    assert not current.in_conflict


def test_two_people_who_did_not_see_each_other_are_in_conflict() -> None:
    current = after(label("tit"), label("finch", "Bo", seen=0))
    assert current.in_conflict
    assert current.label is None
    assert {(verdict.person, verdict.class_name) for verdict in current.verdicts} == {("Ada", "tit"), ("Bo", "finch")}


def test_none_of_these_against_a_class_is_a_conflict_too() -> None:
    assert after(label("tit"), Event("Bo", "a.jpg", NONE_OF_THESE)).in_conflict


def test_equal_labels_are_not_a_conflict() -> None:
    current = after(label("tit"), label("tit", "Bo"))
    assert current.label == "tit"
    assert len(current.verdicts) == 2


def test_a_label_replaces_another_that_was_seen() -> None:
    assert after(label("tit"), label("finch", "Bo", seen=1)).label == "finch"


def test_replaced_verdicts_are_kept_until_their_person_answers_again() -> None:
    current = after(label("tit"), label("finch", "Bo", seen=1))
    assert [(item.old.person, item.by.person) for item in current.replaced] == [("Ada", "Bo")]
    again = after(label("tit"), label("finch", "Bo", seen=1), label("tit", seen=2))
    assert [(item.old.person, item.by.person) for item in again.replaced] == [("Bo", "Ada")]
    assert after(label("tit"), label("finch", "Bo", seen=1), undo(2, "Bo")).replaced == ()
    assert after(label("tit"), label("finch")).replaced == (), "a person's own change is not listed"


def test_an_agreeing_label_replaces_nothing() -> None:
    current = after(label("tit"), label("tit", "Bo", seen=1))
    assert [verdict.person for verdict in current.verdicts] == ["Ada", "Bo"]
    assert current.replaced == ()


def test_a_conflict_is_resolved_by_a_label_that_saw_both() -> None:
    current = after(label("tit"), label("finch", "Bo"), label("finch", "Cy", seen=2))
    assert current.label == "finch"
    assert after(label("tit"), label("finch", "Bo"), label("wren", "Cy", seen=1)).in_conflict, "Cy saw only the first"


def test_undo_of_a_resolution_restores_the_conflict() -> None:
    current = after(label("tit"), label("finch", "Bo"), label("finch", "Ada", seen=2), undo(3))
    assert current.in_conflict
    assert current.last == 4


def test_undo_of_a_change_restores_the_earlier_label() -> None:
    assert after(label("tit"), label("finch"), undo(2)).label == "tit"
    assert after(label("tit"), undo(1)).verdicts == ()


def test_skip_and_unsure_are_not_verdicts() -> None:
    current = after(label("tit"), Event("Bo", "a.jpg", UNSURE), Event("Cy", "a.jpg", SKIP))
    assert current.label == "tit"
    assert [event.person for event in current.passed] == ["Bo", "Cy"]
    assert after(Event("Bo", "a.jpg", SKIP), label("tit", "Bo")).passed == ()


def test_agreed_labels_leave_out_conflicts_and_other_kinds() -> None:
    events = [
        Event("Ada", "b.jpg", LABEL, "tit", number=1),
        Event("Ada", "a.jpg", LABEL, "tit", number=2),
        Event("Bo", "a.jpg", LABEL, "finch", number=3),
        Event("Bo", "c.jpg", NONE_OF_THESE, number=4),
        Event("Bo", "d.jpg", UNSURE, number=5),
    ]
    assert agreed_labels(current_labels(events)) == [("b.jpg", "tit")]


def test_events_are_read_as_written(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "x" / "labels.db")
    given = Event("Zoë", "Mésange/1.jpg", LABEL, "Mésange bleue", 0, shown={"candidates": ["Mésange bleue"]})
    (written,) = log.append([given])
    (taken_back,) = log.append([Event("Zoë", given.path, UNDO, seen=1, undoes=1)])
    assert (written.number, taken_back.number) == (1, 2)
    assert written.time.startswith("20")
    assert log.events() == read_events(log.file) == [written, taken_back]
    assert log.events(after=1) == [taken_back]
    log.close()
    assert LabelLog(log.file).events() == [written, taken_back]


def test_events_cannot_be_changed_or_deleted(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    log.append([label("tit")])
    connection = sqlite3.connect(log.file)
    for command in ("DELETE FROM events", "UPDATE events SET class = 'finch'"):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            connection.execute(command)
    connection.close()


def test_append_is_atomic(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    with pytest.raises(sqlite3.IntegrityError):
        log.append([label("tit"), Event("Ada", "b.jpg", LABEL, None)])
    assert log.events() == []


def test_threads_share_a_log(tmp_path: Path) -> None:
    logs = [LabelLog(tmp_path / "labels.db"), LabelLog(tmp_path / "labels.db")]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda n: logs[n % 2].append([label("tit", path=f"{n}.jpg")]), range(80)))
    assert [event.number for event in logs[0].events()] == list(range(1, 81))


def test_a_killed_process_loses_no_event(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from semifine.data.label_log import LabelLog, Event\n"
        "log = LabelLog(Path(sys.argv[1]))\n"
        "for n in range(20): log.append([Event('Ada', f'{n}.jpg', 'label', 'tit')])\n"
        "os.kill(os.getpid(), 9)"
    )
    file = tmp_path / "labels.db"
    assert subprocess.run([sys.executable, "-c", code, str(file)], check=False).returncode == -9
    assert len(read_events(file)) == 20
    assert len(LabelLog(file).events()) == 20


@pytest.mark.parametrize("content", [b"path,label\na.jpg,tit\n", b"SQLite format 3\x00" + bytes(200)])
def test_other_files_are_refused_and_unchanged(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "mine.db"
    file.write_bytes(content)
    for use in (LabelLog, read_events):
        with pytest.raises(UserError, match=r"mine\.db is not a label log"):
            use(file)
    assert file.read_bytes() == content


def test_a_log_of_a_later_version_is_refused(tmp_path: Path) -> None:
    LabelLog(tmp_path / "labels.db").close()
    connection = sqlite3.connect(tmp_path / "labels.db")
    connection.execute("PRAGMA user_version = 3")
    connection.close()
    with pytest.raises(UserError, match="update semifine"):
        LabelLog(tmp_path / "labels.db")


ENDLESS = (
    "SELECT n AS number, '' AS time, 'Ada' AS person, n AS path, 'label' AS kind, 'tit' AS class, 0 AS seen, "
    "NULL AS undoes, '{}' AS shown FROM (WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r) "
    "SELECT n FROM r)"
)


def tamper(file: Path, *statements: str) -> Path:
    """Changes a log with one label, as someone with SQLite can."""
    log = LabelLog(file)
    log.append([label("tit")])
    log.close()
    connection = sqlite3.connect(file)
    connection.execute("PRAGMA writable_schema = ON")
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return file


@pytest.mark.parametrize(
    "statements",
    [
        ("ALTER TABLE events RENAME TO old", f"CREATE VIEW events AS {ENDLESS}"),
        ("ALTER TABLE events RENAME TO old", "CREATE VIRTUAL TABLE events USING fts5(number, time, person)"),
        ("CREATE TRIGGER t BEFORE INSERT ON events BEGIN DELETE FROM events; END",),
        ("ALTER TABLE events ADD COLUMN more INTEGER GENERATED ALWAYS AS (number) VIRTUAL",),
        ("ALTER TABLE events RENAME COLUMN class TO classes",),
        ("DROP TABLE events",),
    ],
)
def test_another_table_of_events_is_refused(statements: tuple[str, ...], tmp_path: Path) -> None:
    file = tamper(tmp_path / "labels.db", *statements)
    with pytest.raises(UserError, match=r"labels.db is damaged: the table of its events is not the studio's"):
        read_events(file)
    with pytest.raises(UserError, match=r"labels.db is damaged: the table of its events is not the studio's"):
        LabelLog(file)


@pytest.mark.parametrize(
    "change",
    [
        *("path = x'ff'", "kind = 'answer'", "class = NULL", "seen = 'x'", "undoes = 2", "shown = '['", "shown = '[]'"),
        *(f"shown = '{'[' * 100_000}'", "person = CAST(x'ff' AS TEXT)", "shown = zeroblob(20000000)"),
    ],
)
def test_events_with_other_types_are_refused(change: str, tmp_path: Path) -> None:
    file = tamper(
        tmp_path / "labels.db",
        "DROP TRIGGER no_update",
        "PRAGMA ignore_check_constraints = ON",
        f"UPDATE events SET {change}",
    )
    with pytest.raises(UserError, match=r"labels.db"):
        read_events(file)
    with pytest.raises(UserError, match=r"labels.db"):
        LabelLog(file).events()


def test_reading_has_a_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "labels.db"
    log = LabelLog(file)
    log.append([label("tit")] * 1000)
    monkeypatch.setattr(label_log, "MAX_SECONDS", -1.0)
    monkeypatch.setattr(label_log, "PROGRESS_STEPS", 100)
    with pytest.raises(UserError, match=r"Cannot read the labels .*labels.db: interrupted"):
        log.events()
    with pytest.raises(UserError, match=r"Cannot read the labels .*labels.db: interrupted"):
        read_events(file)
    monkeypatch.undo()
    assert len(log.events()) == 1000


def test_unsure_removes_only_the_own_label() -> None:
    unsure = Event("Ada", "a.jpg", UNSURE)
    assert after(label("tit"), unsure).label is None
    assert after(label("tit"), unsure, undo(2)).label == "tit"
    assert after(label("tit"), label("tit", "Bo"), unsure).label == "tit"
    assert after(label("tit"), Event("Ada", "a.jpg", SKIP)).label == "tit"


def test_a_copy_of_the_main_file_is_complete(tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    for number in range(3):
        log.append([label("tit", path=f"{number}.jpg")])
    copy = tmp_path / "copy.db"  # as after a crash: the log is not closed, and SQLite's other files are missing
    copy.write_bytes(log.file.read_bytes())
    assert [event.path for event in read_events(copy)] == ["0.jpg", "1.jpg", "2.jpg"]
