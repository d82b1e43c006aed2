"""The tables of the paper: their rows, the runs that they need, and the results of these runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from semifine.data.sources import source_names
from semifine.errors import UserError
from semifine.experiments.recipes import INITS, Conditions, read_catalog, read_shipped
from semifine.experiments.scheduler import Job, State
from semifine.experiments.stages import plan_stages
from semifine.methods import method_class
from semifine.runs.analysis import wilson_interval

PAPER_CLASSES = 200
"""Number of classes that the paper's values of k refer to. Other data sets scale k by their number of classes."""


@dataclass(frozen=True)
class Row:
    """A row of a table."""

    title: str
    recipe: str
    settings: Mapping[str, Any]
    group: str
    short: str
    """Title of its column in a table with the layout ``blocks``."""

    @property
    def run_name(self) -> str | None:
        """Name of the runs if the row changes settings of the recipe, such as ``soc,alpha=2.0``; otherwise None."""
        if not self.settings:
            return None
        changes = ",".join(f"{key.removeprefix('method.')}={value}" for key, value in self.settings.items())
        return f"{self.recipe},{changes}".replace("/", ":")

    @property
    def folder_name(self) -> str:
        """Name that is unique within the table."""
        return self.run_name or self.recipe


@dataclass(frozen=True)
class Table:
    """A table of the paper."""

    name: str
    title: str
    unlabeled: str
    inits: tuple[str, ...]
    rows: tuple[Row, ...]
    layout: Literal["rows", "blocks"] = "rows"
    note: str = ""


@dataclass(frozen=True)
class Cell:
    """Results of one row with one kind of starting weights, over the seeds.

    Example:
        >>> cell = Cell([{"top1": 50.0}, {"top1": 52.0}], failures=[], published=None, num_seeds=3)
        >>> cell.text("top1"), cell.progress_note
        ('51.0 ± 1.4', ' (2 of 3 seeds)')
    """

    results: list[dict[str, Any]]
    failures: list[str]
    """Seed, stage and reason of each failure."""
    published: str | None
    """Numbers of the paper."""
    seconds: list[float] = field(default_factory=list)
    """Time of all stages of the recipe, for each seed."""
    num_seeds: int = 0
    """Number of planned seeds."""
    unavailable: str = ""
    """Why the data set does not allow these runs."""

    def numbers(self, key: str) -> list[float]:
        """Returns ``top1`` or ``top5`` of the finished runs."""
        return [result[key] for result in self.results if result.get(key) is not None]

    def text(self, key: str) -> str:
        """Returns mean ± standard deviation over the seeds of ``top1`` or ``top5``.

        A single seed has its 95 % interval over the test images in brackets.
        """
        numbers = self.numbers(key)
        images = (self.results[0].get("images") or {}).get("test") if len(self.results) == 1 else None
        if numbers and images:
            interval = wilson_interval(numbers[0], images)
            return f"{interval.mean:.1f} [{interval.low:.1f}, {interval.high:.1f}]"
        return format_spread(numbers) if numbers else "failed" if self.failures else "-"

    @property
    def progress_note(self) -> str:
        """Number of finished seeds; empty if all are finished."""
        if not self.numbers("top1") or len(self.results) >= self.num_seeds:
            return ""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f" ({len(self.results)} of {self.num_seeds} seeds{failed})"


Jobs = dict[tuple[str, str], list[list[Job]]]
"""(row title, init) -> the jobs of the recipe for each seed; the last job gives the result."""


def table_names() -> list[str]:
    """Returns the names of all tables."""
    return list(read_shipped("tables.yaml"))


def read_table(name: str) -> Table:
    """Returns a table of ``config/experiments/tables.yaml``."""
    tables = read_shipped("tables.yaml")
    if name not in tables:
        raise UserError(f"Unknown table '{name}'. Valid ones: {', '.join(tables)}.")
    entry = tables[name]
    rows = tuple(
        Row(line["row"], line["recipe"], line.get("settings", {}), group, line.get("short", ""))
        for group, lines in entry["groups"].items()
        for line in lines
    )
    optional = {key: entry[key] for key in ("layout", "note") if key in entry}
    return Table(name, entry["title"], entry["unlabeled"], tuple(entry["inits"]), rows, **optional)


def choose_rows(table: Table, methods: Sequence[str]) -> Table:
    """Returns the table with the rows of some methods, given by recipe or row title."""
    if not methods:
        return table
    known = {row.recipe for row in table.rows} | {row.title for row in table.rows}
    for method in methods:
        if method not in known:
            raise UserError(f"{table.name} has no row '{method}'. Valid ones: {', '.join(sorted(known))}.")
    return replace(table, rows=tuple(row for row in table.rows if row.recipe in methods or row.title in methods))


def unavailable_rows(table: Table, conditions: Conditions) -> dict[str, str]:
    """Returns the reason by title for rows that the data set does not allow: an oracle needs all true classes."""
    try:
        read_catalog(conditions).with_truth_revealed()
    except UserError as error:
        return {row.title: str(error) for row in table.rows if _trains_on_truth(row, conditions)}
    return {}


def _trains_on_truth(row: Row, conditions: Conditions) -> bool:
    methods = [method_class(stage.settings["method.name"]) for stage in plan_stages(row.recipe, conditions)]
    return any(method.trains_on_truth for method in methods)


