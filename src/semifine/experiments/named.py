"""Every row of every table by a name of its own, such as ``table2/semi_fungi/scratch/soc,map=fixed,k=25``."""

from __future__ import annotations

from dataclasses import dataclass

from semifine.data.sources import source_names
from semifine.errors import UserError
from semifine.experiments.recipes import INITS
from semifine.experiments.tables import Row, Table, read_table, table_names

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
