"""Writes the reference pages that follow from the code: commands, settings, methods and data sources.

``make docs`` runs it; a test fails if a page in docs/reference differs from what it writes.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import inspect
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import semifine
from semifine import errors, soft_labels
from semifine.augment.settings import AugmentOptions
from semifine.cli import main as cli
from semifine.config import preset_names, preset_summary
from semifine.config.train_settings import TrainSettings
from semifine.data import sources
from semifine.fields import describe_type, field_names, type_hints
from semifine.methods import method_class, method_names

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semifine"
FOLDER = ROOT / "docs" / "reference"
GENERATED = "<!-- Generated from the code by `make docs`; do not edit. -->\n\n"


def main() -> None:
    for name, text in pages().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


def pages() -> dict[str, str]:
    """Returns the text of each generated page by its file name."""
    return {
        "api.md": GENERATED + api(),
        "command_line.md": GENERATED + command_line(),
        "data_sources.md": GENERATED + data_sources(),
        "methods.md": GENERATED + methods(),
        "modules.md": GENERATED + modules(),
        "settings.md": GENERATED + settings(),
    }


def api() -> str:
    """Returns a page of mkdocstrings directives, which the site replaces by the docstrings."""
    public = [getattr(semifine, name) for name in semifine.__all__ if not name.startswith("_")]
    core = [getattr(soft_labels, name) for name in soft_labels.__all__]
    sections = {
        "Train, load, predict": [*directives(public), "semifine.inference.prediction.Prediction"],
        "Method interface": [name for module in METHOD_INTERFACE for name in directives(public_objects(module))],
        "SoC": [name for name in directives(core) if name not in directives(public)],
    }
    text = "# Python API\n\n`make docs` builds this page from the docstrings; the source shows the names only.\n"
    for title, names in sections.items():
        text += f"\n## {title}\n\n" + "\n".join(f"::: {name}\n" for name in names)
    return text


METHOD_INTERFACE = ("semifine.methods.base", "semifine.methods.components", "semifine.losses", "semifine.distributed")


def public_objects(module: str) -> list[Any]:
    """Returns the public classes and functions that a module defines, in order of their definition."""
    return [
        found
        for name, found in vars(import_module(module)).items()
        if not name.startswith("_") and getattr(found, "__module__", "") == module and inspect.getdoc(found)
    ]


def directives(objects: list[Any]) -> list[str]:
    return [f"{found.__module__}.{found.__qualname__}" for found in objects if hasattr(found, "__qualname__")]


def command_line() -> str:
    sections = [
        "# Command line\n\n"
        "```\nsemifine COMMAND [OPTIONS]\n```\n\n"
        "`semifine COMMAND --help` prints the options of a command. For `train` and `prepare` it prints the most\n"
        "important ones, and `--help-all` prints all. Messages and progress go to standard error. With `--json`,\n"
        "standard output is exactly one JSON object.\n\n"
        "| exit code | meaning |\n|---|---|\n"
        "| 0 | success |\n"
        "| 1 | `reproduce`: some runs failed; the table names them with their reasons |\n"
        f"{exit_codes()}"
        "| 130, 143 | stopped by Ctrl-C or SIGTERM, after saving |\n"
    ]
    for verb, summary in cli.VERBS.items():
        parser = parser_of(verb)
        sections.append(f"## {verb}\n\n{sentence(parser.description or summary)}\n\n{options_of(verb, parser)}")
    return "\n".join(sections)


def exit_codes() -> str:
    """Returns table rows for `UserError` and its subclasses, by their `exit_code`."""
    lines = []
    for kind in vars(errors).values():
        if inspect.isclass(kind) and issubclass(kind, errors.UserError):
            code = getattr(kind, "exit_code", 2)
            lines.append(f"| {code} | {first_sentence(kind.__doc__ or kind.__name__)} |\n")
    return "".join(sorted(lines))


def parser_of(verb: str) -> argparse.ArgumentParser:
    """Runs ``semifine VERB --help`` and returns the parser that would print the help."""
    found: list[argparse.ArgumentParser] = []

    def keep(parser: argparse.ArgumentParser) -> None:
        found.append(parser)

    with mock.patch.object(argparse.ArgumentParser, "print_help", keep), contextlib.suppress(SystemExit):
        cli.main([verb, "--help"])
    return found[0]


def options_of(verb: str, parser: argparse.ArgumentParser) -> str:
    settings_groups = {"training settings", "augmentation settings"}
    shown, hidden = [], False
    for group in parser._action_groups:
        if group.title in settings_groups:
            hidden = bool(group._group_actions)
            continue
        shown += [action for action in group._group_actions if not isinstance(action, argparse._HelpAction)]
    text = table(("argument", "meaning"), [(spelling(action), cell(action.help or "")) for action in shown])
    if hidden:
        text += f"\n`{verb}` also takes every [setting](settings.md) as an option, such as `--batch-size 32`.\n"
    return text


def spelling(action: argparse.Action) -> str:
    if not action.option_strings:
        many = "..." if action.nargs in ("+", "*") else ""
        name = action.metavar if isinstance(action.metavar, str) else action.dest
        return f"`{name}{many}`"
    if action.nargs == 0:
        return ", ".join(f"`{option}`" for option in action.option_strings)
    value = action.metavar or "|".join(map(str, action.choices or ())) or action.dest.upper()
    return cell(f"`{action.option_strings[-1]} {value}`")


SETTINGS_INTRODUCTION = """# Settings of a run