def plan_jobs(
    table: Table,
    columns: Mapping[str, Conditions],
    seeds: int,
    out: Path,
    num_classes: int,
    unavailable: Collection[str] = (),
) -> Jobs:
    """Returns the jobs of every cell.

    Args:
        table: The table.
        columns: Conditions by kind of starting weights.
        seeds: Number of seeds.
        out: Folder of the runs.
        num_classes: Number of classes of the data set.
        unavailable: Titles of rows without jobs.
    """
    jobs: Jobs = {}
    for row in table.rows:
        overrides = scale_to_classes(row.settings, num_classes)
        row_seeds = range(0 if row.title in unavailable else seeds)
        for init, conditions in columns.items():
            jobs[row.title, init] = [
                _jobs_of_seed(row, overrides, replace(conditions, seed=seed), out) for seed in row_seeds
            ]
    return jobs


def _jobs_of_seed(row: Row, overrides: dict[str, Any], conditions: Conditions, out: Path) -> list[Job]:
    column = out / f"{conditions.init}-{conditions.unlabeled}" / f"seed-{conditions.seed}"
    return [Job(stage, column) for stage in plan_stages(row.recipe, conditions, overrides, row.run_name)]


def scale_to_classes(settings: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    """Returns the settings of a row for a number of classes.

    ``k`` keeps its proportion to the number of classes. ``alpha`` and ``beta`` are bounded by the values that give each
    class its own cluster at confidence 1, which are also the values of ``finest``.

    Example:
        >>> scale_to_classes({"method.k": 50}, num_classes=40)
        {'method.k': 10}
        >>> scale_to_classes({"method.alpha": 2.0}, num_classes=3)
        {'method.alpha': 3.0}
    """
    if num_classes <= 2:  # k is always 2, so no alpha or beta is the finest
        settings = {key: value for key, value in settings.items() if value != "finest"}
    fitted = dict(settings)
    for key, value in settings.items():
        if key == "method.k":
            fitted[key] = max(2, round(value * num_classes / PAPER_CLASSES))
        elif key == "method.alpha" and num_classes > 2:
            finest = num_classes / (num_classes - 2)
            fitted[key] = finest if value == "finest" else max(value, finest)
        elif key == "method.beta" and num_classes > 2:
            finest = math.log(2 - 2 / num_classes)
            fitted[key] = finest if value == "finest" else min(value, finest)
    return fitted


def fill_cells(
    table: Table, jobs: Jobs, data: str, unavailable: Mapping[str, str] | None = None
) -> dict[tuple[str, str], Cell]:
    """Returns the cells with the results of all finished runs.

    Args:
        table: The table.
        jobs: Jobs by cell.
        data: Name of the data set. The paper has numbers for some of them.
        unavailable: Reasons by row title, see :func:`unavailable_rows`.
    """
    published = read_shipped("published.yaml").get(data.partition(":")[0], {}).get(table.name, {})
    cells = {}
    for (title, init), by_seed in jobs.items():
        last_jobs = [seed_jobs[-1] for seed_jobs in by_seed]
        finished = [seed_jobs for seed_jobs in by_seed if all(job.state is State.DONE for job in seed_jobs)]
        cells[title, init] = Cell(
            results=[job.folder.read_result() for job in last_jobs if job.state is State.DONE],
            failures=[text for seed, seed_jobs in enumerate(by_seed) for text in _failure(seed, seed_jobs)],
            published=published.get(init, {}).get(title),
            seconds=[sum(job.folder.read_result()["seconds"] for job in seed_jobs) for seed_jobs in finished],
            num_seeds=len(by_seed),
            unavailable=(unavailable or {}).get(title, ""),
        )
    return cells


def _failure(seed: int, jobs: Sequence[Job]) -> list[str]:
    """Returns the first failed stage. Later stages fail only because they need it."""
    failed = next((job for job in jobs if job.state is State.FAILED), None)
    return [f"seed {seed} failed at {failed.stage.name}: {failed.reason}"] if failed else []


def format_spread(values: Sequence[float]) -> str:
    """Returns mean ± standard deviation, or the single value."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


PUBLISHED_ON = ("semi_aves", "semi_fungi")
NAME_FORM = "TABLE/DATASET/INIT/ROW"


@dataclass(frozen=True)
class NamedExperiment:
    """A row of a table with a data set and a kind of starting weights."""

    table: Table
    data: str
    init: str
    row: Row

    @property
    def name(self) -> str:
        """Name for ``semifine experiment``."""
        return "/".join((self.table.name, self.data, self.init, self.row.folder_name))


def published_experiments() -> list[NamedExperiment]:
    """Returns every row of every table, for all starting weights and the data sets of the paper."""
    tables = [read_table(name) for name in table_names()]
    return [
        NamedExperiment(table, data, init, row)
        for table in tables
        for data in PUBLISHED_ON
        for init in table.inits
        for row in table.rows
    ]


def find_experiment(name: str) -> NamedExperiment:
    """Returns an experiment by name, for any data source.

    Example:
        >>> find_experiment("table2/synthetic/scratch/soc,alpha=2.0").row.title
        'alpha = 2'
    """
    parts = name.split("/")
    if len(parts) != 4:
        raise UserError(f"'{name}' does not have the form {NAME_FORM}; 'semifine list experiments' lists names.")
    table, data, init, row_name = parts
    rows = {row.folder_name: row for row in read_table(table).rows}
    for part, what, valid in (
        (data, "data set", source_names()),
        (init, "init", INITS),
        (row_name, f"row of {table}", rows),
    ):
        if part not in valid:
            raise UserError(f"'{name}': there is no {what} '{part}'. Valid ones: {', '.join(valid)}.")
    return NamedExperiment(read_table(table), data, init, rows[row_name])
