"""The classes of a label log: created, renamed, merged, retired and restored, each of which can be undone.

A label belongs to the class that had its name when the label was given. It follows that class through later renames and
merges.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from semifine.data.label_events import (
    CLASS_KINDS,
    CREATE_CLASS,
    LABEL,
    MERGE_CLASS,
    RENAME_CLASS,
    RETIRE_CLASS,
    UNDO,
    Event,
)


@dataclass(frozen=True)
class LabelClass:
    """A class and what the events say about it.

    Args:
        name: The current name.
        first_name: The name in the data set, or with which it was created.
        is_created: Whether the log created it.
        exists: False if its creation was undone.
        retired: Whether it is no longer offered and trained.
        merged_into: Number of the class that has its labels now.
    """

    name: str
    first_name: str
    is_created: bool = False
    exists: bool = True
    retired: bool = False
    merged_into: int | None = None

    @property
    def is_active(self) -> bool:
        """Whether images can get this class."""
        return self.exists and not self.retired and self.merged_into is None


class ClassHistory:
    """The list of classes after some events. The number of a class never changes.

    Args:
        names: The classes of the data set, which have the first numbers. Other names in labels are no classes, unless
            the log created them. None accepts all names.

    Example:
        >>> history = ClassHistory(["tit", "wren"])
        >>> history.apply(Event("Ada", "", CREATE_CLASS, "robin", number=1))
        >>> history.apply(Event("Ada", "", MERGE_CLASS, "tit", target="wren", number=2))
        >>> history.active_names
        ['wren', 'robin']
        >>> history.name_of(history.id_of("tit"))
        'wren'
    """

    def __init__(self, names: Sequence[str] | None = None) -> None:
        self.classes = [LabelClass(name, name) for name in names or ()]
        self._accepts_all = names is None
        self._unknown: set[int] = set()
        """Classes of labels that are not in the data set."""
        self.version = 0
        """Number of the last event that changed the list."""
        self._events: list[Event] = []
        self._created_by: dict[int, int] = {}
        """The class that an event created."""
        self._last_with_name = {entry.name: class_id for class_id, entry in enumerate(self.classes)}

    @property
    def active_names(self) -> list[str]:
        """Names of the classes that images can get."""
        return [entry.name for entry in self.classes if entry.is_active]

    def find(self, name: str) -> int | None:
        """Returns the class with this name that is neither merged nor removed, or None."""
        for class_id, entry in enumerate(self.classes):
            if entry.name == name and entry.exists and entry.merged_into is None:
                return class_id
        return None

    def last_with_name(self, name: str) -> int | None:
        """Returns the last class that had this name, also if it was merged, or None."""
        return self._last_with_name.get(name)

    def id_of(self, name: str) -> int:
        """Returns the class with this name, else the last one that had it, else a new class of the data set."""
        found = self.find(name)
        if found is None:
            found = self._last_with_name.get(name)
        if found is None:
            found = len(self.classes)
            self.classes.append(LabelClass(name, name, exists=self._accepts_all))
            self._unknown |= set() if self._accepts_all else {found}
        self._last_with_name.setdefault(name, found)
        return found

    def final_id(self, class_id: int) -> int:
        """Returns the class that a class was merged into, or the class itself."""
        seen = {class_id}
        while (target := self.classes[class_id].merged_into) is not None and target not in seen:
            seen.add(class_id := target)
        return class_id

    def name_of(self, class_id: int) -> str:
        """Returns the current name of the class that has the labels of a class."""
        return self.classes[self.final_id(class_id)].name

    def is_class_event(self, event: Event) -> bool:
        """Whether an event changes the list of classes; an undo does if it cancels such an event."""
        return event.kind in CLASS_KINDS or (event.kind == UNDO and not event.path)

    def apply(self, event: Event) -> None:
        """Applies an event that changes the list of classes."""
        self.version = event.number
        if event.kind != UNDO:
            self._events.append(event)
            self._apply(event)
            return
        self._events = [earlier for earlier in self._events if earlier.number != event.undoes]
        self.classes = [
            LabelClass(
                entry.first_name,
                entry.first_name,
                entry.is_created,
                exists=not entry.is_created and class_id not in self._unknown,
            )
            for class_id, entry in enumerate(self.classes)
        ]
        for earlier in self._events:
            self._apply(earlier)

    def _apply(self, event: Event) -> None:
        assert event.class_name is not None
        if event.kind == CREATE_CLASS:
            self._create(event)
            return
        class_id = self.id_of(event.class_name)
        entry = self.classes[class_id]
        if event.kind == RENAME_CLASS:
            assert event.target is not None
            other = self.find(event.target)
            if other is None or other == class_id:
                self.classes[class_id] = replace(entry, name=event.target)
                self._last_with_name[event.target] = class_id
            else:  # a run that was trained with this log knows the class by its new name
                self.classes[class_id] = replace(entry, merged_into=other)
        elif event.kind == MERGE_CLASS:
            assert event.target is not None
            target = self.final_id(self.id_of(event.target))
            self.classes[class_id] = replace(entry, merged_into=None if target == class_id else target)
        else:
            retired = event.kind == RETIRE_CLASS
            self.classes[class_id] = replace(entry, retired=retired, merged_into=entry.merged_into if retired else None)

    def _create(self, event: Event) -> None:
        assert event.class_name is not None
        class_id = self._created_by.get(event.number)
        if class_id is None and (known := self.find(event.class_name)) is not None:
            self._created_by[event.number] = known  # in a run that was trained with this log
            return
        if class_id is not None and not self.classes[class_id].is_created:
            return
        entry = LabelClass(event.class_name, event.class_name, is_created=True)
        if class_id is None:
            class_id = self._created_by[event.number] = len(self.classes)
            self.classes.append(entry)
        self.classes[class_id] = entry
        self._last_with_name[event.class_name] = class_id


@dataclass(frozen=True)
class ClassChanges:
    """What a log changed about the classes of a data set.

    Args:
        current: The current name of each class of the data set that changed; None for retired ones.
        created: Names of the classes that were created.
    """

    current: Mapping[str, str | None]
    created: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.current or self.created)


NO_CHANGES = ClassChanges({})


def resolve_classes(events: Iterable[Event], names: Sequence[str] | None = None) -> tuple[list[Event], ClassHistory]:
    """Replaces the class names of labels by the current names of their classes.

    Args:
        events: All events of a log, in order.
        names: Classes of the data set; None accepts all names.

    Returns:
        The events about images, and the classes.
    """
    history = ClassHistory(names)
    about_images: list[tuple[Event, int | None]] = []
    for event in events:
        if history.is_class_event(event):
            history.apply(event)
            continue
        is_label = event.kind == LABEL and event.class_name is not None
        about_images.append((event, history.id_of(str(event.class_name)) if is_label else None))
    resolved = [
        event if class_id is None else replace(event, class_name=history.name_of(class_id))
        for event, class_id in about_images
    ]
    return resolved, history


def class_changes(history: ClassHistory) -> ClassChanges:
    """Returns the changes that a training applies to its data set."""
    current: dict[str, str | None] = {}
    created: list[str] = []
    for class_id, entry in enumerate(history.classes):
        final = history.classes[history.final_id(class_id)]
        name = final.name if final.exists and not final.retired else None
        if entry.is_created:
            if entry.exists and name == entry.name and entry.merged_into is None:
                created.append(name)
        elif name != entry.first_name:
            current[entry.first_name] = name
    return ClassChanges(current, tuple(created))
