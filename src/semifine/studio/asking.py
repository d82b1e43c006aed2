"""What a page asks and says, checked for its form; a mistake is a UserError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from semifine.errors import UserError
from semifine.studio.desk import STATES, Said, Wanted
from semifine.studio.insight import Insight


def read_wanted(query: Mapping[str, str], insight: Insight) -> Wanted:
    """The queue that is asked for; raises UserError for what does not exist."""
    state, order = query.get("state", "waiting"), query.get("order", "worth")
    if state not in STATES or order not in insight.orders:
        raise UserError(f"There is no queue of '{state}' images by '{order}'.")
    return Wanted(
        person=query.get("person", ""),
        state=state,
        order=order,
        class_id=number(query["class"], "class") if query.get("class") else None,
        cluster=number(query["cluster"], "cluster") if query.get("cluster") else None,
        text=query.get("text", ""),
    )


def read_said(body: dict[str, Any]) -> Said:
    """What a person says, checked for its form."""
    images = body.get("images")
    if not isinstance(images, list) or not all(isinstance(image, dict) for image in images):
        raise UserError("'images' must be a list of images, each with its id and what was seen of it.")
    class_name = body.get("class")
    if class_name is not None and not isinstance(class_name, str):
        raise UserError("'class' must be the name of a class.")
    return Said(
        person=text(body, "person"),
        kind=text(body, "kind"),
        places=[number(image.get("id"), "id") for image in images],
        seen=[number(image.get("seen"), "seen") for image in images],
        class_name=class_name,
        beside=body.get("beside") is True,
    )


def read_iterations(value: Any) -> int | None:
    if value is None:
        return None
    steps = number(value, "iterations")
    if steps < 1:
        raise UserError("A training has at least one step.")
    return steps


def text(body: dict[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str):
        raise UserError(f"'{name}' must be text.")
    return value


def number(value: Any, name: str) -> int:
    """A whole number that is not negative, as JSON or as text."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53:
        return value
    raise UserError(f"'{name}' must be a whole number.")