```sh
semifine train photos --batch-size 64 --method.alpha 4 --out runs/mine
```

Each setting is an option of `semifine train`, a keyword argument of `semifine.fit`, and a key of a YAML file for
`--config`. In YAML and Python, names have underscores: `batch_size`. Later layers override earlier ones:

1. the defaults below
2. values chosen from the data (only for a `folder` or `table`; a preset then sets no image size, steps or EMA decay)
3. `--preset NAME`, several in the order given
4. `--config FILE`
5. options of the command line

`RUN/settings.yaml` holds all resolved values and is itself a valid `--config`. The settings of a
[method](methods.md) start with `method.`, and the settings of a [data source](data_sources.md) with `data.`.

"""


def settings() -> str:
    presets = [(f"`{name}`", cell(preset_summary(name))) for name in preset_names()]
    return (
        SETTINGS_INTRODUCTION
        + settings_table(TrainSettings, without=field_names(AugmentOptions))
        + "\n## Augmentation\n\n"
        + settings_table(AugmentOptions)
        + "\n## Presets\n\n"
        + "`semifine train --preset NAME` applies a preset. Files in `src/semifine/config/presets` hold the values.\n\n"
        + table(("preset", "content"), presets)
    )


def methods() -> str:
    text = [
        "# Methods\n\n"
        "```sh\nsemifine train photos --method soc --method.alpha 4 --out runs/mine\n```\n\n"
        "`--method` takes one of these names or the file of [your own method](../how-to/add_a_method.md).\n"
    ]
    for name in method_names():
        kind = method_class(name)
        description = paragraph(kind.__doc__)
        text.append(f"## {name}\n\n{sentence(kind.summary)}\n\n{description}{settings_table(kind.Settings, 'method.')}")
    return "\n".join(text)


def data_sources() -> str:
    text = [
        "# Data sources\n\n"
        "```sh\nsemifine train semi_cub:PATH --data.unlabeled inout --out runs/cub\n```\n\n"
        "The first argument of `semifine train` is `SOURCE:PATH`. A path without a source is a `folder` or a `table`.\n"
        "[Data formats](data.md) describes what the files must contain.\n"
    ]
    for source in sources.all_sources().values():
        table_of_settings = settings_table(source.settings_class, "data.")
        text.append(f"## {source.name}\n\n{sentence(source.summary)}\n\n{table_of_settings}")
    return "\n".join(text)


def modules() -> str:
    """Returns a table of the source files of each package with the first sentences of their docstrings."""
    text = ["# Modules\n\nThe files of `src/semifine`, each with the first sentence of its docstring.\n"]
    packages: dict[str, list[tuple[str, ...]]] = {}
    for file in sorted(SOURCE.rglob("*.py")):
        docstring = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8")))
        if docstring:
            package = file.relative_to(SOURCE).parent.as_posix()
            packages.setdefault(package, []).append((f"`{file.name}`", cell(sentence(first_sentence(docstring)))))
    for package, files in packages.items():
        text.append(f"## {'semifine' if package == '.' else package}\n\n{table(('file', 'content'), files)}")
    return "\n".join(text)


def settings_table(settings_class: type | None, prefix: str = "", without: Sequence[str] = ()) -> str:
    if settings_class is None or not dataclasses.fields(settings_class):
        return "No settings.\n"
    return table(
        ("setting", "type", "default", "meaning"),
        [row for row in rows(settings_class, prefix) if row[0].strip("`") not in without],
    )


def rows(settings_class: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints = type_hints(settings_class)
    for field in dataclasses.fields(settings_class):
        limits = " to ".join(
            f"{field.metadata[bound]:.10g}" for bound in ("low", "high") if field.metadata.get(bound) is not None
        )
        if limits and field.metadata.get("high") is None:
            limits = f"at least {limits}"
        kind = describe_type(hints[field.name])
        choices = cell(" ".join(f"`{choice}`" for choice in kind.split("|"))) if "|" in kind else kind
        meaning = cell(field.metadata.get("help", ""))
        yield f"`{prefix}{field.name}`", f"{choices}{', ' + limits if limits else ''}", value(field.default), meaning


def value(default: Any) -> str:
    if default is None:
        return "none"
    return f"`{','.join(map(str, default)) if isinstance(default, tuple) else str(default).lower()}`"


def table(header: tuple[str, ...], lines: list[tuple[str, ...]]) -> str:
    if not lines:
        return "No options.\n"
    dashes = "|".join("---" for _ in header)
    body = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    return f"| {' | '.join(header)} |\n|{dashes}|\n{body}"


def cell(text: str) -> str:
    """Escapes text for a table cell; argparse writes a percent sign as two."""
    return " ".join(text.split()).replace("%%", "%").replace("|", "\\|").replace("<", "&lt;")


def sentence(text: str) -> str:
    text = " ".join(text.split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def first_sentence(text: str) -> str:
    return " ".join(text.split()).split(". ")[0].removesuffix(".")


def paragraph(docstring: str | None) -> str:
    """Returns the first paragraph of a docstring as Markdown."""
    text = inspect.cleandoc(docstring or "").split("\n\n")[0].replace("``", "`")
    return f"{text}\n\n" if text else ""


if __name__ == "__main__":
    main()
