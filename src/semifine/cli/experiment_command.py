"""semifine experiment"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import INTERRUPTED, Parser, add_device
from semifine.errors import UserError

if TYPE_CHECKING:
    from semifine.experiments.recipes import Conditions
    from semifine.experiments.scheduler import Job


def add_conditions(parser: argparse.ArgumentParser) -> None:
    """The options that 'experiment' and 'reproduce' share."""
    parser.add_argument(
        "--profile", metavar="NAME", help="network and image size: paper, lite0 or small (default: what suits the data)"
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


def ways_of_training(options: argparse.Namespace) -> list[str]:
    """The options that say how a run is computed, and change nothing of what it learns."""
    return ["--device", options.device, "--compile", options.compile]


def conditions_for(options: argparse.Namespace, init: str, unlabelled: str, seed: int = 0) -> Conditions:
    from semifine.data.sources import resolve
    from semifine.experiments.recipes import Conditions, check_weights_file, default_profile

    name, root = resolve(options.dataset)
    data = f"{name}:{root}" if root else name
    weights = options.inat_weights if init == "inat" else None
    conditions = Conditions(
        data=data,
        init=init,
        unlabelled=unlabelled,
        seed=seed,
        profile=options.profile or default_profile(data),
        budget=options.budget,
        weights=str(Path(weights).absolute()) if weights else None,
    )
    check_weights_file(conditions)
    return conditions


def check_settings(jobs: Sequence[Job]) -> None:
    """What is wrong with the settings of any run is said before the first one starts."""
    from semifine.config import resolve

    for job in jobs:
        resolve([job.stage.settings])


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine experiment",
        description="Train by a published recipe: MoCo and then a method, a teacher and its student, rounds of a "
        "curriculum, or one method alone. Stopped, the same command goes on at the stage and step it had reached.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "recipe",
        metavar="RECIPE",
        help="for example soc, moco+soc, self_training, curriculum; see 'semifine list experiments'",
    )
    parser.add_argument(
        "--dataset", default="synthetic", metavar="DATA", help="as 'semifine train' takes it (default: synthetic)"
    )
    parser.add_argument(
        "--init",
        choices=("scratch", "imagenet", "inat"),
        default="scratch",
        help="where networks start (default: scratch)",
    )
    parser.add_argument(
        "--unlabelled",
        choices=("in", "inout"),
        default="in",
        help="unlabelled images of the classes alone, or of others, too (default: in)",
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
    options = parser.parse_args(arguments)

    from semifine.engine.interruption import Interrupted
    from semifine.experiments.scheduler import Job, State, run_jobs
    from semifine.experiments.stages import plan
    from semifine.run_folder import write_json

    conditions = conditions_for(options, options.init, options.unlabelled, options.seed)
    jobs = [Job(stage, options.out) for stage in plan(options.recipe, conditions)]
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
        return INTERRUPTED + stop.signal_number
    failed = next((job for job in jobs if job.state is State.FAILED), None)
    if failed is not None:
        raise UserError(f"The stage {failed.stage.name} failed: {failed.reason} ({failed.log} has more.)")
    results = {job.stage.name: job.folder.read_result() for job in jobs}
    last = results[jobs[-1].stage.name]
    write_json(
        options.out / f"summary-{options.recipe}.json", {"recipe": options.recipe, "result": last, "stages": results}
    )
    print(f"{options.recipe}: test top-1 {last['top1']:.2f} %, top-5 {last['top5']:.2f} %")
    print(f"Summary: {options.out}/summary-{options.recipe}.json")
    return 0
