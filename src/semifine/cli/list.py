"""semifine list"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from semifine.cli.main import Parser

KINDS = ("methods", "datasets", "backbones", "presets", "experiments")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(prog="semifine list", description="Show what there is to choose from.", allow_abbrev=False)
    parser.add_argument("kind", choices=KINDS, help="what to show")
    parser.add_argument("--plain", action="store_true", help="names only, one a line")
    options = parser.parse_args(arguments)
    kinds = {
        "methods": _methods,
        "datasets": _datasets,
        "backbones": _backbones,
        "presets": _presets,
        "experiments": _experiments,
    }
    lines = kinds[options.kind]
    for name, text, settings_class in lines():
        if options.plain or not text:
            print(name)
        else:
            print(f"{name}\n    {text}")
            _print_settings(options.kind, settings_class)
    return 0


def _print_settings(kind: str, settings_class: type | None) -> None:
    if settings_class is None:
        return
    group = {"methods": "method", "datasets": "data"}[kind]
    for field in dataclasses.fields(settings_class):
        print(f"      --{group}.{field.name} ({field.default}): {field.metadata.get('help', '')}")


def _methods() -> Iterator[tuple[str, str, type | None]]:
    from semifine.methods import method_class, method_names

    for name in method_names():
        yield name, method_class(name).summary, method_class(name).Settings


def _datasets() -> Iterator[tuple[str, str, type | None]]:
    from semifine.data.sources import all_sources

    for source in all_sources().values():
        yield source.name, source.summary, source.settings_class


def _backbones() -> Iterator[tuple[str, str, type | None]]:
    import timm

    for name in timm.list_models():
        yield name, "", None


def _presets() -> Iterator[tuple[str, str, type | None]]:
    from semifine.config import preset_names, preset_summary

    for name in preset_names():
        yield name, preset_summary(name), None


def _experiments() -> Iterator[tuple[str, str, type | None]]:
    from semifine.experiments.tables import published_experiments

    for experiment in published_experiments():
        yield experiment.name, f"{experiment.row.title}, {experiment.table.unlabeled}", None
