"""The coverage table of the guide to reproduce the paper names what exists, and all of it."""

from __future__ import annotations

import re
import shlex

from semifine.config import preset_names
from semifine.data.sources import source_names
from semifine.experiments.stages import FIGURES
from semifine.experiments.tables import choose_rows, read_table, table_names
from semifine.report.figures import FIGURES as DRAWN
from semifine.report.figures import MATRICES
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "how-to" / "reproduce.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.partition("## Coverage")[2].splitlines()
    if line.startswith("| ") and not line.startswith("| part")
]


def commands() -> list[list[str]]:
    return [shlex.split(command) for row in ROWS for command in re.findall("`([^`]*)`", row[1])]


def covered(table: str) -> set[str]:
    """Returns the titles of the rows of a table in the commands; ``--methods`` continues the table above."""
    titles, current = set(), None
    for words in commands():
        if words[:2] == ["semifine", "reproduce"]:
            current = words[2]
        if "--methods" in words and current == table:
            titles |= {row.title for row in choose_rows(read_table(table), words[words.index("--methods") + 1 :]).rows}
    return titles


def test_every_row_says_what_was_run() -> None:
    assert len(ROWS) >= 40
    assert all(len(row) == 3 and row[2] for row in ROWS)


def test_every_table_and_each_row_of_tables_1_and_2_is_covered() -> None:
    assert {words[2] for words in commands() if words[:2] == ["semifine", "reproduce"]} == set(table_names()) - {
        "beyond"
    }
    for table in ("table1", "table2"):
        assert covered(table) == {row.title for row in read_table(table).rows}


def test_figures_presets_and_sources_exist() -> None:
    used = {word for words in commands() for word in words}
    assert FIGURES.keys() <= used
    named = set(re.findall(r"`(fig\d[\w-]*)`", PAGE))
    assert named <= {name for name, _, _ in DRAWN} | {MATRICES}
    presets = {words[words.index("--preset") + 1] for words in commands() if "--preset" in words}
    assert presets
    assert presets <= set(preset_names())
    assert {"semi_aves:PATH", "semi_fungi:PATH", "cifar10:PATH"} <= used
    assert {"semi_aves", "semi_fungi", "cifar10"} <= set(source_names())
