"""The paper's tables: the runs that fill them, and the names of their rows."""

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
from semifine.experiments.stages import plan
from semifine.methods import method_class

PAPER_CLASSES = 200
"""The paper's k are for so many classes; elsewhere they keep their proportion."""


@dataclass(frozen=True)
class Row:
    """A row of a table: its title, and the recipe that fills it."""

    title: str
    recipe: str
    settings: Mapping[str, Any]
    group: str
    short: str
    """What stands above its column, in a table of blocks."""

    @property
    def run_name(self) -> str | None:
        """Where a row changes a recipe, its runs have a name of their own."""
        if not self.settings:
            return None
        told = ",".join(f"{key.removeprefix('method.')}={value}" for key, value in self.settings.items())
        return f"{self.recipe},{told}".replace("/", ":")

    @property
    def folder_name(self) -> str:
        """By which the row is told from the others of its table."""
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
    """One row under one start, over the seeds."""

    results: list[dict[str, Any]]
    failures: list[str]
    """Which seeds failed at which stage, and why."""
    published: str | None
    seconds: list[float] = field(default_factory=list)
    """What all stages of the recipe took, for each seed."""
    wanted: int = 0
    """How many seeds there will be."""
    absent: str = ""
    """Why there can be no such runs for these images."""

    def numbers(self, key: str) -> list[float]:
        return [result[key] for result in self.results if result.get(key) is not None]

    def text(self, key: str) -> str:
        """Mean ± deviation over the seeds of ``top1`` or ``top5``."""
        numbers = self.numbers(key)
        return spread(numbers) if numbers else "failed" if self.failures else "-"

    @property
    def so_far(self) -> str:
        """Of how many seeds the numbers are, where some are missing."""
        if not self.numbers("top1") or len(self.results) >= self.wanted:
            return ""
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f" ({len(self.results)} of {self.wanted} seeds{failed})"


Jobs = dict[tuple[str, str], list[list[Job]]]
"""(row title, init) -> for each seed the jobs of its recipe, the last of which is the result"""


def table_names() -> list[str]:
    return list(read_shipped("tables.yaml"))


def read_table(name: str) -> Table:
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
    """The table with the rows of some methods only; a method is named by its recipe, or by the row's title."""
    if not methods:
        return table
    known = {row.recipe for row in table.rows} | {row.title for row in table.rows}
    for method in methods:
        if method not in known:
            raise UserError(f"{table.name} has no row '{method}'. Valid ones: {', '.join(sorted(known))}.")
    return replace(table, rows=tuple(row for row in table.rows if row.recipe in methods or row.title in methods))


def absent_rows(table: Table, conditions: Conditions) -> dict[str, str]:
    """Titles of rows that cannot be for these images, with the reason: an oracle needs the truth."""
    try:
        read_catalog(conditions).with_truth_revealed()
    except UserError as error:
        return {row.title: str(error) for row in table.rows if _trains_on_truth(row, conditions)}
    return {}


def _trains_on_truth(row: Row, conditions: Conditions) -> bool:
    methods = [method_class(stage.settings["method.name"]) for stage in plan(row.recipe, conditions)]
    return any(method.trains_on_truth for method in methods)


def plan_jobs(
    table: Table,
    columns: Mapping[str, Conditions],
    seeds: int,
    out: Path,
    num_classes: int,
    absent: Collection[str] = (),
) -> Jobs:
    """The jobs of every cell, by row and init; rows whose titles are absent have none."""
    jobs: Jobs = {}
    for row in table.rows:
        overrides = fit_settings(row.settings, num_classes)
        wanted = range(0 if row.title in absent else seeds)
        for init, conditions in columns.items():
            jobs[row.title, init] = [
                _jobs_of_seed(row, overrides, replace(conditions, seed=seed), out) for seed in wanted
            ]
    return jobs


def _jobs_of_seed(row: Row, overrides: dict[str, Any], conditions: Conditions, out: Path) -> list[Job]:
    column = out / f"{conditions.init}-{conditions.unlabeled}" / f"seed-{conditions.seed}"
    return [Job(stage, column) for stage in plan(row.recipe, conditions, overrides, row.run_name)]


def fit_settings(settings: Mapping[str, Any], num_classes: int) -> dict[str, Any]:
    """A row's settings for another number of classes."""
    if num_classes <= 2:  # k = 2 is all there is: no alpha or beta is the finest
        settings = {key: value for key, value in settings.items() if value != "finest"}
    fitted = dict(settings)
    for key, value in settings.items():
        if key == "method.k":
            fitted[key] = max(2, round(value * num_classes / PAPER_CLASSES))
        elif value == "finest":
            is_alpha = key == "method.alpha"
            fitted[key] = num_classes / (num_classes - 2) if is_alpha else math.log(2 - 2 / num_classes)
    return fitted


def fill(table: Table, jobs: Jobs, data: str, absent: Mapping[str, str] | None = None) -> dict[tuple[str, str], Cell]:
    """The cells as far as their runs are finished; ``absent`` has the reasons of ``absent_rows``."""
    published = read_shipped("published.yaml").get(data.partition(":")[0], {}).get(table.name, {})
    cells = {}
    for (title, init), by_seed in jobs.items():
        lasts = [seed_jobs[-1] for seed_jobs in by_seed]
        finished = [seed_jobs for seed_jobs in by_seed if all(job.state is State.DONE for job in seed_jobs)]
        cells[title, init] = Cell(
            results=[job.folder.read_result() for job in lasts if job.state is State.DONE],
            failures=[text for seed, seed_jobs in enumerate(by_seed) for text in _failure(seed, seed_jobs)],
            published=published.get(init, {}).get(title),
            seconds=[sum(job.folder.read_result()["seconds"] for job in seed_jobs) for seed_jobs in finished],
            wanted=len(by_seed),
            absent=(absent or {}).get(title, ""),
        )
    return cells


def _failure(seed: int, jobs: Sequence[Job]) -> list[str]:
    """The stage at which a recipe failed; those after it only lack what it should have given."""
    failed = next((job for job in jobs if job.state is State.FAILED), None)
    return [f"seed {seed} failed at {failed.stage.name}: {failed.reason}"] if failed else []


def spread(values: Sequence[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


PUBLISHED_ON = ("semi_aves", "semi_fungi")
FORM = "TABLE/DATASET/START/ROW"


@dataclass(frozen=True)
class NamedExperiment:
    """A row of a table, on a data set, from a start."""

    table: Table
    data: str
    init: str
    row: Row

    @property
    def name(self) -> str:
        return "/".join((self.table.name, self.data, self.init, self.row.folder_name))


def published_experiments() -> list[NamedExperiment]:
    """Every row of every table, under every start and published data set."""
    tables = [read_table(name) for name in table_names()]
    return [
        NamedExperiment(table, data, init, row)
        for table in tables
        for data in PUBLISHED_ON
        for init in table.inits
        for row in table.rows
    ]


def find_experiment(name: str) -> NamedExperiment:
    """The experiment of that name, on any source of data; what is wrong with the name is said."""
    parts = name.split("/")
    if len(parts) != 4:
        raise UserError(f"'{name}' is not of the form {FORM}; 'semifine list experiments' shows such names.")
    table, data, init, row_name = parts
    rows = {row.folder_name: row for row in read_table(table).rows}
    for part, what, valid in (
        (data, "data set", source_names()),
        (init, "start", INITS),
        (row_name, f"row of {table}", rows),
    ):
        if part not in valid:
            raise UserError(f"'{name}': there is no {what} '{part}'. Valid ones: {', '.join(valid)}.")
    return NamedExperiment(read_table(table), data, init, rows[row_name])
