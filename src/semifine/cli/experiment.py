"""semifine experiment"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_device
from semifine.cli.train import split_dotted
from semifine.errors import Interrupted, UserError

if TYPE_CHECKING:
    from semifine.experiments.recipes import Conditions
    from semifine.experiments.scheduler import Job
    from semifine.experiments.stages import Stage
    from semifine.experiments.tables import NamedExperiment

FIXED_SETTINGS = {
    "data.source": "use --dataset",
    "data.unlabeled": "the table defines it; 'semifine experiment' has --unlabeled",
    "method": "the recipe defines the settings of its methods; use 'semifine train' for others",
}
"""Settings, or groups of settings, that are not options, with the reason."""


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """Adds the options that 'experiment' and 'reproduce' share."""
    from semifine.experiments.recipes import profile_names  # imports NumPy and yaml

    parser.epilog = (
        "--data.NAME VALUE changes a setting of the data source; 'semifine list datasets' shows all of them."
    )
    for name, metavar in (("labels-per-class", "N"), ("group-by", "WHAT")):
        parser.add_argument(
            f"--{name}",
            dest=f"data.{name.replace('-', '_')}",
            default=argparse.SUPPRESS,
            metavar=metavar,
            help="for your own photos, see 'semifine train --help'",
        )
    parser.add_argument(
        "--keep-conflicting",
        dest="data.keep_conflicting",
        action="store_const",
        const="true",
        default=argparse.SUPPRESS,
        help="for your own photos, see 'semifine train --help'",
    )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help=f"network and image size: one of {', '.join(profile_names())} (default: depends on the data set)",
    )
    parser.add_argument(
        "--budget",
        default="full",
        metavar="full|small|tiny|STEPS",
        help="SoC's number of steps; all other methods are scaled by the same factor (default: full, as published)",
    )
    parser.add_argument("--inat-weights", metavar="FILE", help="network trained on iNaturalist, for --init inat")
    parser.add_argument(
        "--moco-weights", metavar="FILE", help="network pretrained with MoCo on this data, instead of training it"
    )
    parser.add_argument(
        "--supervised-weights",
        metavar="FILE",
        help="supervised network of this data with its classifier, instead of training the teacher of self-training",
    )
    add_device(parser, "train")
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="torch.compile: takes minutes once per network and makes each step faster (default: on for long runs)",
    )


def parse_options(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """Parses the options. Settings of the data source are pairs in ``data_settings``."""
    dotted, rest = split_dotted(arguments)
    for key in dotted:
        if reason := FIXED_SETTINGS.get(key) or FIXED_SETTINGS.get(key.partition(".")[0]):
            raise UserError(f"'{parser.prog}' does not take --{key}: {reason}.")
    options = parser.parse_args(rest)
    given = {key: value for key, value in vars(options).items() if key.startswith("data.")} | dotted
    options.data_settings = tuple((key.removeprefix("data."), value) for key, value in given.items())
    return options


def runtime_options(options: argparse.Namespace) -> list[str]:
    """Returns the options of 'semifine train' that do not change the result."""
    return ["--device", options.device, "--compile", options.compile]


def create_conditions(options: argparse.Namespace, init: str, unlabeled: str, seed: int = 0) -> Conditions:
    """Returns the conditions of a run. Raises ``UserError`` if its weights file is missing."""
    # Slow, and --help does not need them.
    from semifine.data.sources import resolve
    from semifine.experiments.recipes import Conditions, check_weights_file, default_profile

    name, root = resolve(options.dataset)
    data = f"{name}:{root}" if root else name
    weights = options.inat_weights if init == "inat" else None
    files = {
        name: str(Path(file).absolute()) if file else None
        for name, file in (
            ("weights", weights),
            ("moco_weights", options.moco_weights),
            ("supervised_weights", options.supervised_weights),
        )
    }
    conditions = Conditions(
        data=data,
        init=init,
        unlabeled=unlabeled,
        seed=seed,
        profile=options.profile or default_profile(data),
        budget=options.budget,
        data_settings=options.data_settings,
        **files,
    )
    check_weights_file(conditions)
    return conditions


def check_settings(jobs: Sequence[Job]) -> None:
    """Checks the settings of all runs before the first one starts."""
    from semifine.config import resolve  # slow, and --help does not need it

    for job in jobs:
        resolve([job.stage.settings])


def check_data(jobs: Sequence[Job]) -> None:
    """Decodes and checks the data of all unfinished runs once, so that the runs take the images from the cache.

    Raises:
        UserError: If the data cannot be used, before any run has started.
    """
    # Slow, and --help does not need them.
    from semifine.config import resolve
    from semifine.experiments.recipes import open_dataset
    from semifine.experiments.scheduler import State, mark_finished
    from semifine.training.progress import Display

    mark_finished(jobs)
    display, checked = Display(), set()
    for job in jobs:
        settings = resolve([job.stage.settings])
        images = settings.data, settings.data_settings, settings.train.stored_side
        if job.state is State.DONE or images in checked:
            continue
        checked.add(images)
        dataset = open_dataset(settings.data, settings.data_settings)
        if getattr(dataset.catalog.reader, "in_memory", False):
            continue  # drawn images are always valid, and each run draws them again
        with display.bar("decoding images", len(dataset.catalog)):
            dataset.open_store(
                settings.train.stored_side,
                cache_dir=settings.train.cache,
                progress=lambda done, _: display.advance(done),
                log=display.log,
            )


def run(arguments: Sequence[str]) -> int:
    options = parse_options(_create_parser(), arguments)

    # Slow, and --help does not need them.
    from semifine.experiments.scheduler import Job, State, run_jobs
    from semifine.experiments.stages import FIGURES
    from semifine.files import write_json
    from semifine.runs.accuracy import describe_result

    name, stages = _plan(options)
    jobs = [Job(stage, options.out.absolute()) for stage in stages]
    check_settings(jobs)
    check_data(jobs)
    printed: set[str] = set()

    def print_changes() -> None:
        for job in jobs:
            line = f"{job.stage.name}: {job.state.value}"
            if job.state is not State.WAITING and line not in printed:
                printed.add(line)
                print(line, flush=True)

    try:
        run_jobs(jobs, at_once=1, options=runtime_options(options), on_change=print_changes)
    except Interrupted as stop:
        print(f"Stopped by {stop} and saved. Repeat the command to continue.")
        raise
    failed = next((job for job in jobs if job.state is State.FAILED), None)
    if failed is not None:
        raise UserError(f"The stage {failed.stage.name} failed: {failed.reason} See {failed.log} for details.")
    results = {job.stage.name: job.folder.read_result() for job in jobs}
    last = results[jobs[-1].stage.name]
    summary = options.out / f"summary-{name}.json"
    write_json(summary, {"recipe": name, "result": last, "stages": results})
    print(f"{name}: {describe_result(last) or 'trained, without images to measure accuracy'}")
    print(f"Summary: {summary}")
    if name in FIGURES:
        _draw_figures(jobs[-1], options.out / "figures")
    return 0


def _draw_figures(job: Job, folder: Path) -> None:
    # Slow, and --help does not need them.
    from semifine.report.figures import write_figures
    from semifine.runs.run import Run

    write_figures([Run(job.folder.path)], folder)
    print(f"Class transitions beside confusions: {folder / 'fig6-matrices.png'}")


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine experiment",
        description="Train with a published recipe: one method, MoCo before a method, a teacher before its student, or "
        "the rounds of a curriculum. After an interruption, repeat the command to continue.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="for example soc, moco+soc, self_training, curriculum, cifar10-transitions; or a name from 'semifine list "
        "experiments'",
    )
    parser.add_argument("--dataset", metavar="DATA", help="see 'semifine train --help' (default: synthetic)")
    parser.add_argument("--init", choices=("scratch", "imagenet", "inat"), help="starting weights (default: scratch)")
    parser.add_argument(
        "--unlabeled",
        choices=("in", "inout"),
        help="unlabeled images of the known classes only (in), or of other classes, too (inout) (default: in)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="INT", help="seed of all stages (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="folder with a subfolder per stage; recipes in the same folder share their stages",
    )
    add_conditions(parser)
    return parser


def _plan(options: argparse.Namespace) -> tuple[str, list[Stage]]:
    """Returns the name of the recipe's result, and its stages."""
    # Slow, and --help does not need them.
    from semifine.experiments.recipes import read_catalog
    from semifine.experiments.stages import FIGURES, plan_stages
    from semifine.experiments.tables import find_experiment, scale_to_classes

    experiment = find_experiment(options.recipe) if "/" in options.recipe else None
    if options.recipe in FIGURES and options.dataset is None:
        raise UserError(
            f"{options.recipe} needs a data set: give --dataset cifar10:PATH, or another one for its figure."
        )
    if experiment:
        _apply_name(options, experiment)
    else:
        options.dataset = options.dataset or "synthetic"
    conditions = create_conditions(options, options.init or "scratch", options.unlabeled or "in", options.seed)
    if not experiment:
        return options.recipe, plan_stages(options.recipe, conditions)
    row = experiment.row
    settings = scale_to_classes(row.settings, read_catalog(conditions).num_classes)
    return row.folder_name, plan_stages(row.recipe, conditions, settings, row.run_name)


def _apply_name(options: argparse.Namespace, experiment: NamedExperiment) -> None:
    """Sets data set, starting weights and unlabeled images from a name. Options that are given must agree with it."""
    from semifine.data.sources import resolve  # slow, and --help does not need it

    if options.dataset is None and experiment.data != "synthetic":
        raise UserError(f"{options.recipe} needs a data set: give --dataset {experiment.data}:PATH.")
    options.dataset = options.dataset or experiment.data
    options.init = options.init or experiment.init
    options.unlabeled = options.unlabeled or experiment.table.unlabeled
    for option, given, expected in (
        ("dataset", resolve(options.dataset)[0], experiment.data),
        ("init", options.init, experiment.init),
        ("unlabeled", options.unlabeled, experiment.table.unlabeled),
    ):
        if given != expected:
            raise UserError(f"{options.recipe} needs --{option} {expected}, not {given}.")
