"""Writes the report of finished runs as one HTML file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from pathlib import Path

from semifine.errors import UserError
from semifine.files import create_folder, has_signature, write_atomically
from semifine.report.class_order import choose_run, order_classes
from semifine.report.formatting import percent
from semifine.report.names import run_labels
from semifine.report.scores import result_rows
from semifine.report.section import ReportData
from semifine.report.sections import (
    clusters,
    curves,
    data,
    images,
    label_check,
    labels,
    matrices,
    probe,
    results,
    settings,
    summary,
    tree,
    verdicts,
)
from semifine.report.style import css_variables
from semifine.runs.run import Run
from semifine.version import __version__

SECTIONS = (
    summary.SECTION,
    verdicts.SECTION,
    results.SECTION,
    probe.SECTION,
    curves.SECTION,
    matrices.SECTION,
    tree.SECTION,
    clusters.SECTION,
    labels.SECTION,
    images.SECTION,
    label_check.SECTION,
    data.SECTION,
    settings.SECTION,
)
"""The sections in the order of the page. A section without content for the runs is left out."""

FOLDER = Path(__file__).parent
"""Contains page.html, page.css and page.js."""
SIGNATURE = b"Written by semifine"
"""Part of every report. A file without it is never replaced."""


def write_page(
    runs: Sequence[Path], out: Path, title: str = "Training report", num_clusters: int | None = None
) -> Path:
    """Writes a report of finished runs as one HTML file, which needs no other file and no network.

    The same runs give the same bytes. Photos come from the data set of the run and are left out if it is missing.

    Args:
        runs: Folders of finished runs.
        out: The HTML file. An existing file is replaced only if it is a report.
        title: Heading of the report.
        num_clusters: Number of class clusters to show; by default it is chosen for the run.

    Returns:
        ``out``.

    Example:
        >>> write_page([Path("runs/supervised"), Path("runs/soc")], Path("report.html"))  # doctest: +SKIP
        PosixPath('report.html')
    """
    if not runs:
        raise UserError("A report needs at least one run folder.")
    if out.is_dir():
        raise UserError(f"{out} is a folder; give a file name, such as {out / 'index.html'}.")
    if out.exists() and not has_signature(out, SIGNATURE):
        raise UserError(f"{out} exists and is not a report of semifine; give another file name.")
    html = render_page([Run(path).check_finished() for path in runs], title, num_clusters)
    create_folder(out.parent)
    write_atomically(out, html)
    return out


def render_page(runs: Sequence[Run], title: str, num_clusters: int | None = None) -> str:
    """Returns the HTML of the report."""
    # Slow to import, and only needed here.
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,  # class names, paths and settings may contain HTML
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    report = collect_data(runs, num_clusters)
    sections = [
        Markup(environment.from_string(section.template).render(section.context(report))) for section in SECTIONS
    ]
    # Names of classes and files are escaped, so they cannot contain the id of a section.
    shown = {name for name in _section_names() for section in sections if f'<section id="{name}">' in section}
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    return environment.get_template("page.html").render(
        title=title,
        version=__version__,
        light_hues=css_variables(dark=False),
        dark_hues=css_variables(dark=True),
        links={name: text for section in SECTIONS for name, text in section.links.items() if name in shown},
        sections=sections,
        script=script,
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
    )


def _section_names() -> list[str]:
    return [name for section in SECTIONS for name in section.links]


def collect_data(runs: Sequence[Run], num_clusters: int | None = None) -> ReportData:
    """Returns the data that several sections use."""
    labels_of_runs = run_labels(runs)
    index = choose_run(runs)
    class_order = None if index is None else order_classes(runs[index], labels_of_runs[index], num_clusters)
    return ReportData(runs, labels_of_runs, result_rows(runs), class_order)
