"""The label queue: which image comes next, and what people answer."""

from __future__ import annotations

import threading
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.label_log import (
    LABEL,
    NONE_OF_THESE,
    NOTHING,
    SKIP,
    UNDO,
    UNSURE,
    CurrentLabel,
    Event,
    LabelLog,
    current_label,
)
from semifine.errors import UserError
from semifine.studio.snapshot import ModelSnapshot, Places

# Letters of their own in Unicode, which no decomposition takes apart; as assets/folding.js does it.
WITHOUT_ACCENT = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe", "ß": "ss"})


def plain(text: str) -> str:
    """For comparison: equal for two spellings that a person would take for one name."""
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text)
    return "".join(c for c in parts if not unicodedata.category(c).startswith("M")).lower().translate(WITHOUT_ACCENT)


STATES = ("waiting", "labeled", "conflict", "unsure", "none_of_these")
LONGEST_NAME = 40
JOINERS = "\u200c\u200d"
"""Without a shape of their own, but part of Persian and Indian names."""


@dataclass(frozen=True)
class Wanted:
    """What a person wants to see of the queue."""

    person: str
    state: str = "waiting"
    order: str = "worth"
    class_id: int | None = None
    cluster: int | None = None
    text: str = ""


@dataclass(frozen=True)
class Said:
    """What a person says about one or, in one go, about several images."""

    person: str
    kind: str
    places: Sequence[int]
    seen: Sequence[int]
    """For each image the last event that the page showed and that the answer may replace."""
    class_name: str | None = None
    beside: bool = False
    """Whether other answers are to stay beside this one, as a conflict, though they were seen."""


