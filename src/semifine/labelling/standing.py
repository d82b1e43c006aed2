"""What the log says about an image by now."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from semifine.labelling.events import UNDO, UNSURE, Event


@dataclass(frozen=True)
class Replaced:
    """A verdict, and the one of another person that took its place."""

    old: Event
    by: Event


@dataclass(frozen=True)
class Standing:
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


NOTHING = Standing((), (), (), 0)


def standing(events: Sequence[Event]) -> Standing:
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
    return Standing(tuple(verdicts), tuple(replaced), tuple(passed.values()), last)


def standings(events: Iterable[Event]) -> dict[str, Standing]:
    """What holds for each path."""
    of_path: dict[str, list[Event]] = {}
    for event in events:
        of_path.setdefault(event.path, []).append(event)
    return {path: standing(of_image) for path, of_image in of_path.items()}


def agreed_labels(held: dict[str, Standing]) -> list[tuple[str, str]]:
    """Path and class of every image that has one undisputed class, in the order of paths."""
    return [(path, here.label) for path, here in sorted(held.items()) if here.label is not None]
