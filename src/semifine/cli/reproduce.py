"""semifine reproduce"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.experiment import (
    add_conditions,
    check_data,
    check_settings,
    create_conditions,
    parse_options,
    runtime_options,
)
from semifine.cli.main import Parser
from semifine.errors import Interrupted, UserError

if TYPE_CHECKING:
    from semifine.experiments.formats import Cells
    from semifine.experiments.recipes import Conditions
    from semifine.experiments.tables import Table

MAX_PARALLEL_RUNS = 4
"""Limit for the default of --jobs. A run needs up to a gigabyte."""


def run(arguments: Sequence[str]) -> int:
    options = parse_options(_create_parser(), arguments)
    if options.seeds < 1 or (options.jobs is not None and options.jobs < 1):
        raise UserError("--seeds and --jobs must be at least 1.")

    # Slow, and --help does not need them.
    from rich.console import Console

    from semifine.experiments.progress import GridProgress
    from semifine.experiments.recipes import read_catalog
    from semifine.experiments.scheduler import State, mark_finished, run_jobs, unique_jobs
    from semifine.experiments.tables import choose_rows, fill_cells, plan_jobs, read_table, unavailable_rows

    table = choose_rows(read_table(options.table), options.methods)
    inits = options.inits or _possible_inits(table.inits, options)
    if len(inits) > 1 and (options.moco_weights or options.supervised_weights):
        raise UserError(
            "--moco-weights and --supervised-weights belong to one kind of starting weights: give one of "
            f"{', '.join(inits)} with --inits."
        )
    columns = {init: create_conditions(options, init, table.unlabeled) for init in inits}
    conditions = columns[inits[0]]
    out = options.out or Path("reproduce") / _folder_name(conditions.data) / table.name
    unavailable = unavailable_rows(table, conditions)
    num_classes = read_catalog(conditions).num_classes
    cells = plan_jobs(table, columns, options.seeds, out.absolute(), num_classes, unavailable)
    jobs = unique_jobs([job for by_seed in cells.values() for seed in by_seed for job in seed])
    if not jobs:
        raise UserError(f"No row can be run with this data set: {' '.join(dict.fromkeys(unavailable.values()))}")
    # Cells refer to the unique jobs, whose states change.
    by_folder = {job.folder.path: job for job in jobs}
    cells = {key: [[by_folder[job.folder.path] for job in seed] for seed in by_seed] for key, by_seed in cells.items()}
    check_settings(jobs)
    try:
        if options.show:
            mark_finished(jobs)
        else:
            check_data(jobs)
            with GridProgress(jobs, cells, Console(stderr=True)) as progress:
                at_once = options.jobs or _runs_at_once(conditions.profile, options.device)
                run_jobs(jobs, at_once, runtime_options(options), progress.update, progress.log)
    except Interrupted as stop:
        print(f"Stopped by {stop} and saved. Repeat the command to continue.")
        raise
    filled = fill_cells(table, cells, conditions.data, unavailable)
    _write(table, inits, filled, out, _notes(options, conditions, table))
    return 1 if any(job.state is State.FAILED for job in jobs) else 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine reproduce",
        description="Run the experiments of a table of the paper and print the table. For a data set of the paper, the "
        "table includes the published numbers. Finished runs are not repeated; repeat the command to continue.",
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", help="table1, table2, clustering, ood_scratch, ood_experts or beyond")
    parser.add_argument(
        "--dataset", default="synthetic", metavar="DATA", help="see 'semifine train --help' (default: synthetic)"
    )
    parser.add_argument(
        "--inits",
        nargs="+",
        choices=("scratch", "imagenet", "inat"),
        help="starting weights, the columns of the table (default: all that are available)",
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="ROW", help="rows, by recipe or title (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs per cell (default: 3)")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"parallel runs (default: 1; small networks on a CPU: one per core, at most {MAX_PARALLEL_RUNS})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the runs and the table (default: reproduce/DATA/TABLE)"
    )
    parser.add_argument(
        "--show", action="store_true", help="print the table of the finished runs without running anything"
    )
    add_conditions(parser)
    return parser


def _runs_at_once(profile: str, device: str) -> int:
    """Returns the default of --jobs: a core per run for small networks on a CPU, which use a second core poorly."""
    # Slow, and --help does not need them.
    from semifine.data.parallel import usable_cores
    from semifine.devices import resolve_device

    return min(usable_cores(), MAX_PARALLEL_RUNS) if profile == "small" and resolve_device(device) == "cpu" else 1


def _folder_name(data: str) -> str:
    source, name = data.partition(":")[0], _data_name(data)
    return source if source == name else f"{source}-{name}"


def _data_name(data: str) -> str:
    """Returns the name of a published data set, or of the folder or table with the user's own photos."""
    from semifine.data.sources import is_own_photos  # slow, and --help does not need it

    source, _, root = data.partition(":")
    return Path(root).name if is_own_photos(source) else source


def _possible_inits(inits: Sequence[str], options: argparse.Namespace) -> list[str]:
    """Returns the starting weights of the table without those whose weights are missing."""
    conditions = create_conditions(options, "scratch", "in")
    possible = [init for init in inits if init != "inat" or options.inat_weights]
    if conditions.profile == "small":
        possible = [init for init in possible if init == "scratch"]
    if not possible:
        raise UserError("No starting weights of this table are available: give --inits, --profile or --inat-weights.")
    return possible


def _notes(options: argparse.Namespace, conditions: Conditions, table: Table) -> list[str]:
    chosen = "".join(f", data.{name} {value}" for name, value in conditions.data_settings)
    seeds = "seed 0" if options.seeds == 1 else f"seeds 0 to {options.seeds - 1}"
    notes = [
        f"data {_data_name(conditions.data)}{chosen}, profile {conditions.profile}, budget {options.budget}, {seeds}",
        "test accuracy of the last model in percent, mean ± standard deviation over the seeds; a single seed has its "
        "95 % interval over the test images in brackets",
        "time of all stages of a recipe; with --jobs, runs share the device",
        "table.csv also contains the best test accuracy, the paper's protocol",
    ]
    return [*notes, table.note] if table.note else notes


def _write(table: Table, inits: Sequence[str], cells: Cells, out: Path, notes: Sequence[str]) -> None:
    # Slow, and --help does not need them.
    from semifine.experiments.formats import as_csv, as_latex, as_markdown
    from semifine.files import create_folder, write_atomically

    markdown = as_markdown(table, inits, cells, notes)
    create_folder(out)  # if no run has finished yet
    write_atomically(out / "table.md", markdown)
    write_atomically(out / "table.csv", as_csv(table, inits, cells))
    write_atomically(out / "table.tex", as_latex(table, inits, cells))
    print(markdown)
    print(f"Written to {out}/table.md, table.csv and table.tex")
