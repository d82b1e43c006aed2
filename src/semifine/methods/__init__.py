"""One short file a method. A new file here is a new method; its name is the file's name."""

from __future__ import annotations

import os
import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.errors import UserError

if TYPE_CHECKING:
    from semifine.methods.base import Method


SHARED = {"base", "gathering", "loading", "ring"}
"""Files that methods share."""
FILE = ".py"
"""How the name of a method ends that is a file of somebody's own."""


def method_names() -> list[str]:
    """Names that ``--method`` takes."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.name not in SHARED)


def absolute_name(name: str) -> str:
    """The name by which a method is found from any folder: that of a file becomes its whole path."""
    return os.path.abspath(os.path.expanduser(name)) if name.endswith(FILE) else name


def method_class(name: str) -> type[Method]:
    """The class of a method by its name, or by the path of its file."""
    from semifine.methods.registry import load_own, load_shipped  # with torch, for which names need not wait

    if name.endswith(FILE):
        return load_own(Path(absolute_name(name)))
    if name not in method_names():
        raise UserError(
            f"Unknown method '{name}'. Valid ones: {', '.join(method_names())}, or the path of a {FILE} file."
        )
    return load_shipped(name)
