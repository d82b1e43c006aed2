"""The label queue: selects the next images and records the answers of annotators."""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.config import read_train_settings
from semifine.data.label_classes import ClassHistory, LabelClass
from semifine.data.label_events import (
    CLASS_KINDS,
    CREATE_CLASS,
    LABEL,
    NO_LABEL,
    SKIP,
    UNDO,
    UNSURE,
    VERDICTS,
    CurrentLabel,
    Event,
    current_label,
)
from semifine.data.label_log import LabelLog, is_sqlite
from semifine.errors import UserError
from semifine.runs.folder import RunFolder
from semifine.studio.class_changes import ClassChange, class_event
from semifine.studio.metadata import MetadataIndex
from semifine.studio.snapshot import Indices, ModelSnapshot

# Unicode does not decompose these letters. static/class_search.js has the same table.
ASCII_LETTERS = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe", "ß": "ss"})


def casefold(text: str) -> str:
    """Returns the text in lower case without accents, for searches.

    Example:
        >>> casefold("Żółty")
        'zolty'
    """
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text)
    return "".join(c for c in parts if not unicodedata.category(c).startswith("M")).lower().translate(ASCII_LETTERS)


# The state of an image is "labeled" for agreed labels, else the kind of the agreed verdict.
STATES = ("waiting", "labeled", "conflict", UNSURE, *(kind for kind in VERDICTS if kind != LABEL))
ALL_STATES = "all"
"""The state of a filter that matches every image."""
MAX_NAME_LENGTH = 40
JOINERS = "\u200c\u200d"
"""Invisible characters that are part of Persian and Indian names."""


@dataclass(frozen=True)
class QueueFilter:
    """Filter and order of the images that a person sees."""

    person: str
    state: str = "waiting"
    order: str = "informative"
    class_id: int | None = None
    cluster: int | None = None
    text: str = ""
    after: str = ""
    """First date of the photos, such as 2024-05; empty without a limit."""
    before: str = ""
    """Last date of the photos."""


@dataclass(frozen=True)
class Answer:
    """A person's answer for one or several images."""

    person: str
    kind: str
    indices: Sequence[int]
    seen: Sequence[int]
    """For each image the last event that the page showed. The answer may replace events up to this one."""
    class_name: str | None = None
    keep_both: bool = False
    """Keep the answers of other people, which creates a conflict."""

    @property
    def is_verdict(self) -> bool:
        """Whether the answer states what the images show."""
        return self.kind in VERDICTS


