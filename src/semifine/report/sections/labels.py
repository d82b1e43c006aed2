"""Pseudo-labels that each class got over training, against the number of its labeled images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semifine.report.formatting import MISSING, count, percent, shortened
from semifine.report.sections.matrices import BLUE
from semifine.report.style import FAINT, HUES, INK, drawing, new_figure, to_svg
from semifine.runs.run import ClassLabels, Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MAX_NAMED = 60
MAX_LISTED = 6
NAME_LENGTH = 26
LETTERS = 9.0
"""Points, in a figure of 4.2 inches that a phone shows about as large."""


@dataclass(frozen=True)
class ClassShare:
    name: str
    labels: str
    """Share of the last pseudo-labels."""
    labeled: str
    """Share of the labeled images."""


@dataclass(frozen=True)
class ClassLabelsView:
    history: str
    """Labels of each class over training, as a drawing."""
    last: str
    """The last labels beside the labeled images, as a drawing."""
    most: list[ClassShare]
    fewest: list[ClassShare]
    never: list[str]
    """Classes without a single accepted label at the end."""


def view_class_labels(run: Run) -> ClassLabelsView | None:
    """None where the run counted no pseudo-labels."""
    labels = run.class_labels
    if labels is None or not labels.accepted.any():
        return None
    labeled = run.labeled_counts
    share = labels.accepted[-1] / max(labels.accepted[-1].sum(), 1)
    expected = np.full(len(share), 1 / len(share)) if labeled is None else labeled / max(labeled.sum(), 1)
    order = np.argsort(share - expected, kind="stable")
    listed = [_share(run, int(label), share, labeled) for label in order]
    never = [run.class_names[label] for label in np.flatnonzero(labels.accepted[-1] == 0)]
    rows = _rows(run, labels.accepted[-1], labeled)
    shares = 100 * labels.accepted / np.maximum(labels.accepted.sum(axis=1, keepdims=True), 1)
    with drawing():
        history, last = _draw_history(rows, labels, shares), _draw_last(rows, shares, labeled)
    return ClassLabelsView(history, last, listed[::-1][:MAX_LISTED], listed[:MAX_LISTED], never)


def _share(run: Run, label: int, share: NDArray[np.float64], labeled: NDArray[np.int64] | None) -> ClassShare:
    of_labeled = MISSING if labeled is None else percent(100 * labeled[label] / max(labeled.sum(), 1))
    return ClassShare(run.class_names[label], percent(100 * share[label]), of_labeled)


@dataclass(frozen=True)
class _Rows:
    """The classes from top to bottom, from many labeled images to few, as both figures have them."""

    names: list[str]
    order: NDArray[np.int64]

    @property
    def named(self) -> bool:
        return len(self.names) <= MAX_NAMED

    def new_axes(self) -> tuple[Figure, Axes]:
        """An empty figure with the names at the side, in letters that can be read on a phone."""
        size = len(self.names)
        figure = new_figure(4.2, max(2.6, 0.19 * size + 0.9) if self.named else 4.6)
        axes = figure.add_subplot(facecolor="none")
        names = [shortened(self.names[label], NAME_LENGTH) for label in self.order] if self.named else []
        axes.set_yticks(range(len(names)), names, fontsize=LETTERS, parse_math=False)
        if not self.named:
            axes.set_ylabel(f"{count(size, 'class', 'classes')}, most labeled images first", color=INK)
        axes.tick_params(colors=INK, color=FAINT, labelcolor=INK, length=0)
        for spine in axes.spines.values():
            spine.set_color(FAINT)
        return figure, axes


def _rows(run: Run, last: NDArray[np.int64], labeled: NDArray[np.int64] | None) -> _Rows:
    return _Rows(list(run.class_names), np.lexsort((-last, -(last if labeled is None else labeled))))


def _draw_history(rows: _Rows, labels: ClassLabels, shares: NDArray[np.float64]) -> str:
    """A row for each class, a column for each evaluation."""
    figure, axes = rows.new_axes()
    picture = np.empty((len(rows.order), len(labels.steps), 4), np.uint8)
    picture[..., :3] = BLUE
    picture[..., 3] = np.round(255 * np.sqrt(shares.T[rows.order] / max(float(shares.max()), 1e-12)))
    axes.imshow(picture, aspect="auto", interpolation="none")
    columns = np.unique(np.linspace(0, len(labels.steps) - 1, min(5, len(labels.steps))).round().astype(int))
    axes.set_xticks(columns, [str(labels.steps[column]) for column in columns])
    axes.set_xlabel("training step", color=INK)
    return to_svg(figure, f"Accepted pseudo-labels of {count(len(rows.order), 'class', 'classes')} over training.")


def _draw_last(rows: _Rows, shares: NDArray[np.float64], labeled: NDArray[np.int64] | None) -> str:
    """A bar for each class, and its share of the labeled images as a line."""
    figure, axes = rows.new_axes()
    place = np.arange(len(rows.order))
    axes.barh(place, shares[-1][rows.order], height=0.8, color=HUES["blue"][0])
    if labeled is not None:
        of_labeled = 100 * labeled[rows.order] / max(labeled.sum(), 1)
        axes.plot(of_labeled, place, color=HUES["vermilion"][0], linewidth=1.8)
    axes.set_ylim(len(place) - 0.5, -0.5)
    axes.set_xlabel("% of all", color=INK)
    return to_svg(figure, f"Last pseudo-labels of {count(len(place), 'class', 'classes')}, and labeled images.")
