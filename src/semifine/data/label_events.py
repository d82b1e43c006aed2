"""Events of the label log, and what they say about one image."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

LABEL, NONE_OF_THESE, UNSURE, SKIP, UNDO = "label", "none_of_these", "unsure", "skip", "undo"
VERDICTS = (LABEL, NONE_OF_THESE)
"""Events that state what an image shows. studio/static/answers.js lists the buttons."""
CREATE_CLASS, RENAME_CLASS, MERGE_CLASS = "create_class", "rename_class", "merge_class"
RETIRE_CLASS, RESTORE_CLASS = "retire_class", "restore_class"
CLASS_KINDS = (CREATE_CLASS, RENAME_CLASS, MERGE_CLASS, RETIRE_CLASS, RESTORE_CLASS)
"""Events that change the list of classes; see :mod:`semifine.data.label_classes`."""
KINDS = (*VERDICTS, UNSURE, SKIP, UNDO, *CLASS_KINDS)
KINDS_WITH_CLASS = (LABEL, *CLASS_KINDS)
KINDS_WITH_TARGET = (RENAME_CLASS, MERGE_CLASS)


@dataclass(frozen=True)
class Event:
    """An event in the log.

    Args:
        person: Who labeled the image.
        path: The image; empty for events about classes.
        kind: One of ``KINDS``.
        class_name: The class of a ``label`` or of an event about a class; None for other kinds.
        seen: Number of the last event on this image that the person saw and replaces.
        undoes: Number of the event that an ``undo`` cancels.
        shown: What the page showed: the candidates, the model and its prediction.
        number: Number in the log; set by the log.
        time: UTC time in ISO 8601 format; set by the log.
        target: The new name of a renamed class, or the class that a class was merged into.

    Example:
        >>> Event("Ada", "1.jpg", LABEL, "robin").is_verdict
        True
    """

    person: str
    path: str
    kind: str
    class_name: str | None = None
    seen: int = 0
    undoes: int | None = None
    shown: dict[str, Any] = field(default_factory=dict)
    number: int = 0
    time: str = ""
    target: str | None = None

    @property
    def is_verdict(self) -> bool:
        """Whether the event states what the image shows."""
        return self.kind in VERDICTS

    def agrees_with(self, other: Event) -> bool:
        """Whether both events give the image the same label."""
        return (self.kind, self.class_name) == (other.kind, other.class_name)


@dataclass(frozen=True)
class Replaced:
    """A verdict that another person replaced.

    Args:
        old: The replaced verdict.
        by: The verdict that replaced it.
    """

    old: Event
    by: Event


@dataclass(frozen=True)
class CurrentLabel:
    """The current state of one image.

    Args:
        verdicts: Verdicts that were neither undone nor replaced.
        replaced: Verdicts that another person replaced, until the person of the verdict answers again.
        passed: The last ``unsure`` or ``skip`` of each person without a later verdict.
        last: Number of the last event on this image; 0 without events.
    """

    verdicts: tuple[Event, ...]
    replaced: tuple[Replaced, ...]
    passed: tuple[Event, ...]
    last: int

    @property
    def in_conflict(self) -> bool:
        """Whether verdicts of different people disagree."""
        return any(not verdict.agrees_with(self.verdicts[0]) for verdict in self.verdicts)

    @property
    def is_decided(self) -> bool:
        """Whether there are verdicts and all of them agree."""
        return len(self.verdicts) > 0 and not self.in_conflict

    @property
    def label(self) -> str | None:
        """The class that all verdicts agree on; None without one."""
        return self.verdicts[-1].class_name if self.is_decided else None

    def verdict_of(self, person: str) -> Event | None:
        """The current verdict of a person, or None."""
        return next((verdict for verdict in self.verdicts if verdict.person == person), None)


NO_LABEL = CurrentLabel((), (), (), 0)
"""The state of an image without events."""


def current_label(events: Sequence[Event]) -> CurrentLabel:
    """Computes the current state of one image from its events, in the order of their numbers.

    A verdict replaces the person's earlier verdict, and different verdicts of other people that the person saw
    (``seen``). ``unsure`` removes the person's verdict. Undone events are ignored. Verdicts that differ and do not
    replace each other are in conflict until a person who saw all of them gives a new verdict.

    Example:
        >>> ada = Event("Ada", "1.jpg", LABEL, "robin", number=1)
        >>> bo = Event("Bo", "1.jpg", LABEL, "wren", number=2)
        >>> current_label([ada, bo]).in_conflict
        True
    """
    undone = {event.undoes for event in events if event.kind == UNDO}
    effective = [event for event in events if event.kind != UNDO and event.number not in undone]
    verdicts: list[Event] = []
    replaced: list[Replaced] = []
    passed: dict[str, Event] = {}
    for event in effective:
        passed.pop(event.person, None)
        if event.is_verdict:
            others = [old for old in verdicts if old.person != event.person]
            superseded = [old for old in others if old.number <= event.seen and not old.agrees_with(event)]
            verdicts = [*(old for old in others if old not in superseded), event]
            replaced = [earlier for earlier in replaced if earlier.old.person != event.person]
            replaced += [Replaced(old, event) for old in superseded]
            continue
        passed[event.person] = event
        if event.kind == UNSURE:
            verdicts = [old for old in verdicts if old.person != event.person]
    last = events[-1].number if events else 0
    return CurrentLabel(tuple(verdicts), tuple(replaced), tuple(passed.values()), last)
