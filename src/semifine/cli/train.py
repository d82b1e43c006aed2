"""semifine train"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from semifine.augment.settings import AugmentOptions
from semifine.cli.main import STARTED, Parser
from semifine.config.loading import (
    flatten,
    naming,
    open_and_resolve,
    read_preset,
    read_run_settings,
    read_settings_file,
    with_named_method,
)
from semifine.config.train_settings import RunSettings, TrainSettings
from semifine.data.sources import describe_sources
from semifine.errors import Interrupted, UserError
from semifine.fields import describe_type, field_names, type_hints
from semifine.methods.registry import is_method_file
from semifine.runs.accuracy import describe_result
from semifine.runs.folder import resume_command

if TYPE_CHECKING:
    from semifine.data.dataset import Dataset

DATA_HELP = (
    "a folder with labeled/<class>/ and unlabeled/ or with one folder per class, a CSV or TSV file with the columns "
    f"path and label, or a known source: {describe_sources()} (default: synthetic)"
)

SHORT_HELP = {
    "train": {
        "data": ("data", "--labels-per-class", "--labels"),
        "training": ("--time", "--method", "--backbone", "--image-size", "--iterations", "--preset"),
        "run": ("--out", "--resume", "--device"),
    },
    "prepare": {
        "data": ("data", "--labels-per-class", "--group-by", "--labels", "--crops"),
        "images": ("--image-size", "--cache"),
        "output": ("--write-folder", "--json"),
    },
}
"""Options that ``--help`` shows."""


def create_parser(verb: str = "train") -> Parser:
    """Creates the parser of a command that trains; every training setting is an option."""
    parser = Parser(
        prog=f"semifine {verb}",
        usage=f"semifine {verb} [DATA] [OPTIONS]",  # the list of all options would fill a screen
        description="Train a classifier from a few labeled and many unlabeled images.",
        epilog="Settings of the method and of the data source are given as --method.NAME VALUE and "
        "--data.NAME VALUE; 'semifine list methods' and 'semifine list datasets' show them. "
        "Options override --config, which overrides --preset.",
        allow_abbrev=False,
    )
    parser.add_argument("data", nargs="?", metavar="DATA", help=DATA_HELP)
    parser.add_argument(
        "--method",
        metavar="NAME",
        help="training method, see 'semifine list methods', or a .py file with a method (default: soc)",
    )
    parser.add_argument(
        "--labels-per-class",
        dest="data.labels_per_class",
        default=argparse.SUPPRESS,
        metavar="N",
        help="own photos: number of labels to use per class (default: all)",
    )
    parser.add_argument(
        "--group-by",
        dest="data.group_by",
        default=argparse.SUPPRESS,
        metavar="KEY",
        help="own photos: keep photos of a group on one side of the validation split; groups are given by folder, "
        "exif-burst or a column of the table",
    )
    parser.add_argument(
        "--crops",
        dest="data.crops",
        default=argparse.SUPPRESS,
        metavar="FILE",
        help="own photos: boxes of animals in MegaDetector's JSON, COCO JSON or a CSV table; each photo is cropped to "
        "its most confident box",
    )
    parser.add_argument(
        "--keep-conflicting",
        dest="data.keep_conflicting",
        action="store_true",
        default=argparse.SUPPRESS,
        help="own photos: train on copies of a photo that are labeled as different classes (default: leave them out)",
    )
    parser.add_argument(
        "--preset",
        action="append",
        default=[],
        metavar="NAME",
        help="named settings, see 'semifine list presets'; can be repeated",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings in a YAML file, such as the settings.yaml of a run"
    )
    add_settings(parser)
    parser.set_short_help(SHORT_HELP[verb])
    return parser


def add_settings(parser: argparse.ArgumentParser) -> None:
    """Adds one option per training setting; options that are not given are absent from the result."""
    training = parser.add_argument_group("training settings")
    augmentation = parser.add_argument_group("augmentation settings")
    for field in dataclasses.fields(TrainSettings):
        group = augmentation if field.name in field_names(AugmentOptions) else training
        kind = type_hints(TrainSettings)[field.name]
        default = "" if field.default is None else f" (default: {_show(field.default)})"
        option = "--" + field.name.replace("_", "-")
        help_text = (field.metadata["help"] + default).replace("%", "%%")
        if kind is bool:
            group.add_argument(option, action=argparse.BooleanOptionalAction, default=argparse.SUPPRESS, help=help_text)
        else:
            described = describe_type(kind)
            metavar = described if "|" in described else described.upper()
            group.add_argument(option, default=argparse.SUPPRESS, metavar=metavar, help=help_text)


def _show(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value).lower()


def parse_settings(parser: Parser, arguments: Sequence[str]) -> tuple[argparse.Namespace, RunSettings, Dataset]:
    """Returns the parsed options, the resolved settings and the opened data set.

    Options override ``--config``, which overrides ``--preset``, which overrides the settings of a resumed run.
    """
    dotted, rest = split_dotted(arguments)
    options = parser.parse_args(rest)
    known = type_hints(TrainSettings)
    overrides = {name: value for name, value in vars(options).items() if name in known or name.startswith("data.")}
    if options.data is not None:
        overrides["data.source"] = options.data
    if options.method is not None:
        overrides["method.name"] = options.method
    overrides |= dotted
    named_method = overrides.get("method.name")
    layers: list[dict[str, Any]] = []
    if getattr(options, "resume", False):
        if (begun := options.out / "settings.yaml").exists():
            layers.append(flatten(read_run_settings(begun, named_method=named_method).as_dict()))
        elif not (options.config or options.preset or overrides):
            raise UserError(f"There is no run to resume in {options.out}; to start one, name the data.")
    layers += [read_preset(name) for name in options.preset]
    if options.config:
        values = read_settings_file(options.config)
        with naming(options.config):
            layers.append(_settings_for(named_method, values))
    return options, *open_and_resolve([*layers, overrides])


def _settings_for(named_method: str | None, values: dict[str, Any]) -> dict[str, Any]:
    """Returns the values of a settings file, without the settings of its method if the options name another one."""
    stored = str(values.get("method.name", named_method))
    if named_method is None or _method_id(stored) == _method_id(named_method):
        return with_named_method(values, named_method)
    return {key: value for key, value in values.items() if not key.startswith("method.")}


def _method_id(name: str) -> str:
    """Returns the name of a method, or the name of its file, which may be in another folder on another machine."""
    return Path(name).name if is_method_file(name) else name


def split_dotted(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Separates options such as ``--method.alpha 5``, which argparse does not know, from the other arguments.

    Example:
        >>> split_dotted(["photos", "--method.alpha", "5", "--data.seed=1"])
        ({'method.alpha': '5', 'data.seed': '1'}, ['photos'])
    """
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


def run(arguments: Sequence[str]) -> int:
    parser = create_parser()
    parser.usage = "semifine train [DATA] --out RUN [OPTIONS]"
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="RUN",
        help="new folder for the run; with --resume, its existing folder",
    )
    parser.add_argument("--resume", action="store_true", help="continue the run in --out from its last checkpoint")
    parser.add_argument(
        "--profile",
        action="store_true",
        help="profile ten steps: write a trace to RUN/profile and print the most expensive operations",
    )
    parser.add_argument("--json", action="store_true", help="print the result as one JSON object")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options, settings, dataset = parse_settings(parser, arguments)

    # Slow imports (torch), after the options have been checked
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
        display.log(f"Stopped by {stop}, state saved. Continue with: {resume_command(options.out, settings.method)}")
        raise
    if not result:
        return 0  # only the first of several processes prints the result
    if options.json:
        print(json.dumps(result))
    else:
        print(result_line(result, options.out))
    return 0


def result_line(result: dict[str, Any], out: Path) -> str:
    """Formats the result of a run."""
    accuracy = describe_result(result) or "trained, without images to measure accuracy"
    return f"{result['method']}: {accuracy}. Run folder: {out}"
