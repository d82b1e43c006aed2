"""One short file a method. A new file here is a new method; its name is the file's name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING

from semifine.errors import UserError

if TYPE_CHECKING:
    from semifine.methods.base import Method


SHARED = {"base", "gathering", "ring"}
"""Files that methods share."""


def method_names() -> list[str]:
    """Names that ``--method`` takes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in SHARED)


def method_class(name: str) -> type[Method]:
    """The class of a method by its name."""
    if name not in method_names():
        raise UserError(f"Unknown method '{name}'. Valid ones: {', '.join(method_names())}.")
    module = import_module(f"semifine.methods.{name}")
    (found,) = (
        member for member in vars(module).values() if isinstance(member, type) and getattr(member, "name", None) == name
    )
    return found
