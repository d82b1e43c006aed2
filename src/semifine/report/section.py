"""A section of the report, and the data that several sections use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from semifine.report.class_order import ClassOrder
    from semifine.report.scores import ResultRow
    from semifine.runs.run import Run


@dataclass(frozen=True)
class ReportData:
    """Data that several sections use, computed once per report."""

    runs: Sequence[Run]
    labels: Sequence[str]
    """Label of each run."""
    rows: Sequence[ResultRow]
    """Numbers of each run."""
    class_order: ClassOrder | None
    """Classes of the run that the sections about classes and images show; None if no run has class statistics."""


@dataclass(frozen=True)
class Section:
    """One section of the report: a template and the function that returns its variables.

    A new section is a module with a ``Section`` and an entry in ``semifine.report.page.SECTIONS``.

    Example:
        >>> template = '<section id="seeds"><h2>Seeds</h2><p>{{ seeds|join(", ") }}</p></section>'
        >>> section = Section({"seeds": "Seeds"}, template, lambda data: {"seeds": [run.seed for run in data.runs]})
        >>> section.context(ReportData(runs=[], labels=[], rows=[], class_order=None))
        {'seeds': []}
    """

    links: Mapping[str, str]
    """Text in the navigation bar by id of the ``<section>`` elements in the template."""
    template: str
    """Jinja template. Values are escaped; ``|percent`` formats a percentage, ``|safe`` inserts an SVG drawing.

    Without anything to show, the template renders no ``<section>``, and the navigation bar has no link to it.
    """
    context: Callable[[ReportData], dict[str, Any]]
    """Returns the variables of the template."""
