"""``semifine list``: lists methods, data sources, backbones, presets and experiments."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence

from semifine.cli.main import Parser

Entry = tuple[str, str, type | None]
"""Name, description (empty if there is none), and settings class (None without settings)."""


def run(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    description = "List the available methods, data sources, backbones, presets or experiments."
    parser = Parser(prog="semifine list", description=description, allow_abbrev=False)
    parser.add_argument("kind", choices=KINDS, help="what to list")
    parser.add_argument("--plain", action="store_true", help="print names only, one per line")
    options = parser.parse_args(arguments)
    for name, text, settings_class in KINDS[options.kind]():
        if options.plain or not text:
            print(name)
        else:
            print(f"{name}\n    {text}")
            _print_settings("method" if options.kind == "methods" else "data", settings_class)
    return 0


def _print_settings(group: str, settings_class: type | None) -> None:
    for field in dataclasses.fields(settings_class) if settings_class else ():
        print(f"      --{group}.{field.name} ({field.default}): {field.metadata.get('help', '')}")


def _methods() -> Iterator[Entry]:
    from semifine.methods import method_class, method_names  # slow: imports torch

    for name in method_names():
        yield name, method_class(name).summary, method_class(name).Settings


def _datasets() -> Iterator[Entry]:
    from semifine.data.sources import all_sources  # slow: imports NumPy

    for source in all_sources().values():
        yield source.name, source.summary, source.settings_class


def _backbones() -> Iterator[Entry]:
    # Slow. The second registers networks with timm.
    import timm

    from semifine.models import wide_resnet  # noqa: F401

    for name in timm.list_models():
        yield name, "", None


def _presets() -> Iterator[Entry]:
    from semifine.config import preset_names, preset_summary  # slow: imports the data package

    for name in preset_names():
        yield name, preset_summary(name), None


UNLABELED = {"in": "unlabeled images of the known classes", "inout": "unlabeled images of known and other classes"}


def _experiments() -> Iterator[Entry]:
    from semifine.experiments.tables import published_experiments  # slow: imports torch

    for experiment in published_experiments():
        yield experiment.name, f"{experiment.row.title}, {UNLABELED[experiment.table.unlabeled]}", None


KINDS: dict[str, Callable[[], Iterator[Entry]]] = {
    "methods": _methods,
    "datasets": _datasets,
    "backbones": _backbones,
    "presets": _presets,
    "experiments": _experiments,
}
