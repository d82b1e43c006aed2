"""Changes of the list of classes that people make in the studio."""

from __future__ import annotations

from dataclasses import dataclass

from semifine.data.catalog import normalize_class_name
from semifine.data.label_classes import ClassHistory
from semifine.data.label_events import (
    CREATE_CLASS,
    KINDS_WITH_TARGET,
    MERGE_CLASS,
    RENAME_CLASS,
    RESTORE_CLASS,
    RETIRE_CLASS,
    Event,
)
from semifine.errors import UserError


@dataclass(frozen=True)
class ClassChange:
    """A person's change of the list of classes."""

    person: str
    action: str
    """One of ``CLASS_ACTIONS``."""
    name: str
    to: str | None = None
    """The new name, or the class to merge into."""


CLASS_ACTIONS = {
    "create": CREATE_CLASS,
    "rename": RENAME_CLASS,
    "merge": MERGE_CLASS,
    "retire": RETIRE_CLASS,
    "restore": RESTORE_CLASS,
}
MAX_CLASS_NAME_LENGTH = 200


def class_event(classes: ClassHistory, change: ClassChange) -> Event:
    """Returns the event of a change. Raises ``UserError`` if it is not possible.

    Example:
        >>> class_event(ClassHistory(["tit"]), ClassChange("Ada", "rename", "tit", "Great tit")).target
        'Great tit'
    """
    kind = CLASS_ACTIONS.get(change.action)
    if kind is None:
        raise UserError(f"'{change.action}' is not an action for classes; use one of {', '.join(CLASS_ACTIONS)}.")
    name = normalize_class_name(change.name)
    if kind == CREATE_CLASS:
        return Event(change.person, "", kind, _new_class_name(classes, name))
    class_id = classes.find(name)
    if class_id is None and kind == RESTORE_CLASS:
        class_id = classes.last_with_name(name)
    if class_id is None:
        raise UserError(f"There is no class '{name}'.")
    entry = classes.classes[class_id]
    if kind == RESTORE_CLASS:
        if entry.is_active:
            raise UserError(f"The class '{name}' is neither retired nor merged.")
    elif not entry.is_active:
        raise UserError(f"The class '{name}' is retired: restore it first.")
    if kind not in KINDS_WITH_TARGET:
        return Event(change.person, "", kind, name)
    target = normalize_class_name(change.to or "")
    if kind == RENAME_CLASS:
        return Event(change.person, "", kind, name, target=_new_class_name(classes, target))
    if target == name or target not in classes.active_names:
        raise UserError(f"'{target}' is not another class to merge '{name}' into.")
    return Event(change.person, "", kind, name, target=target)


def _new_class_name(classes: ClassHistory, name: str) -> str:
    if not name or len(name) > MAX_CLASS_NAME_LENGTH or not name.isprintable():
        raise UserError(f"The name of a class must have 1 to {MAX_CLASS_NAME_LENGTH} visible characters.")
    if (found := classes.find(name)) is not None:
        state = "exists already" if classes.classes[found].is_active else "is retired: restore it"
        raise UserError(f"The class '{name}' {state}.")
    return name
