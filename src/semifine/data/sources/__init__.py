"""Data sources: one file reads one layout of data into a catalog.

A module of this package that defines ``SOURCE`` is a data source. ``docs/how-to/add_a_data_source.md`` shows how to add
one.
"""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from semifine.data.catalog import Catalog
from semifine.data.crops import CropSettings, crop_catalog
from semifine.errors import UserError
from semifine.fields import build


@dataclass(frozen=True)
class Source:
    """A data source.

    Example:
        >>> get_source("semi_cub").path_kind
        'folder'
    """

    name: str
    summary: str
    """One line for ``semifine list datasets``."""
    path_kind: Literal["folder", "file", "folder or file", "nothing"]
    """What ``PATH`` is in ``name:PATH``; ``nothing`` for a source written as ``name``."""
    settings_class: type[Any]
    """A frozen dataclass with the settings of the source, see :func:`semifine.fields.setting`."""
    load: Callable[[Any, Any], Catalog]
    """Reads the catalog from a path (None if ``path_kind`` is ``nothing``) and settings."""
    is_own_photos: bool = False
    """Whether the source reads the user's photos, whose number and size are unknown in advance."""
    claims: Callable[[Path], bool] = lambda path: False  # noqa: ARG005
    """Whether the source reads an existing path that is given without the name of a source."""


@functools.cache
def all_sources() -> dict[str, Source]:
    """All data sources by name.

    Example:
        >>> "synthetic" in all_sources()
        True
    """
    modules = (importlib.import_module(f"{__name__}.{module.name}") for module in pkgutil.iter_modules(__path__))
    sources: list[Source] = [module.SOURCE for module in modules if hasattr(module, "SOURCE")]
    return {source.name: source for source in sorted(sources, key=lambda source: source.name)}


def source_names() -> list[str]:
    """The names of all sources.

    Example:
        >>> source_names()[:2]
        ['cifar10', 'cifar100']
    """
    return list(all_sources())


def get_source(name: str) -> Source:
    """Returns the source with a name; raises UserError if the name is unknown."""
    if name not in all_sources():
        raise UserError(f"Unknown data source '{name}'. Valid ones: {', '.join(source_names())}.")
    return all_sources()[name]


def is_own_photos(name: str) -> bool:
    """Whether the source with this name reads the user's photos."""
    return name in all_sources() and all_sources()[name].is_own_photos


def build_settings(spec: str, values: Mapping[str, Any]) -> Any:
    """Builds the settings of the source that ``spec`` names from plain values.

    Example:
        >>> build_settings("synthetic", {"genera": "3"}).genera
        3
    """
    name, _ = resolve(spec)
    return build(get_source(name).settings_class, values, "data.")


def load_catalog(spec: str, settings: Any = None) -> Catalog:
    """Reads the catalog that ``spec`` names, see :func:`resolve`, and crops its images if the settings contain boxes.

    Args:
        spec: A folder, a table, ``name`` or ``name:path``.
        settings: The settings of the source; None uses the defaults.

    Example:
        >>> load_catalog("synthetic").num_classes
        40
    """
    name, root = resolve(spec)
    source = get_source(name)
    settings = source.settings_class() if settings is None else settings
    if not isinstance(settings, source.settings_class):
        wanted, given = source.settings_class.__qualname__, type(settings).__qualname__
        raise TypeError(f"the settings of '{name}' must be {wanted}, not {given}")
    catalog = source.load(root, settings)
    return crop_catalog(catalog, settings) if isinstance(settings, CropSettings) else catalog


def resolve(spec: str) -> tuple[str, Path | None]:
    """Finds the name of the source and the path for ``spec``: a folder, a table, ``name`` or ``name:path``.

    An existing folder or file takes precedence, so a folder named ``semi_cub:old`` is a folder.

    Raises:
        UserError: If ``spec`` names neither an existing path nor a source.

    Example:
        >>> resolve("synthetic")
        ('synthetic', None)
    """
    path = _absolute(spec)
    if spec.strip() and path.exists():
        for source in all_sources().values():
            if source.claims(path):
                return source.name, path
        if path.is_file():
            raise UserError(f"{spec} is a file but not a table: give a .csv or .tsv file, or a folder of images.")
    name, colon, rest = spec.partition(":")
    if name in all_sources():
        return name, _path_of(all_sources()[name], rest if colon else None)
    raise UserError(
        f"'{spec}' is neither an existing folder or table nor a data source. Valid are a folder, "
        f"a .csv or .tsv file, {describe_sources()}."
    )


def describe_sources() -> str:
    """Lists how each source is written on the command line.

    Example:
        >>> describe_sources().split(", ")[:2]
        ['cifar10:PATH', 'cifar100:PATH']
    """
    return ", ".join(
        name if source.path_kind == "nothing" else f"{name}:PATH" for name, source in all_sources().items()
    )


def _path_of(source: Source, path: str | None) -> Path | None:
    name, kind = source.name, source.path_kind
    if kind == "nothing":
        if path:
            raise UserError(f"The data source '{name}' takes no path: write '{name}' instead of '{name}:{path}'.")
        return None
    if not path:
        raise UserError(f"The data source '{name}' needs the {kind} of its data: write {name}:PATH.")
    root = _absolute(path)
    if not ((root.is_dir() and "folder" in kind) or (root.is_file() and "file" in kind)):
        raise UserError(f"{path}, given as {name}:PATH, is not an existing {kind}; if it was moved, give the new path.")
    return root


def _absolute(path: str) -> Path:
    return Path(os.path.abspath(os.path.expanduser(path)))
