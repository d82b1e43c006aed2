"""Loads the class of a method from its file."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType

from semifine import methods
from semifine.errors import UserError
from semifine.methods.base import Method


def load_shipped(name: str) -> type[Method]:
    """The method of a file in this folder; the file's name is the method's name."""
    file = f"methods/{name}.py"
    with _mistakes_told(file):
        module = import_module(f"{methods.__name__}.{name}")
    found = [method for method in _methods_in(module) if method.name == name]
    if len(found) != 1:
        raise UserError(f"{file} has {f'{len(found)} classes' if found else 'no class'} whose name is '{name}'.")
    return found[0]


def load_own(path: Path) -> type[Method]:
    """The one method of a file that lies anywhere; a file that was edited in the meantime is read anew."""
    try:
        source = path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The method's file {path} cannot be read: {reason}; if it was moved, bring it back, since runs look for "
            "it where they began with it."
        ) from error
    return _run(path, source)


@cache
def _run(path: Path, source: bytes) -> type[Method]:
    """The method that the file's text makes; the same text is run once, so that a class equals itself."""
    module = ModuleType(f"semifine_method_{hashlib.sha256(os.fsencode(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # where the types of a dataclass's fields are looked up
    with _mistakes_told(str(path)):
        exec(compile(source, path, "exec"), vars(module))
    own = [method for method in _methods_in(module) if method.__module__ == module.__name__]
    if len(own) != 1:
        raise UserError(
            f"{path} must have one class with a name, derived from semifine.methods.base.Method, "
            f"and has {len(own) or 'none'}."
        )
    if own[0].name in methods.method_names():
        raise UserError(f"{path}: '{own[0].name}' is another method's name; give the class a name of its own.")
    return own[0]


def _methods_in(module: ModuleType) -> list[type[Method]]:
    """Classes that the module knows, also those of others, each once; what only others derive from has no name."""
    known = [member for member in vars(module).values() if isinstance(member, type) and issubclass(member, Method)]
    return [method for method in dict.fromkeys(known) if hasattr(method, "name")]


@contextmanager
def _mistakes_told(file: str) -> Iterator[None]:
    """Whatever a file may raise when it is run is a sentence about that file, with the line where that is known."""
    try:
        yield
    except Exception as error:
        line = next((frame.lineno for frame in reversed(extract_tb(error.__traceback__)) if file in frame.filename), 0)
        where = f", line {line}" if line else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise UserError(f"{file} cannot be imported: {reason}{where}.") from error
