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

SAID_ELSEWHERE = {
    "data.source": "--dataset names the data",
    "data.unlabeled": "the table says it, or --unlabeled of 'semifine experiment'",
    "method": "the recipe has the settings of its methods; 'semifine train' takes others",
}
"""Settings, or whole groups of them, that would make other runs than those of the recipe."""


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """The options that 'experiment' and 'reproduce' share."""
    from semifine.experiments.recipes import profile_names

    parser.epilog = "Settings of the data source are given as --data.NAME VALUE; 'semifine list datasets' shows them."
    for name, metavar in (("labels-per-class", "N"), ("group-by", "WHAT")):
        parser.add_argument(
            f"--{name}",
            dest=f"data.{name.replace('-', '_')}",
            default=argparse.SUPPRESS,
            metavar=metavar,
            help="own photos: as 'semifine train' takes it",
        )
    parser.add_argument(
        "--profile",
        metavar="NAME",
        help=f"network and image size: one of {', '.join(profile_names())} (default: what suits the data)",
    )
    parser.add_argument(
        "--budget",
        default="full",
        metavar="full|small|tiny|STEPS",
        help="SoC's number of steps; all others are scaled alike (default: full, as published)",
    )
    parser.add_argument("--inat-weights", metavar="FILE", help="a network trained on iNaturalist, for the start 'inat'")
    add_device(parser, "train")
    parser.add_argument(
        "--compile",
        choices=("auto", "on", "off"),
        default="auto",
        help="torch.compile: takes minutes once for each network, then saves a good part of every step (default: for "
        "long runs)",
    )


def parse_options(parser: Parser, arguments: Sequence[str]) -> argparse.Namespace:
    """The options; those of the data source are pairs in ``data_settings``."""
    dotted, rest = split_dotted(arguments)
    for key in dotted:
        if reason := SAID_ELSEWHERE.get(key) or SAID_ELSEWHERE.get(key.partition(".")[0]):
            raise UserError(f"'{parser.prog}' does not take --{key}: {reason}.")
    options = parser.parse_args(rest)
    given = {key: value for key, value in vars(options).items() if key.startswith("data.")} | dotted
    options.data_settings = tuple((key.removeprefix("data."), value) for key, value in given.items())
    return options


def ways_of_training(options: argparse.Namespace) -> list[str]:
    """The options that say how a run is computed, and change nothing of what it learns."""
    return ["--device", options.device, "--compile", options.compile]


def conditions_for(options: argparse.Namespace, init: str, unlabeled: str, seed: int = 0) -> Conditions:
    from semifine.data.sources import resolve
    from semifine.experiments.recipes import Conditions, check_weights_file, default_profile

    name, root = resolve(options.dataset)
    data = f"{name}:{root}" if root else name
    weights = options.inat_weights if init == "inat" else None
    conditions = Conditions(
        data=data,
        init=init,
        unlabeled=unlabeled,
        seed=seed,
        profile=options.profile or default_profile(data),
        budget=options.budget,
        weights=str(Path(weights).absolute()) if weights else None,
        data_settings=options.data_settings,
    )
    check_weights_file(conditions)
    return conditions


def check_settings(jobs: Sequence[Job]) -> None:
    """What is wrong with the settings of any run is said before the first one starts."""
    from semifine.config import resolve

    for job in jobs:
        resolve([job.stage.settings])


def run(arguments: Sequence[str]) -> int:
    options = parse_options(_create_parser(), arguments)

    from semifine.experiments.scheduler import Job, State, run_jobs
    from semifine.files import write_json

    name, stages = _plan(options)
    jobs = [Job(stage, options.out.absolute()) for stage in stages]
    check_settings(jobs)
    announced: set[str] = set()

    def tell() -> None:
        for job in jobs:
            news = f"{job.stage.name}: {job.state.value}"
            if job.state is not State.WAITING and news not in announced:
                announced.add(news)
                print(news, flush=True)

    try:
        run_jobs(jobs, at_once=1, options=ways_of_training(options), on_change=tell)
    except Interrupted as stop:
        print(f"Stopped by {stop} and saved; the same command goes on.")
        raise
    failed = next((job for job in jobs if job.state is State.FAILED), None)
    if failed is not None:
        raise UserError(f"The stage {failed.stage.name} failed: {failed.reason} ({failed.log} has more.)")
    results = {job.stage.name: job.folder.read_result() for job in jobs}
    last = results[jobs[-1].stage.name]
    summary = options.out / f"summary-{name}.json"
    write_json(summary, {"recipe": name, "result": last, "stages": results})
    if last.get("top1") is None:
        print(f"{name}: trained; there is no accuracy on test images to report.")
    else:
        print(f"{name}: test top-1 {last['top1']:.2f} %, top-5 {last['top5']:.2f} %")
    print(f"Summary: {summary}")
    return 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine experiment",
        description="Train by a published recipe: MoCo and then a method, a teacher and its student, rounds of a "
        "curriculum, or one method alone. Stopped, the same command goes on at the stage and step it had reached.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="for example soc, moco+soc, self_training, curriculum; or a name that 'semifine list experiments' shows",
    )
    parser.add_argument("--dataset", metavar="DATA", help="as 'semifine train' takes it (default: synthetic)")
    parser.add_argument(
        "--init", choices=("scratch", "imagenet", "inat"), help="where networks start (default: scratch)"
    )
    parser.add_argument(
        "--unlabeled",
        choices=("in", "inout"),
        help="unlabeled images of the classes alone, or of others, too (default: in)",
    )
    parser.add_argument("--seed", type=int, default=0, metavar="INT", help="seed of all stages (default: 0)")
    parser.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="FOLDER",
        help="each stage gets a folder in it; recipes with the same stage can share it",
    )
    add_conditions(parser)
    return parser


def _plan(options: argparse.Namespace) -> tuple[str, list[Stage]]:
    """What the recipe's result is called, and its stages."""
    from semifine.experiments.recipes import read_catalog
    from semifine.experiments.stages import plan
    from semifine.experiments.tables import find_experiment, fit_settings

    experiment = find_experiment(options.recipe) if "/" in options.recipe else None
    if experiment:
        _take_from_name(options, experiment)
    else:
        options.dataset = options.dataset or "synthetic"
    conditions = conditions_for(options, options.init or "scratch", options.unlabeled or "in", options.seed)
    if not experiment:
        return options.recipe, plan(options.recipe, conditions)
    row = experiment.row
    settings = fit_settings(row.settings, read_catalog(conditions).num_classes)
    return row.folder_name, plan(row.recipe, conditions, settings, row.run_name)


def _take_from_name(options: argparse.Namespace, experiment: NamedExperiment) -> None:
    """A name says where data, start and unlabeled images come from; what is given beside it must agree."""
    from semifine.data.sources import resolve

    if options.dataset is None and experiment.data != "synthetic":
        raise UserError(f"{options.recipe} needs its data: give --dataset {experiment.data}:PATH.")
    options.dataset = options.dataset or experiment.data
    options.init = options.init or experiment.init
    options.unlabeled = options.unlabeled or experiment.table.unlabeled
    for option, given, named in (
        ("dataset", resolve(options.dataset)[0], experiment.data),
        ("init", options.init, experiment.init),
        ("unlabeled", options.unlabeled, experiment.table.unlabeled),
    ):
        if given != named:
            raise UserError(f"{options.recipe} means --{option} {named}, not {given}.")
