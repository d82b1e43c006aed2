"""Where catalogs come from: one module a kind of data.

A source is a module of this package with a frozen dataclass ``Settings``, the only place of its defaults,
and a function ``load(root, settings) -> Catalog``. Modules are imported when they are asked for.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any, Literal

from semifine.data.catalog import Catalog
from semifine.errors import UserError

_NEEDS: dict[str, Literal["folder", "file", "nothing"]] = {
    "folder": "folder",
    "table": "file",
    "semi_aves": "folder",
    "semi_cub": "folder",
    "semi_fungi": "folder",
    "semi_inat": "folder",
    "synthetic": "nothing",
}
OWN_PHOTOS = ("folder", "table")
"""Sources of which nothing is known beforehand."""
TABLE_SUFFIXES = (".csv", ".tsv")


def source_names() -> list[str]:
    """Names of all sources."""
    return sorted(_NEEDS)


def summary(name: str) -> str:
    """What a source is, in one line."""
    return str(_module(name).__doc__).partition("\n")[0]


def settings_class(name: str) -> type[Any]:
    """The dataclass of a source's settings."""
    if name not in _NEEDS:
        raise UserError(f"Unknown data source '{name}'. Valid ones: {', '.join(source_names())}.")
    settings: type[Any] = _module(name).Settings
    return settings


def load_catalog(spec: str, settings: Any = None) -> Catalog:
    """Reads what ``spec`` names (see ``resolve``), with the source's own settings or their defaults."""
    name, root = resolve(spec)
    wanted = settings_class(name)
    settings = wanted() if settings is None else settings
    if not isinstance(settings, wanted):
        raise TypeError(f"the settings of '{name}' must be {wanted.__qualname__}, not {type(settings).__qualname__}")
    catalog: Catalog = _module(name).load(root, settings)
    return catalog


def resolve(spec: str) -> tuple[str, Path | None]:
    """The source and its root that ``spec`` names: a folder, a table, ``name`` or ``name:path``.

    Something that exists on disk wins, so a folder called ``semi_cub:old`` is a folder.
    """
    path = _absolute(spec)
    if spec.strip() and path.is_dir():
        return "folder", path
    if path.is_file():
        if path.suffix.lower() in TABLE_SUFFIXES:
            return "table", path
        raise UserError(f"{spec} is a file but not a table: give a .csv or .tsv file, or a folder of images.")
    name, colon, rest = spec.partition(":")
    if name in _NEEDS:
        return name, _named_root(name, rest if colon else None)
    raise UserError(f"'{spec}' is neither an existing folder or table nor a data source. Valid are {_choices()}.")


def _named_root(name: str, rest: str | None) -> Path | None:
    needs = _NEEDS[name]
    if needs == "nothing":
        if rest:
            raise UserError(f"The data source '{name}' takes no path: write '{name}' instead of '{name}:{rest}'.")
        return None
    if not rest:
        raise UserError(f"The data source '{name}' needs the {needs} of its data: write {name}:PATH.")
    root = _absolute(rest)
    if not (root.is_dir() if needs == "folder" else root.is_file()):
        raise UserError(
            f"{rest}, given as {name}:PATH, is not an existing {needs}; if it was moved, say where it is now."
        )
    return root


def _choices() -> str:
    named = [name if needs == "nothing" else f"{name}:PATH" for name, needs in sorted(_NEEDS.items())]
    return f"a folder, a .csv or .tsv file, {', '.join(named)}"


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))


def _module(name: str) -> Any:
    return importlib.import_module(f"semifine.data.sources.{name}")
