"""semifine reproduce"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.experiment import add_conditions, check_settings, conditions_for, parse_options, ways_of_training
from semifine.cli.main import Parser
from semifine.errors import Interrupted, UserError

if TYPE_CHECKING:
    from semifine.experiments.formats import Cells
    from semifine.experiments.recipes import Conditions
    from semifine.experiments.tables import Table

MOST_AT_ONCE = 4
"""A run takes the better part of a gigabyte."""


def run(arguments: Sequence[str]) -> int:
    options = parse_options(_create_parser(), arguments)
    if options.seeds < 1 or (options.jobs is not None and options.jobs < 1):
        raise UserError("--seeds and --jobs must be at least 1.")

    from rich.console import Console

    from semifine.experiments.grid_view import GridView
    from semifine.experiments.recipes import read_catalog
    from semifine.experiments.scheduler import State, mark_finished, run_jobs, unique_jobs
    from semifine.experiments.tables import absent_rows, choose_rows, fill, plan_jobs, read_table

    table = choose_rows(read_table(options.table), options.methods)
    inits = options.inits or _possible_inits(table.inits, options)
    columns = {init: conditions_for(options, init, table.unlabeled) for init in inits}
    conditions = columns[inits[0]]
    out = options.out or Path("reproduce") / _folder_name(conditions.data) / table.name
    absent = absent_rows(table, conditions)
    num_classes = read_catalog(conditions).num_classes
    cells = plan_jobs(table, columns, options.seeds, out.absolute(), num_classes, absent)
    jobs = unique_jobs([job for by_seed in cells.values() for seed in by_seed for job in seed])
    if not jobs:
        raise UserError(f"No row can be run: {' '.join(dict.fromkeys(absent.values()))}")
    # A cell looks at the very jobs that are run.
    by_folder = {job.folder.path: job for job in jobs}
    cells = {key: [[by_folder[job.folder.path] for job in seed] for seed in by_seed] for key, by_seed in cells.items()}
    check_settings(jobs)
    try:
        if options.show:
            mark_finished(jobs)
        else:
            with GridView(jobs, cells, Console(stderr=True)) as view:
                at_once = options.jobs or _runs_at_once(conditions.profile, options.device)
                run_jobs(jobs, at_once, ways_of_training(options), view.update, view.log)
    except Interrupted as stop:
        print(f"Stopped by {stop} and saved; the same command goes on.")
        raise
    filled = fill(table, cells, conditions.data, absent)
    _write(table, inits, filled, out, _notes(options, conditions, table))
    return 1 if any(job.state is State.FAILED for job in jobs) else 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine reproduce",
        description="Run the grid of training runs behind a table of the paper and print the table, the paper's "
        "numbers beside ours where the data set is the paper's. What is finished is not run again: the same command "
        "goes on.",
        allow_abbrev=False,
    )
    parser.add_argument("table", metavar="TABLE", help="table1, table2, clustering, ood_scratch or ood_experts")
    parser.add_argument(
        "--dataset", default="synthetic", metavar="DATA", help="as 'semifine train' takes it (default: synthetic)"
    )
    parser.add_argument(
        "--inits",
        nargs="+",
        choices=("scratch", "imagenet", "inat"),
        help="columns: where networks start (default: all that are possible)",
    )
    parser.add_argument(
        "--methods", nargs="+", default=[], metavar="ROW", help="some rows only, by recipe or title (default: all)"
    )
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="runs of each cell (default: 3)")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help=f"runs at once (default: 1; small networks on a CPU: one a core, at most {MOST_AT_ONCE})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FOLDER", help="folder of the runs and the table (default: reproduce/DATA/TABLE)"
    )
    parser.add_argument("--show", action="store_true", help="run nothing: the table of what is finished")
    add_conditions(parser)
    return parser


def _runs_at_once(profile: str, device: str) -> int:
    """A small network on a CPU gains little from a second core, the grid gains all of it."""
    from semifine.data.parallel import usable_cores
    from semifine.devices import resolve_device

    return min(usable_cores(), MOST_AT_ONCE) if profile == "small" and resolve_device(device) == "cpu" else 1


def _folder_name(data: str) -> str:
    source, name = data.partition(":")[0], _data_name(data)
    return source if source == name else f"{source}-{name}"


def _data_name(data: str) -> str:
    """Published data sets have a name; of somebody's photos the folder or table has one."""
    from semifine.data.sources import is_own_photos

    source, _, root = data.partition(":")
    return Path(root).name if is_own_photos(source) else source


def _possible_inits(inits: Sequence[str], options: argparse.Namespace) -> list[str]:
    """The table's columns, without those that need a file that was not given or weights that a small net has not."""
    conditions = conditions_for(options, "scratch", "in")
    possible = [init for init in inits if init != "inat" or options.inat_weights]
    if conditions.profile == "small":
        possible = [init for init in possible if init == "scratch"]
    if not possible:
        raise UserError("No column of this table can be run so: give --inits, --profile or --inat-weights.")
    return possible


def _notes(options: argparse.Namespace, conditions: Conditions, table: Table) -> list[str]:
    chosen = "".join(f", data.{name} {value}" for name, value in conditions.data_settings)
    seeds = "seed 0" if options.seeds == 1 else f"seeds 0 to {options.seeds - 1}"
    notes = [
        f"data {_data_name(conditions.data)}{chosen}, profile {conditions.profile}, budget {options.budget}, {seeds}",
        "mean ± standard deviation over the seeds of the last model's accuracy on the test images, in percent",
        "time: all stages of a recipe together; with --jobs, runs shared the device",
        "table.csv has the best accuracy on test, too, which the paper's protocol would report",
    ]
    return [*notes, table.note] if table.note else notes


def _write(table: Table, inits: Sequence[str], cells: Cells, out: Path, notes: Sequence[str]) -> None:
    from semifine.experiments.formats import as_csv, as_latex, as_markdown
    from semifine.files import write_atomically

    markdown = as_markdown(table, inits, cells, notes)
    out.mkdir(parents=True, exist_ok=True)  # where there is nothing to show yet
    write_atomically(out / "table.md", markdown)
    write_atomically(out / "table.csv", as_csv(table, inits, cells))
    write_atomically(out / "table.tex", as_latex(table, inits, cells))
    print(markdown)
    print(f"Also as {out}/table.md, table.csv and table.tex")
