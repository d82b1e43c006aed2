"""Tables in Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import re

import pytest

from semifine.experiments.formats import Cells, as_csv, as_latex, as_markdown
from semifine.experiments.recipes import read_shipped
from semifine.experiments.tables import Cell, Table, choose_rows, read_table, table_names

INITS = ("scratch",)
FAILURE = "seed 1 failed at flexmatch: 50 % of R&D_x | {lost}"


def small_table() -> Table:
    return choose_rows(read_table("table1"), ["moco", "fixmatch", "flexmatch", "soc"])


def cells() -> Cells:
    results = [{"top1": 50.0, "top5": 80.0}, {"top1": 52.0, "top5": 81.0}]
    return {
        ("MoCo", "scratch"): Cell([], [], None, num_seeds=2),
        ("FixMatch", "scratch"): Cell([], ["seed 0 failed at fixmatch: no luck"], "32.2±1.0 / 57.0±1.2", num_seeds=2),
        ("FlexMatch", "scratch"): Cell(results[:1], [FAILURE], None, seconds=[9], num_seeds=2),
        ("SoC", "scratch"): Cell(results, [], None, seconds=[10, 12], num_seeds=2),
    }


def empty(table: Table, data: str) -> Cells:
    """Returns cells without finished runs, with the numbers of the paper."""
    published = read_shipped("published.yaml")[data].get(table.name, {})
    return {
        (row.title, init): Cell([], [], published.get(init, {}).get(row.title))
        for row in table.rows
        for init in table.inits
    }


def test_markdown_has_the_papers_groups_and_columns() -> None:
    lines = as_markdown(small_table(), INITS, cells(), ["a note"]).splitlines()
    start = lines.index(
        "| Pseudo-label | Method | from scratch: top-1 | from scratch: top-5 | paper, from scratch: top-1 | "
        "paper, from scratch: top-5 | time: from scratch |"
    )
    assert lines[start + 2 : start + 6] == [
        "| — | MoCo | - | - | - | - | - |",
        "| Hard label | FixMatch | failed | failed | 32.2±1.0 | 57.0±1.2 | - |",
        "|  | FlexMatch | 50.0 (1 of 2 seeds, 1 failed) | 80.0 | - | - | 9 s |",
        "| Soft label | SoC | 51.0 ± 1.4 | 80.5 ± 0.7 | - | - | 11 s |",
    ]
    assert "- FixMatch, from scratch: seed 0 failed at fixmatch: no luck" in lines
    assert f"- FlexMatch, from scratch: {FAILURE}" in lines
    assert lines[-1] == "- a note"


def test_csv_has_a_line_per_row_and_init() -> None:
    lines = list(csv.DictReader(io.StringIO(as_csv(small_table(), INITS, cells()))))
    assert [(line["row"], line["seeds"], line["top1"], line["failure"]) for line in lines] == [
        ("MoCo", "0", "", ""),
        ("FixMatch", "0", "", "seed 0 failed at fixmatch: no luck"),
        ("FlexMatch", "1", "50.00", FAILURE),
        ("SoC", "2", "51.00", ""),
    ]


def test_latex_has_groups_rules_and_reasons() -> None:
    latex = as_latex(small_table(), INITS, cells())
    assert (
        r"\multicolumn{2}{c}{} & \multicolumn{2}{c}{from scratch} & \multicolumn{2}{c}{paper, from scratch} \\" in latex
    )
    assert r"\multirow{2}{*}{Hard label} & FixMatch & failed & failed & 32.2$\pm$1.0 & 57.0$\pm$1.2 \\" in latex
    assert r"\multirow{1}{*}{Soft label} & SoC & 51.0 $\pm$ 1.4 & 80.5 $\pm$ 0.7 & - & - \\" in latex
    assert r"{\footnotesize FlexMatch, from scratch: seed 1 failed at flexmatch: 50 \% of R\&D\_x | \{lost\}}" in latex


@pytest.mark.parametrize("name", table_names())
def test_every_line_of_latex_has_all_columns(name: str) -> None:
    table = read_table(name)
    latex = as_latex(table, table.inits, empty(table, "semi_fungi"))
    match = re.search(r"\\begin\{tabular\}\{([lc]+)\}", latex)
    assert match
    for line in latex.splitlines():
        if line.endswith(r"\\"):
            spans = [int(width) - 1 for width in re.findall(r"\\multicolumn\{(\d+)\}", line)]
            assert line.count(" & ") + 1 + sum(spans) == len(match[1]), line


def test_table2_is_four_blocks_of_four() -> None:
    table = read_table("table2")
    markdown = as_markdown(table, INITS, empty(table, "semi_fungi"), [])
    heads = [line for line in markdown.splitlines() if re.fullmatch(r"\| \w \|.*", line)]
    assert heads == [
        "| k | 25 | 50 | 100 | 150 |",
        "| \N{GREEK SMALL LETTER ALPHA} | K/(K-2) | 2 | 5 | 10 |",
        "| β | ln 1.2 | ln 1.4 | ln 1.8 | ln(2-2/K) |",
        "| τ | 0.2 | 0.4 | 0.8 | 0.95 |",
    ]
    assert "| paper, from scratch | 36.6 / 60.8 | 37.8 / 61.2 | 39.4 / 62.5 | 35.8 / 58.7 |" in markdown
    latex = as_latex(table, INITS, empty(table, "semi_fungi"))
    assert r"$\alpha$ & K/(K-2) & 2 & 5 & 10 \\" in latex
    assert latex.count(r"\midrule") == 7


def test_clustering_is_one_block() -> None:
    table = read_table("clustering")
    done = {(row.title, "scratch"): Cell([{"top1": 30.0, "top5": 60.0}], [], None, [5], 2) for row in table.rows}
    markdown = as_markdown(table, INITS, done, [])
    assert "| Method | LD | PL | CTT |" in markdown
    cell = "30.0 / 60.0 (1 of 2 seeds)"
    assert f"| top-1 / top-5, from scratch | {cell} | {cell} | {cell} |" in markdown
    assert "| time, from scratch | 5 s | 5 s | 5 s |" in markdown