class LabelQueue:
    """The images of a snapshot together with the events of a label log. Thread-safe."""

    def __init__(self, snapshot: ModelSnapshot, log: LabelLog) -> None:
        self.snapshot = snapshot
        self._log = log
        self._lock = threading.RLock()
        self._classes = ClassHistory(snapshot.catalog.class_names)
        self._paths = [str(snapshot.catalog.paths[row]) for row in snapshot.rows]
        self._index_of = {path: index for index, path in enumerate(self._paths)}
        self._events: dict[str, list[tuple[Event, int | None]]] = {}
        """Events of each path, labels with the class that had this name at the time."""
        self._events_by_person: dict[str, list[Event]] = {}
        self._current: dict[int, CurrentLabel] = {}
        self._state = np.zeros(len(snapshot.rows), np.int64)
        """For each image the position of its state in STATES."""
        self.metadata = MetadataIndex(snapshot.catalog, snapshot.rows)
        """Dates of the photos, empty until ``metadata.start()`` has read them."""
        self.last_event = 0
        self.num_unknown_paths = 0
        """Number of events about images that are not in this data set."""
        self.refresh()

    def refresh(self) -> None:
        """Reads the events that this or another process has appended to the log."""
        with self._lock:
            new = self._log.events(self.last_event)
            version = self._classes.version
            for event in new:
                self._events_by_person.setdefault(event.person, []).append(event)
                self.last_event = event.number
                if self._classes.is_class_event(event):
                    self._classes.apply(event)
                    continue
                class_id = self._classes.id_of(event.class_name) if event.class_name is not None else None
                self._events.setdefault(event.path, []).append((event, class_id))
                self.num_unknown_paths += event.path not in self._index_of
            changed = self._events if self._classes.version != version else {event.path for event in new}
            for path in changed:
                if path in self._index_of and path in self._events:
                    self._update(self._index_of[path], current_label(self._resolved(path)))

    def _resolved(self, path: str) -> list[Event]:
        """Returns the events of an image with the current names of classes."""
        return [
            event if class_id is None else replace(event, class_name=self._classes.name_of(class_id))
            for event, class_id in self._events[path]
        ]

    def image_events(self) -> list[Event]:
        """Returns the events of all images with the current names of classes, in order for each image."""
        with self._lock:
            return [event for path in self._events for event in self._resolved(path)]

    def people(self) -> list[str]:
        """Returns the names of all people in the log."""
        with self._lock:
            return sorted(self._events_by_person)

    @property
    def classes(self) -> tuple[LabelClass, ...]:
        """All classes by id, also retired and merged ones. New classes follow the classes of the data set."""
        with self._lock:
            return tuple(self._classes.classes)

    @property
    def class_names(self) -> list[str]:
        """The current name of each class."""
        return [entry.name for entry in self.classes]

    @property
    def active_names(self) -> list[str]:
        """Names of the classes that images can get."""
        with self._lock:
            return self._classes.active_names

    @property
    def classes_version(self) -> int:
        """Rises with every change of the classes."""
        return self._classes.version

    def final_classes(self) -> Indices:
        """Returns for each class the class that has its labels: itself, unless it was merged."""
        with self._lock:
            return np.array([self._classes.final_id(c) for c in range(len(self._classes.classes))], np.int64)

    def is_active(self) -> NDArray[np.bool_]:
        """Returns for each class whether images can get it."""
        return np.array([entry.is_active for entry in self.classes], np.bool_)

    def labeled_classes(self) -> tuple[Indices, Indices]:
        """Returns the indices of the images with an agreed label, and their class ids."""
        with self._lock:
            pairs = [(index, label.label) for index, label in self._current.items() if label.label is not None]
            found = [(index, self._classes.find(name)) for index, name in pairs]
        known = sorted((index, class_id) for index, class_id in found if class_id is not None)
        return np.array([index for index, _ in known], np.int64), np.array([c for _, c in known], np.int64)

    def _update(self, index: int, label: CurrentLabel) -> None:
        self._current[index] = label
        self._state[index] = STATES.index(state_of(label))

    def select(self, queue_filter: QueueFilter) -> Indices:
        """Returns the indices of the matching images in order. Images that the person skipped come last."""
        snapshot = self.snapshot
        passed = self._passed_by(queue_filter.person)
        matches = self._matches(snapshot, queue_filter, passed)
        order = snapshot.orders[queue_filter.order]
        order = order[matches[order]]
        skipped = np.isin(order, [index for index, kind in passed.items() if kind == SKIP])
        return np.concatenate([order[~skipped], order[skipped]])

    def matching(self, queue_filter: QueueFilter) -> Indices:
        """Returns the indices of the matching images, sorted by index."""
        return np.flatnonzero(self._matches(self.snapshot, queue_filter, self._passed_by(queue_filter.person)))

    def _passed_by(self, person: str) -> dict[int, str]:
        """Returns the images that a person skipped or was unsure about, with the kind of the answer."""
        with self._lock:
            return {
                index: event.kind
                for index, label in self._current.items()
                for event in label.passed
                if event.person == person
            }

    def _matches(self, snapshot: ModelSnapshot, queue_filter: QueueFilter, passed: dict[int, str]) -> NDArray[np.bool_]:
        if queue_filter.state == ALL_STATES:
            matches = np.ones(len(self._state), np.bool_)
        else:
            matches = self._state == STATES.index(queue_filter.state)
        if queue_filter.state == "waiting":
            matches[[index for index, kind in passed.items() if kind == UNSURE]] = False
        if queue_filter.class_id is not None:
            matches &= snapshot.prediction == queue_filter.class_id
        if queue_filter.cluster is not None:
            matches &= snapshot.group == queue_filter.cluster
        if queue_filter.text:
            matches &= self._matches_text(casefold(queue_filter.text), snapshot.prediction)
        if queue_filter.after or queue_filter.before:
            matches &= self.metadata.is_between(queue_filter.after, queue_filter.before)
        return matches

    def _matches_text(self, text: str, prediction: NDArray[np.int64]) -> NDArray[np.bool_]:
        in_class_name = np.array([text in casefold(name) for name in self.class_names], np.bool_)
        in_path = np.fromiter((text in path for path in self._folded_paths), np.bool_, len(self._paths))
        in_path |= self.metadata.matches_text(text)
        return np.asarray(in_path | in_class_name[prediction] if len(in_class_name) else in_path)

    @cached_property
    def _folded_paths(self) -> list[str]:
        return [casefold(path) for path in self._paths]

    def current_label(self, index: int) -> CurrentLabel:
        with self._lock:
            return self._current.get(index, NO_LABEL)

    def settles_conflict(self, answer: Answer) -> bool:
        """Whether the answer would replace verdicts of other people who disagree.

        An answer that has not seen their verdicts replaces none: it is one more opinion.
        """
        self.refresh()
        person, pairs = normalize_name(answer.person), zip(answer.indices, answer.seen, strict=True)
        states = [(self.current_label(index), seen) for index, seen in pairs]
        return (
            answer.is_verdict
            and not answer.keep_both
            and any(
                state.in_conflict and any(old.person != person and old.number <= seen for old in state.verdicts)
                for state, seen in states
            )
        )

    def conflicts(self) -> list[int]:
        """Returns the images on which people disagree."""
        return [int(index) for index in np.flatnonzero(self._state == STATES.index("conflict"))]

    def is_waiting(self) -> NDArray[np.bool_]:
        """Returns for each image ``(U,)`` whether it still needs a label."""
        return np.asarray(self._state == STATES.index("waiting"))

    def counts(self) -> dict[str, int]:
        """Returns the number of images in each state."""
        with self._lock:
            return {state: int((self._state == number).sum()) for number, state in enumerate(STATES)}

    def verdicts_by_person(self) -> dict[str, int]:
        """Returns the number of current verdicts of each person, highest first."""
        with self._lock:
            counts = Counter(verdict.person for label in self._current.values() for verdict in label.verdicts)
        return dict(counts.most_common())

    def agreed_labels(self) -> list[tuple[int, str]]:
        """Returns index and class name of each image that has a label without a conflict."""
        with self._lock:
            return [(index, current.label) for index, current in self._current.items() if current.label is not None]

    def submit(self, answer: Answer) -> list[Event]:
        """Appends an answer to the log, for all of its images or for none."""
        person = normalize_name(answer.person)
        self._check(answer)
        events = [
            Event(person, self._paths[index], answer.kind, answer.class_name, seen, shown=self._shown(index, answer))
            for index, seen in zip(answer.indices, answer.seen, strict=True)
        ]
        with self._lock:  # if two windows answer at once, the second one sees the answer of the first
            self.refresh()
            for index, event in zip(answer.indices, events, strict=True):
                check_seen(event, self.current_label(index))
            return self._append([replace(event, seen=0) for event in events] if answer.keep_both else events)

    def _check(self, answer: Answer) -> None:
        if answer.kind not in (*VERDICTS, UNSURE, SKIP):
            raise UserError(f"'{answer.kind}' is not a valid answer.")
        if (answer.class_name is not None) != (answer.kind == LABEL):
            raise UserError("An answer of the kind label needs a class; other kinds must not have one.")
        if answer.kind == LABEL and answer.class_name not in self._classes.active_names:
            raise UserError(f"'{answer.class_name}' is not a class of {self.snapshot.catalog.name}.")
        count = len(answer.indices)
        if not count or count != len(answer.seen) or count != len(set(answer.indices)):
            raise UserError("An answer needs at least one image, and no image twice.")
        for index in answer.indices:
            self.check_index(index)

    def _shown(self, index: int, answer: Answer) -> dict[str, Any]:
        """Returns the candidates and the prediction that the page showed, for the log."""
        snapshot, names = self.snapshot, self._classes.classes
        shown: dict[str, Any] = {"run": snapshot.run.name}
        if snapshot.probs.shape[1]:
            shown |= {
                "candidates": [names[c].name for c in snapshot.candidates(index)],
                "prediction": names[int(snapshot.prediction[index])].name,
                "confidence": round(float(snapshot.confidence[index]), 4),
                "model": snapshot.version,
            }
        if index != answer.indices[0]:
            shown["accepted_with"] = self._paths[answer.indices[0]]
        return shown

    def undo(self, person: str) -> list[int]:
        """Undoes the person's last answer for all of its images, or the last change of a class.

        Returns:
            The indices of the images; empty for a change of a class.
        """
        person = normalize_name(person)
        self.refresh()
        with self._lock:
            events = self._events_by_person.get(person, [])
            undone = {event.undoes for event in events}
            answers = [
                event
                for event in events
                if event.kind in CLASS_KINDS or (event.kind != UNDO and event.path in self._index_of)
            ]
            remaining = [event for event in answers if event.number not in undone]
            # All events of one answer have the same time.
            last = [event for event in remaining if event.time == remaining[-1].time]
            self._check_undo(person, last)
        if not last:
            return []
        self._append([Event(person, event.path, UNDO, seen=event.number, undoes=event.number) for event in last])
        return [self._index_of[event.path] for event in last if event.kind not in CLASS_KINDS]

    def _check_undo(self, person: str, events: list[Event]) -> None:
        """Raises ``UserError`` if people use the class whose creation would be undone."""
        for event in events:
            if event.kind == CREATE_CLASS and self._num_labels(str(event.class_name)):
                raise UserError(
                    f"{person} cannot undo the class '{event.class_name}', because images are labeled with it: "
                    "retire it or merge it instead."
                )

    def _num_labels(self, name: str) -> int:
        class_id = self._classes.id_of(name)
        return sum(label.label == self._classes.name_of(class_id) for label in self._current.values())

    def change_class(self, change: ClassChange) -> int:
        """Creates, renames, merges, retires or restores a class. Returns the version of the list of classes."""
        person = normalize_name(change.person)
        with self._lock:
            self.refresh()
            event = class_event(self._classes, change)
            self._append([replace(event, person=person)])
            return self._classes.version

    def _append(self, events: list[Event]) -> list[Event]:
        written = self._log.append(events)
        self.refresh()
        return written

    def check_index(self, index: int) -> None:
        if not 0 <= index < len(self.snapshot.rows):
            raise UserError(f"There is no image {index}.")

    def index_of(self, path: str) -> int | None:
        """Returns the index of an image, or None if the data set does not contain it."""
        return self._index_of.get(path)

    def path(self, index: int) -> str:
        return self._paths[index]