class LabelQueue:
    """The images of one model's insight beside the log of labels; threads may share it."""

    def __init__(self, snapshot: ModelSnapshot, log: LabelLog) -> None:
        self.snapshot = snapshot
        self._log = log
        self._lock = threading.RLock()
        self._paths = [str(snapshot.catalog.paths[row]) for row in snapshot.rows]
        self._place_of = {path: place for place, path in enumerate(self._paths)}
        self._events: dict[str, list[Event]] = {}
        self._standing: dict[int, CurrentLabel] = {}
        self._said_by: dict[str, list[Event]] = {}
        self._decided = np.zeros(len(snapshot.rows), np.int64)
        """For each place the position of its state in STATES."""
        self.last = 0
        self.elsewhere = 0
        """Events of the log on images that are not in this data set."""
        self.catch_up()

    def catch_up(self) -> list[Event]:
        """Takes in what was appended since, by this program or another."""
        with self._lock:
            new = self._log.events(self.last)
            for event in new:
                self._events.setdefault(event.path, []).append(event)
                self._said_by.setdefault(event.person, []).append(event)
                self.last = event.number
            for path in {event.path for event in new}:
                if path in self._place_of:
                    self._update(self._place_of[path], current_label(self._events[path]))
            self.elsewhere += sum(event.path not in self._place_of for event in new)
            return new

    def _update(self, place: int, now: CurrentLabel) -> None:
        self._standing[place] = now
        self._decided[place] = STATES.index(state_of(now))

    # What there is to see

    def queue(self, wanted: Wanted) -> Places:
        """Places in order; what the person skipped comes last."""
        with self._lock:
            fits = self._decided == STATES.index(wanted.state)
            passed = {
                place: event.kind
                for place, here in self._standing.items()
                for event in here.passed
                if event.person == wanted.person
            }
        if wanted.state == "waiting":
            fits[[place for place, kind in passed.items() if kind == UNSURE]] = False
        prediction = self.snapshot.prediction
        if wanted.class_id is not None:
            fits &= prediction == wanted.class_id
        if wanted.cluster is not None:
            fits &= self.snapshot.map.cluster_of[prediction] == wanted.cluster
        if wanted.text:
            fits &= self._mention(plain(wanted.text), prediction)
        order = self.snapshot.orders[wanted.order]
        order = order[fits[order]]
        skipped = np.isin(order, [place for place, kind in passed.items() if kind == SKIP])
        return np.concatenate([order[~skipped], order[skipped]])

    def _mention(self, text: str, prediction: NDArray[np.int64]) -> NDArray[np.bool_]:
        named = np.array([text in plain(name) for name in self.snapshot.class_names])
        in_path = np.fromiter((text in path for path in self._plain_paths), np.bool_, len(self._paths))
        return np.asarray(named[prediction] | in_path)

    @cached_property
    def _plain_paths(self) -> list[str]:
        return [plain(path) for path in self._paths]

    def current_label(self, place: int) -> CurrentLabel:
        with self._lock:
            return self._standing.get(place, NOTHING)

    def waiting(self) -> NDArray[np.bool_]:
        """(U,) whether nobody has decided on the image yet."""
        return np.asarray(self._decided == STATES.index("waiting"))

    def counts(self) -> dict[str, int]:
        """How many images are in each state."""
        with self._lock:
            return {state: int((self._decided == number).sum()) for number, state in enumerate(STATES)}

    def people(self) -> dict[str, int]:
        """How many standing verdicts each person has given."""
        with self._lock:
            given = Counter(verdict.person for here in self._standing.values() for verdict in here.verdicts)
        return dict(given.most_common())

    def given_labels(self) -> list[tuple[int, str]]:
        """StorageDevice and class of each image with an undisputed label."""
        with self._lock:
            return [(place, here.label) for place, here in self._standing.items() if here.label is not None]

    # What people say

    def say(self, said: Said) -> list[Event]:
        """Appends to the log; either all that was said at once is kept, or nothing."""
        person = checked_name(said.person)
        if said.kind not in (LABEL, NONE_OF_THESE, UNSURE, SKIP):
            raise UserError(f"'{said.kind}' is nothing that can be said about an image.")
        if (said.class_name is not None) != (said.kind == LABEL):
            raise UserError("A label names a class, and nothing else does.")
        if said.kind == LABEL and said.class_name not in self.snapshot.class_names:
            raise UserError(f"'{said.class_name}' is no class of {self.snapshot.catalog.name}.")
        if not said.places or len(said.places) != len(said.seen) or len(set(said.places)) != len(said.places):
            raise UserError("What is said must be about one image, or several different ones.")
        for place in said.places:
            self.check_place(place)
        events = [
            Event(person, self._paths[place], said.kind, said.class_name, seen, shown=self._shown(place, said.places))
            for place, seen in zip(said.places, said.seen, strict=True)
        ]
        with self._lock:  # of two windows that say something at once, the second sees what the first said
            self.catch_up()
            for place, event in zip(said.places, events, strict=True):
                refuse_unseen_change(event, self.current_label(place))
            return self._append([replace(event, seen=0) for event in events] if said.beside else events)

    def _shown(self, place: int, together: Sequence[int]) -> dict[str, Any]:
        seen = self.snapshot
        shown: dict[str, Any] = {
            "run": seen.run.name,
            "candidates": [seen.class_names[c] for c in seen.short_list(place)],
            "prediction": seen.class_names[int(seen.prediction[place])],
            "confidence": round(float(seen.probs[place].max()), 4),
        }
        if place != together[0]:
            shown["accepted_with"] = self._paths[together[0]]
        return shown

    def undo(self, person: str) -> list[int]:
        """Takes back what the person said last, all of it where it was about several images; returns the places."""
        person = checked_name(person)
        self.catch_up()
        with self._lock:
            said = self._said_by.get(person, [])
            undone = {event.undoes for event in said}
            here = [event for event in said if event.kind != UNDO and event.path in self._place_of]
            open_ones = [event for event in here if event.number not in undone]
            # events of one action share their time
            last = [event for event in open_ones if event.time == open_ones[-1].time]
        if not last:
            return []
        self._append([Event(person, event.path, UNDO, seen=event.number, undoes=event.number) for event in last])
        return [self._place_of[event.path] for event in last]

    def _append(self, events: list[Event]) -> list[Event]:
        written = self._log.append(events)
        self.catch_up()
        return written

    def check_place(self, place: int) -> None:
        if not 0 <= place < len(self.snapshot.rows):
            raise UserError(f"There is no image {place}.")

    def place_of(self, path: str) -> int | None:
        """The place of an image; None for one that is not in this data set."""
        return self._place_of.get(path)

    def path(self, place: int) -> str:
        return self._paths[place]


def state_of(here: CurrentLabel) -> str:
    """One of STATES."""
    if here.in_conflict:
        return "conflict"
    if here.is_decided:
        return "labeled" if here.label is not None else "none_of_these"
    return "unsure" if any(event.kind == UNSURE for event in here.passed) else "waiting"


def refuse_unseen_change(event: Event, here: CurrentLabel) -> None:
    """Raises UserError where the event would take the place of an own answer that the page had not shown.

    Somebody with two windows, or two people of the same name: the earlier answer must not go in silence.
    """
    own = here.verdict_of(event.person)
    if own is None or event.kind == SKIP or own.number <= event.seen or own.agrees_with(event):
        return
    said = own.class_name or "none of these"
    raise UserError(
        f"{event.person} answered '{said}' for {event.path} in another window just now. Answer once more to change it."
    )


def checked_name(person: str) -> str:
    """A person's name as the log keeps it."""
    name = " ".join(person.split())
    visible = name.translate(dict.fromkeys(map(ord, JOINERS)))
    if not visible or len(name) > LONGEST_NAME or not visible.isprintable():
        raise UserError(f"A name has 1 to {LONGEST_NAME} characters, all of which can be seen.")
    return name
