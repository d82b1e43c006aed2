"""Finds methods by name or file, and returns how reports display them.

Importing this module does not import torch, so the command line lists method names without delay.
"""

from __future__ import annotations

import hashlib
import os
import pkgutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import extract_tb
from types import ModuleType
from typing import TYPE_CHECKING

from semifine.errors import UserError, exhausted_memory

if TYPE_CHECKING:
    from semifine.methods.base import Group, Method

METHOD_FOLDERS = [str(Path(__file__).parent)]
SUPPORT_MODULES = {"base", "components", "levers", "registry"}
"""Modules in this folder that are not methods."""
FILE_SUFFIX = ".py"
"""A method name with this suffix is the path of a file."""


def method_names() -> list[str]:
    """Returns the names of the methods in this package, as ``--method`` accepts them.

    Example:
        >>> "fixmatch" in method_names()
        True
    """
    return sorted({module.name for module in pkgutil.iter_modules(METHOD_FOLDERS)} - SUPPORT_MODULES)


def absolute_name(name: str) -> str:
    """Makes the path of a method file absolute; leaves the name of a method in this package unchanged.

    Example:
        >>> absolute_name("soc")
        'soc'
        >>> absolute_name("/methods/../mine.py")
        '/mine.py'
    """
    return os.path.abspath(os.path.expanduser(name)) if is_method_file(name) else name


def is_method_file(name: str | None) -> bool:
    """Whether a name is the path of a file with a method, not the name of a method in this package.

    Example:
        >>> is_method_file("mine.py"), is_method_file("soc"), is_method_file(None)
        (True, False, False)
    """
    return name is not None and name.endswith(FILE_SUFFIX)


def method_file_hash(path: str) -> str:
    """Returns the SHA-256 of a method file, by which a resumed run recognizes its method.

    Example:
        >>> _ = Path("mine.py").write_text("")
        >>> method_file_hash("mine.py")[:8]
        'e3b0c442'
    """
    return hashlib.sha256(_read_file(Path(absolute_name(path)))).hexdigest()


def method_class(name: str) -> type[Method]:
    """Returns the class of a method. Executes a method file.

    Do not call it with the name from a settings file before
    :func:`~semifine.config.loading.with_named_method` has accepted the name.

    Args:
        name: Name of a method in this package, or path of a Python file that defines one.

    Raises:
        UserError: If there is no such method, or its file cannot be imported.

    Example:
        >>> method_class("fixmatch").title
        'FixMatch'
    """
    if is_method_file(name):
        path = Path(absolute_name(name))
        return _execute(path, _read_file(path))
    if name not in method_names():
        raise UserError(
            f"Unknown method '{name}'. Valid names: {', '.join(method_names())}, or the path of a {FILE_SUFFIX} file."
        )
    return _load_packaged(name)


@dataclass(frozen=True)
class MethodDisplay:
    """How reports and figures show a method: the class attributes of the same names."""

    title: str
    color: str | None
    line_style: str
    group: Group


@cache
def method_display(name: str) -> MethodDisplay:
    """Returns title, color, line style and group of a method.

    A method that is not in this package gets its name as title and no color, because reports must not execute method
    files.

    Example:
        >>> method_display("soc").title
        'SoC'
        >>> method_display("my_method").title
        'my_method'
    """
    if name not in method_names():
        return MethodDisplay(name, None, "-", "semi_supervised")
    method = method_class(name)
    return MethodDisplay(method.title, method.color, method.line_style, method.group)


def _load_packaged(name: str) -> type[Method]:
    file = f"methods/{name}.py"
    with _import_errors_as_user_errors(file):
        module = import_module(f"semifine.methods.{name}")
    methods = [method for method in _methods_in(module) if method.name == name]
    if len(methods) != 1:
        raise UserError(f"{file} has {f'{len(methods)} classes' if methods else 'no class'} with the name '{name}'.")
    return methods[0]


def _read_file(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UserError(
            f"The method file {path} cannot be read: {reason}; if it was moved, give its new path with --method."
        ) from error


@cache
def _execute(path: Path, source: bytes) -> type[Method]:
    """Executes the source of a method file; cached, so that the same source always gives the same class."""
    module = ModuleType(f"semifine_method_{hashlib.sha256(os.fsencode(path) + source).hexdigest()[:16]}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses resolve the types of their fields through sys.modules
    with _import_errors_as_user_errors(str(path)):
        exec(compile(source, path, "exec"), vars(module))
    methods = [method for method in _methods_in(module) if method.__module__ == module.__name__]
    if len(methods) != 1:
        raise UserError(
            f"{path} must contain exactly one named subclass of semifine.methods.base.Method, but it contains "
            f"{len(methods) or 'none'}."
        )
    if methods[0].name in method_names():
        raise UserError(f"{path}: '{methods[0].name}' is the name of another method; choose a different one.")
    return methods[0]


def _methods_in(module: ModuleType) -> list[type[Method]]:
    """Returns all methods in a module's namespace that have a name, including imported ones."""
    from semifine.methods.base import Method  # slow: imports torch, which listing names does not need

    members = [member for member in vars(module).values() if isinstance(member, type) and issubclass(member, Method)]
    return [method for method in dict.fromkeys(members) if hasattr(method, "name")]


@contextmanager
def _import_errors_as_user_errors(file: str) -> Iterator[None]:
    """Raises any exception during the import of a method file as a ``UserError`` that names the file and line."""
    try:
        yield
    except Exception as error:
        if exhausted_memory(error):
            raise
        line = next((frame.lineno for frame in reversed(extract_tb(error.__traceback__)) if file in frame.filename), 0)
        location = f", line {line}" if line else ""
        reason = " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".")
        raise UserError(f"{file} cannot be imported: {reason}{location}.") from error
