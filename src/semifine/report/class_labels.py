"""Pseudo-labels that each class got over training, against the number of its labelled images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semifine.analysis.runs import ClassLabels, RunFacts
from semifine.report.figures import FAINT, INK, drawing, new_figure, to_svg
from semifine.report.matrices import BLUE
from semifine.report.palette import HUES
from semifine.report.wording import MISSING, count, percent, shortened

MAX_NAMED = 60
MAX_LISTED = 6


@dataclass(frozen=True)
class ClassShare:
    name: str
    labels: str
    """Share of the last pseudo-labels."""
    labelled: str
    """Share of the labelled images."""


@dataclass(frozen=True)
class ClassLabelsView:
    svg: str
    most: list[ClassShare]
    fewest: list[ClassShare]
    never: list[str]
    """Classes without a single accepted label at the end."""


def view_class_labels(run: RunFacts) -> ClassLabelsView | None:
    """None where the run counted no pseudo-labels."""
    labels = run.class_labels
    if labels is None or not labels.accepted.any():
        return None
    labelled = run.labelled_counts
    share = labels.accepted[-1] / max(labels.accepted[-1].sum(), 1)
    expected = np.full(len(share), 1 / len(share)) if labelled is None else labelled / max(labelled.sum(), 1)
    order = np.argsort(share - expected, kind="stable")
    listed = [_share(run, int(label), share, labelled) for label in order]
    never = [run.class_names[label] for label in np.flatnonzero(labels.accepted[-1] == 0)]
    svg = _draw(run, labels, labelled)
    return ClassLabelsView(svg, listed[::-1][:MAX_LISTED], listed[:MAX_LISTED], never)


def _share(run: RunFacts, label: int, share: NDArray[np.float64], labelled: NDArray[np.int64] | None) -> ClassShare:
    of_labelled = MISSING if labelled is None else percent(100 * labelled[label] / max(labelled.sum(), 1))
    return ClassShare(run.class_names[label], percent(100 * share[label]), of_labelled)


def _draw(run: RunFacts, labels: ClassLabels, labelled: NDArray[np.int64] | None) -> str:
    """A row for each class, from many labelled images to few, a column for each evaluation; bars at the side."""
    size = len(run.class_names)
    weight = labels.accepted[-1] if labelled is None else labelled
    order = np.lexsort((-labels.accepted[-1], -weight))
    shares = labels.accepted / np.maximum(labels.accepted.sum(axis=1, keepdims=True), 1) * 100
    named = size <= MAX_NAMED
    with drawing():
        figure = new_figure(9.0, max(2.6, 0.19 * size + 0.9) if named else 5.2)
        heat, bars = figure.subplots(1, 2, sharey=True, width_ratios=[3, 2])
        for axes in (heat, bars):
            axes.set_facecolor("none")
        picture = np.empty((size, len(labels.steps), 4), np.uint8)
        picture[..., :3] = BLUE
        picture[..., 3] = np.round(255 * np.sqrt(shares.T[order] / max(float(shares.max()), 1e-12)))
        heat.imshow(picture, aspect="auto", interpolation="none")
        columns = np.unique(np.linspace(0, len(labels.steps) - 1, min(6, len(labels.steps))).round().astype(int))
        heat.set_xticks(columns, [str(labels.steps[column]) for column in columns])
        heat.set_title("labels of each class over training", color=INK, fontsize=9)
        heat.set_xlabel("training step", color=INK)
        names = [shortened(run.class_names[label], 26) for label in order] if named else []
        heat.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
        if not named:
            heat.set_ylabel(f"{count(size, 'class', 'classes')}, most labelled images first", color=INK)
        place = np.arange(size)
        bars.barh(place, shares[-1][order], height=0.8, color=HUES["blue"][0])
        if labelled is not None:
            bars.plot(100 * labelled[order] / labelled.sum(), place, color=HUES["vermillion"][0], linewidth=1.8)
        bars.set_title("last labels (bars), labelled images (line)", color=INK, fontsize=9)
        bars.set_xlabel("% of all", color=INK)
        for axes in (heat, bars):
            axes.tick_params(colors=INK, color=FAINT, labelcolor=INK, length=0)
            for spine in axes.spines.values():
                spine.set_color(FAINT)
        return to_svg(figure, f"Accepted pseudo-labels of {count(size, 'class', 'classes')} over training.")
