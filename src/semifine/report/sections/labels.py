"""Section: pseudo-labels of each class over training, compared with its number of labeled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semifine.report.formatting import MISSING, count, percent, shorten
from semifine.report.section import ReportData, Section
from semifine.report.style import BLUE, FAINT, HUES, INK, color_by_value, drawing, new_figure, to_svg
from semifine.runs.run import ClassLabels, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED = 60
MAX_LISTED = 6
NAME_LENGTH = 26
FONT_SIZE = 9.0
"""Points, in a figure 4.2 inches wide, which a phone shows at about this size."""

TEMPLATE = """
{% if class_labels %}
<section id="labels">
<h2>Pseudo-labels per class</h2>
<div class="prose">
<p>Accepted pseudo-labels of <strong>{{ shown.label }}</strong> by predicted class, compared with the labeled images of
the class. A class with a much larger share of pseudo-labels absorbs images of similar classes. A class without
pseudo-labels no longer learns from unlabeled images.</p>
</div>
<div class="figures class-labels">
  <figure><h3>Over training</h3>{{ class_labels.history|safe }}</figure>
  <figure><h3>At the end</h3>{{ class_labels.last|safe }}
  <figcaption>Bars: pseudo-labels. Line: labeled images.</figcaption></figure>
</div>
<div class="columns">
{% for title, shares in (("Most pseudo-labels", class_labels.most), ("Fewest pseudo-labels", class_labels.fewest)) %}
<div>
<h3>{{ title }}<span class="note"> relative to labeled images</span></h3>
<div class="scroll">
<table>
<thead>
<tr>
<th scope="col">Class</th>
<th scope="col" class="number">Share of pseudo-labels</th>
<th scope="col" class="number">Share of labeled images</th>
</tr>
</thead>
<tbody>
{% for share in shares %}
<tr>
<th scope="row">{{ share.name }}</th>
<td class="number">{{ share.labels }}</td>
<td class="number">{{ share.labeled }}</td>
</tr>
{% endfor %}
</tbody>
</table>
</div>
</div>
{% endfor %}
</div>
{% if class_labels.never %}
<p class="small">No pseudo-label between the last two evaluations: {{ class_labels.never|join(", ") }}.</p>
{% endif %}
</section>
{% endif %}
"""


@dataclass(frozen=True)
class ClassShare:
    """Shares of one class, formatted."""

    name: str
    labels: str
    """Share of the last pseudo-labels."""
    labeled: str
    """Share of the labeled images."""


@dataclass(frozen=True)
class ClassLabelsView:
    """Content of the section."""

    history: str
    """Drawing of the pseudo-labels over training."""
    last: str
    """Drawing of the last pseudo-labels and the labeled images."""
    most: list[ClassShare]
    fewest: list[ClassShare]
    never: list[str]
    """Classes without an accepted label at the end."""


def context(report: ReportData) -> dict[str, Any]:
    shown = report.class_order
    return {"shown": shown, "class_labels": None if shown is None else view_class_labels(shown.run)}


SECTION = Section({"labels": "Labels"}, TEMPLATE, context)


def view_class_labels(run: Run) -> ClassLabelsView | None:
    """Returns the content of the section; None if the run counted no pseudo-labels."""
    labels = run.class_labels
    if labels is None or not labels.accepted.any():
        return None
    labeled = run.labeled_counts
    share = labels.accepted[-1] / max(labels.accepted[-1].sum(), 1)
    expected = np.full(len(share), 1 / len(share)) if labeled is None else labeled / max(labeled.sum(), 1)
    order = np.argsort(share - expected, kind="stable")
    listed = [_share(run, int(label), share, labeled) for label in order]
    never = [run.class_names[label] for label in np.flatnonzero(labels.accepted[-1] == 0)]
    rows = _sort_rows(run, labels.accepted[-1], labeled)
    shares = 100 * labels.accepted / np.maximum(labels.accepted.sum(axis=1, keepdims=True), 1)
    with drawing():
        history, last = _draw_history(rows, labels, shares), _draw_last(rows, shares, labeled)
    return ClassLabelsView(history, last, listed[::-1][:MAX_LISTED], listed[:MAX_LISTED], never)


def _share(run: Run, label: int, share: NDArray[np.float64], labeled: NDArray[np.int64] | None) -> ClassShare:
    of_labeled = MISSING if labeled is None else percent(100 * labeled[label] / max(labeled.sum(), 1))
    return ClassShare(run.class_names[label], percent(100 * share[label]), of_labeled)


@dataclass(frozen=True)
class _Rows:
    """The classes from top to bottom, most labeled images first, in both figures."""

    names: list[str]
    order: NDArray[np.int64]

    @property
    def named(self) -> bool:
        return len(self.names) <= MAX_NAMED

    def new_axes(self) -> tuple[Figure, Axes]:
        """Returns an empty figure with the class names on the y axis."""
        size = len(self.names)
        figure = new_figure(4.2, max(2.6, 0.19 * size + 0.9) if self.named else 4.6)
        axes = figure.add_subplot(facecolor="none")
        names = [shorten(self.names[label], NAME_LENGTH) for label in self.order] if self.named else []
        axes.set_yticks(range(len(names)), names, fontsize=FONT_SIZE, parse_math=False)
        if not self.named:
            axes.set_ylabel(f"{count(size, 'class', 'classes')}, most labeled images first", color=INK)
        axes.tick_params(colors=INK, color=FAINT, labelcolor=INK, length=0)
        for spine in axes.spines.values():
            spine.set_color(FAINT)
        return figure, axes


def _sort_rows(run: Run, last: NDArray[np.int64], labeled: NDArray[np.int64] | None) -> _Rows:
    return _Rows(list(run.class_names), np.lexsort((-last, -(last if labeled is None else labeled))))


def _draw_history(rows: _Rows, labels: ClassLabels, shares: NDArray[np.float64]) -> str:
    """Draws a heat map with a row per class and a column per evaluation."""
    figure, axes = rows.new_axes()
    axes.imshow(color_by_value(shares.T[rows.order], BLUE), aspect="auto", interpolation="none")
    columns = np.unique(np.linspace(0, len(labels.steps) - 1, min(5, len(labels.steps))).round().astype(int))
    axes.set_xticks(columns, [str(labels.steps[column]) for column in columns])
    axes.set_xlabel("training step", color=INK)
    return to_svg(figure, f"Accepted pseudo-labels of {count(len(rows.order), 'class', 'classes')} over training.")


def _draw_last(rows: _Rows, shares: NDArray[np.float64], labeled: NDArray[np.int64] | None) -> str:
    """Draws a bar per class, and its share of the labeled images as a line."""
    figure, axes = rows.new_axes()
    y = np.arange(len(rows.order))
    axes.barh(y, shares[-1][rows.order], height=0.8, color=HUES["blue"][0])
    if labeled is not None:
        of_labeled = 100 * labeled[rows.order] / max(labeled.sum(), 1)
        axes.plot(of_labeled, y, color=HUES["vermilion"][0], linewidth=1.8)
    axes.set_ylim(len(y) - 0.5, -0.5)
    axes.set_xlabel("% of all", color=INK)
    return to_svg(figure, f"Last pseudo-labels of {count(len(y), 'class', 'classes')}, and labeled images.")
