"""The page about one or several runs: gathers what the sections show and writes one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from semifine.analysis.runs import RunFacts, read_run
from semifine.errors import UserError
from semifine.report.arrangement import arrange, choose_run
from semifine.report.cluster_cards import view_clusters
from semifine.report.curves import draw_curves, legend
from semifine.report.matrices import MAX_SIDE_BY_SIDE, draw_matrices, names_fit
from semifine.report.naming import run_labels
from semifine.report.palette import css_variables
from semifine.report.pictures import Examples
from semifine.report.results_table import filled_columns, result_rows
from semifine.report.settings_table import environment_rows, settings_rows
from semifine.report.summary import summarise
from semifine.report.wording import percent
from semifine.run_folder import write_atomically
from semifine.version import __version__

TEMPLATES = Path(__file__).parent / "templates"


def write_page(
    runs: Sequence[Path], out: Path, examples: Examples | None = None, title: str = "Training report"
) -> Path:
    """Writes the page about finished runs to the file ``out`` and returns its path.

    ``examples`` are (height, width, 3) uint8 photos by class id, shown beside the class names. The page needs
    no other file and no network, and the same runs give the same bytes.
    """
    if not runs:
        raise UserError("A report needs at least one run folder.")
    if out.is_dir():
        raise UserError(f"{out} is a folder; name the file of the page, such as {out / 'index.html'}.")
    html = render_page([read_run(path) for path in runs], examples, title)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, html)
    return out


def render_page(runs: Sequence[RunFacts], examples: Examples | None, title: str) -> str:
    """The whole page as text."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,  # class names, paths and settings are other people's text
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html").render(page_context(runs, examples, title))


def page_context(runs: Sequence[RunFacts], examples: Examples | None, title: str) -> dict[str, Any]:
    """What the templates fill in, by section."""
    rows = result_rows(runs)
    return {
        "title": title,
        "version": __version__,
        "light_hues": css_variables(dark=False),
        "dark_hues": css_variables(dark=True),
        "labels": run_labels(runs),
        "summary": summarise(runs, rows),
        "rows": rows,
        "columns": filled_columns(rows),
        "legend": legend(runs),
        "curves": draw_curves(runs),
        "settings": settings_rows(runs),
        "environment": environment_rows(runs),
        **_classes_context(runs, examples),
    }


def _classes_context(runs: Sequence[RunFacts], examples: Examples | None) -> dict[str, Any]:
    """The sections about classes, which show a single run."""
    place = choose_run(runs)
    if place is None:
        return {"shown": None, "matrices": [], "clusters": None}
    shown = arrange(runs[place], run_labels(runs)[place])
    num_classes = shown.run.num_classes
    return {
        "shown": shown,
        "matrices": draw_matrices(shown),
        "matrices_named": names_fit(num_classes),
        "matrices_wide": num_classes > MAX_SIDE_BY_SIDE and names_fit(num_classes),
        "clusters": view_clusters(shown, examples),
    }