def state_of(label: CurrentLabel) -> str:
    """Returns the state of an image, one of ``STATES``.

    Example:
        >>> state_of(current_label([Event("Ada", "1.jpg", LABEL, "robin")]))
        'labeled'
        >>> state_of(current_label([Event("Ada", "1.jpg", SKIP)]))
        'waiting'
    """
    if label.in_conflict:
        return "conflict"
    if label.is_decided:
        return "labeled" if label.label is not None else label.verdicts[-1].kind
    return UNSURE if any(event.kind == UNSURE for event in label.passed) else "waiting"


def check_seen(event: Event, label: CurrentLabel) -> None:
    """Raises ``UserError`` if the event would replace the person's own answer and the page had not shown that answer.

    This happens if one person uses two windows, or two people use the same name.
    """
    own = label.verdict_of(event.person)
    if own is None or event.kind == SKIP or own.number <= event.seen or own.agrees_with(event):
        return
    text = own.class_name or own.kind.replace("_", " ")
    raise UserError(f"{event.person} answered '{text}' for {event.path} in another window. Answer again to change it.")


def normalize_name(person: str) -> str:
    """Returns a person's name with single spaces. Raises ``UserError`` for empty, long or invisible names.

    Example:
        >>> normalize_name("  Ada  Lovelace ")
        'Ada Lovelace'
    """
    name = " ".join(person.split())
    visible = name.translate(dict.fromkeys(map(ord, JOINERS)))
    if not visible or len(name) > MAX_NAME_LENGTH or not visible.isprintable():
        raise UserError(f"A name must have 1 to {MAX_NAME_LENGTH} visible characters.")
    return name


def default_log(run: Path) -> Path:
    """Returns the log that the run was trained with, or ``RUN.studio.db`` next to the run or the folder of photos."""
    if not RunFolder(run).settings.exists():
        return run.with_name(run.name + ".studio.db")
    labels = read_train_settings(RunFolder(run).settings).labels
    if labels and Path(labels).is_file() and is_sqlite(Path(labels)):
        return Path(labels)
    return run.with_name(run.name + ".studio.db")
