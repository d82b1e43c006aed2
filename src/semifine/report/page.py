"""The page about one or several runs: gathers what the sections show and writes one HTML file."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from semifine.errors import UserError
from semifine.files import write_atomically
from semifine.report.class_order import arrange, choose_run, groups_told
from semifine.report.formatting import percent
from semifine.report.names import run_labels
from semifine.report.sections.clusters import view_clusters
from semifine.report.sections.curves import draw_curves, legend
from semifine.report.sections.data import view_data
from semifine.report.sections.help import view_help
from semifine.report.sections.images import RunPhotos, SamplesView, view_samples
from semifine.report.sections.labels import view_class_labels
from semifine.report.sections.matrices import MAX_SIDE_BY_SIDE, draw_matrices, names_fit
from semifine.report.sections.results import filled_columns, outside_rows, result_rows, time_lines
from semifine.report.sections.settings import environment_rows, settings_rows
from semifine.report.sections.summary import summarize
from semifine.report.sections.tree import view_tree
from semifine.report.style import css_variables
from semifine.runs.run import Run
from semifine.version import __version__

TEMPLATES = Path(__file__).parent / "templates"
SIGNATURE = b"Written by semifine"
"""Every page has it; a file without it is somebody else's and stays as it is."""


def write_page(runs: Sequence[Path], out: Path, title: str = "Training report", clusters: int | None = None) -> Path:
    """Writes the page about finished runs to the file ``out`` and returns its path.

    Photos come from the run's data, where it is still there. ``clusters`` is the number of clusters to show. The page
    needs no other file and no network, and the same runs give the same bytes.
    """
    if not runs:
        raise UserError("A report needs at least one run folder.")
    if out.is_dir():
        raise UserError(f"{out} is a folder; name the file of the page, such as {out / 'index.html'}.")
    if out.exists() and SIGNATURE not in out.read_bytes():
        raise UserError(f"{out} exists and is no page of semifine: name another file for the report.")
    html = render_page([Run(path).check_finished() for path in runs], title, clusters)
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, html)
    return out


def render_page(runs: Sequence[Run], title: str, clusters: int | None) -> str:
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
    return environment.get_template("page.html").render(page_context(runs, title, clusters))


def page_context(runs: Sequence[Run], title: str, clusters: int | None) -> dict[str, Any]:
    """What the templates fill in, by section."""
    rows = result_rows(runs)
    curves = draw_curves(runs)
    entries = legend(runs)
    script = (TEMPLATES / "page.js").read_text(encoding="utf-8")
    return {
        "title": title,
        "version": __version__,
        "light_hues": css_variables(dark=False),
        "dark_hues": css_variables(dark=True),
        "script": script,
        "script_hash": base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        "data": _embedded({"runs": [asdict(entry) for entry in entries], "curves": [c.data for c in curves]}),
        "labels": run_labels(runs),
        "summary": summarize(runs, rows),
        "help": view_help(runs, rows),
        "rows": rows,
        "columns": filled_columns(rows),
        "outside": outside_rows(runs),
        "time": time_lines(runs),
        "legend": entries,
        "curves": curves,
        "problems": view_data(runs),
        "settings": settings_rows(runs),
        "environment": environment_rows(runs),
        **_classes_context(runs, clusters),
    }


def _embedded(value: Any) -> str:
    """JSON that cannot end the element it stands in."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def _classes_context(runs: Sequence[Run], clusters: int | None) -> dict[str, Any]:
    """The sections about classes and images, which show a single run."""
    place = choose_run(runs)
    if place is None:
        nothing: dict[str, Any] = {"matrices": [], "clusters": None, "tree": None, "class_labels": None}
        return {"shown": None, "samples": SamplesView(), **nothing}
    shown = arrange(runs[place], run_labels(runs)[place], clusters)
    num_classes = shown.run.num_classes
    photos = RunPhotos(shown.run)
    return {
        "shown": shown,
        "groups_told": groups_told(shown.run),
        "matrices": draw_matrices(shown),
        "matrices_named": names_fit(num_classes),
        "matrices_wide": num_classes > MAX_SIDE_BY_SIDE and names_fit(num_classes),
        "clusters": view_clusters(shown, photos.of_classes()),
        "tree": view_tree(shown),
        "class_labels": view_class_labels(shown.run),
        "samples": view_samples(shown, photos),
    }
