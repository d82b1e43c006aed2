"""semifine train"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semifine.cli.main import STARTED, Parser
from semifine.config.loading import (
    flatten,
    open_and_resolve,
    read_preset,
    read_run_settings,
    read_settings_file,
)
from semifine.config.train_settings import RunSettings, TrainSettings
from semifine.data.sources import describe_sources
from semifine.errors import Interrupted, UserError
from semifine.fields import describe_type, type_hints
from semifine.methods.registry import absolute_name

if TYPE_CHECKING:
    from semifine.data.dataset import Dataset
    from semifine.training.progress import Display

DATA_HELP = (
    "a folder with labeled/<class>/ and unlabeled/ or with one folder per class, a CSV or TSV file with the columns "
    f"path and label, or a known source: {describe_sources()} (default: synthetic)"
)


def create_parser(verb: str = "train") -> Parser:
    """The options that name a run; each training setting is an option of its own."""
    parser = Parser(
        prog=f"semifine {verb}",
        usage=f"semifine {verb} [DATA] [OPTIONS]",  # all fifty of them would fill a screen
        description="Train a classifier from a few labeled and many unlabeled images.",
        epilog="Settings of the method and of the data source are given as --method.NAME VALUE and "
        "--data.NAME VALUE; 'semifine list methods' and 'semifine list datasets' show them. "
        "The command line wins over --config, which wins over --preset.",
        allow_abbrev=False,
    )
    parser.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="how to learn, see 'semifine list methods', or a .py file of your own (default: soc)",
    )
    parser.add_argument(
        "--labels-per-class",
        dest="data.labels_per_class",
        default=argparse.SUPPRESS,
        metavar="N",
        help="own photos: use only so many labels of each class (default: all)",
    )
    parser.add_argument(
        "--group-by",
        dest="data.group_by",
        default=argparse.SUPPRESS,
        metavar="WHAT",
        help="own photos: what belongs together, by folder, exif-burst or a column of the table; the hold-out for "
        "validation does not divide it",
    )
    parser.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME",
        help="settings that come along, see 'semifine list presets'; can be given several times",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in a YAML file, such as the settings.yaml of a run"
    )
    add_settings(parser)
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """One option for each training setting; absent ones stay out of the result."""
    group = parser.add_argument_group("training settings")
    for field in dataclasses.fields(TrainSettings):
        kind = type_hints(TrainSettings)[field.name]
        default = "" if field.default is None else f" (default: {_show(field.default)})"
        option = "--" + field.name.replace("_", "-")
        help_text = (field.metadata["help"] + default).replace("%", "%%")
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        else:
            described = describe_type(kind)
            metavar = described if "|" in described else described.upper()  # choices as they are to be typed
            group.add_argument(option, default=argparse.SUPPRESS, metavar=metavar, help=help_text)


def _show(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def parse_settings(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, RunSettings, Dataset]:
    """The parsed options, the settings they resolve to, and the data set.

    The settings of a resumed run lie below all other layers.
    """
    dotted, rest = split_dotted(arguments)
    _check_options(parser, rest)
    options = parser.parse_args(rest)
    known = type_hints(TrainSettings)
    overrides = {name: value for name, value in vars(options).items() if name in known or name.startswith("data.")}
    if options.data is not None:
        overrides["data.source"] = options.data
    if options.method is not None:
        overrides["method.name"] = options.method
    layers: list[dict[str, Any]] = []
    if getattr(options, "resume", False):
        if (begun := options.out / "settings.yaml").exists():
            layers.append(flatten(read_run_settings(begun).as_dict()))
        elif not (options.config or options.preset or overrides or dotted):
            raise UserError(f"There is no run in {options.out} to go on with; to begin one, say with which data.")
    layers += [read_preset(name) for name in options.preset]
    if options.config:
        layers.append(_settings_for(options.method, read_settings_file(options.config)))
    return options, *open_and_resolve([*layers, {**overrides, **dotted}])


def _settings_for(method: str | None, values: dict[str, Any]) -> dict[str, Any]:
    """A file that names another method than the one asked for: what it says of that method is left out."""
    if method is None or absolute_name(values.get("method.name", method)) == absolute_name(method):
        return values
    return {key: value for key, value in values.items() if not key.startswith("method.")}


def split_dotted(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Takes ``--method.alpha 5`` and ``--data.seed=1`` out of the arguments: argparse does not know them."""
    dotted: dict[str, str] = {}
    rest: list[str] = []
    queue = list(arguments)
    while queue:
        argument = queue.pop(0)
        if not argument.startswith(("--method.", "--data.")):
            rest.append(argument)
            continue
        key, equals, value = argument.removeprefix("--").partition("=")
        if not equals:
            if not queue:
                raise UserError(f"--{key} needs a value.")
            value = queue.pop(0)
        dotted[key.replace("-", "_")] = value
    return dotted, rest


def _check_options(parser: Parser, arguments: Sequence[str]) -> None:
    """argparse would take the value of a misspelled option for DATA, and then complain about that."""
    known = list(parser._option_string_actions)
    for argument in arguments:
        name = argument.partition("=")[0]
        if name.startswith("--") and name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f" Did you mean '{near[0]}'?" if near else ""
            raise UserError(f"Unknown option '{name}'.{hint} '{parser.prog} --help' shows all.")


def run(arguments: Sequence[str]) -> int:
    parser = create_parser()
    parser.usage = "semifine train [DATA] --out RUN [OPTIONS]"
    parser.add_argument(
        "--out", type=Path, required=True, metavar="RUN", help="new folder for the run; with --resume, that of the run"
    )
    parser.add_argument("--resume", action="store_true", help="go on with the run in --out where it stopped")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="watch ten steps: leave a trace in RUN/profile and print what they spend time on",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options, settings, dataset = parse_settings(parser, arguments)

    from semifine.training.fit import fit
    from semifine.training.progress import Display

    display = Display(quiet=options.quiet)
    try:
        result = fit(
            settings,
            options.out,
            dataset=dataset,
            resume=options.resume,
            display=display,
            profile=options.profile,
            started=STARTED,
        )
    except Interrupted as stop:
        command = shlex.join(["semifine", "train", "--out", str(options.out), "--resume"])
        display.log(f"Stopped by {stop} and saved; go on with: {command}")
        raise
    if not result:
        return 0  # one of several processes, of which the first speaks
    if result["images"]["val"]:
        _calibrate(options.out, settings, display)
    if options.json:
        print(json.dumps(result))
    else:
        print(result_line(result, options.out))
    return 0


def _calibrate(out: Path, settings: RunSettings, display: Display) -> None:
    """Now, since the photos may lie elsewhere, or nowhere, when the run is used."""
    from semifine.inference.model import load
    from semifine.inference.network import DivergedError

    run = load(out, device=settings.train.device)
    if not run.network.num_classes:
        return
    try:
        display.log(run.calibration_note)
    except DivergedError as error:
        print(f"note: {error}", file=sys.stderr)  # even when quiet; the result follows, for what it is worth


def result_line(result: dict[str, Any], out: Path) -> str:
    """The result in one line for people."""
    if result.get("top1") is None:
        return f"{result['method']}: trained; there is no accuracy on test images to report. Run folder: {out}"
    return f"{result['method']}: test top-1 {result['top1']:.2f} %, top-5 {result['top5']:.2f} %. Run folder: {out}"
