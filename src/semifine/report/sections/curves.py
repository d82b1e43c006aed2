"""Numbers over training steps, one small figure each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from semifine.report.formatting import decimal
from semifine.report.names import run_labels
from semifine.report.style import DASH_ARRAYS, FAINT, HUES, INK, drawing, new_figure, run_styles, to_svg
from semifine.runs.run import Run, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_POINTS = 300


@dataclass(frozen=True)
class Curve:
    """What one figure shows."""

    series: str
    title: str
    caption: str
    unit: str


CURVES = (
    Curve("test_top1", "Test accuracy", "Top-1 on test images, which training never sees.", "%"),
    Curve("val_top1", "Validation accuracy", "Top-1 on validation images, kept apart from training.", "%"),
    Curve(
        "pseudo_label_accuracy",
        "Pseudo-label accuracy",
        "How often the prediction on an unlabeled training image is its hidden true class.",
        "%",
    ),
    Curve(
        "candidates",
        "Candidate classes",
        "How many classes a label keeps on average; fewer say more.",
        "",
    ),
    Curve(
        "cluster_changes",
        "Classes that changed cluster",
        "Classes whose cluster has other members than at the evaluation before, as a mean over the numbers of "
        "clusters; near 0 the clusters have settled.",
        "",
    ),
    Curve("candidate_hit_rate", "Hit rate", "How often the true class is among the candidates; more is better.", "%"),
    Curve(
        "entropy_after",
        "Entropy of the labels",
        "How undecided the labels of unlabeled images are after selection; 0 is a single class.",
        "",
    ),
    Curve("loss", "Loss", "What training lowers; not comparable between methods.", ""),
)


@dataclass(frozen=True)
class CurveFigure:
    title: str
    caption: str
    svg: str
    data: dict[str, Any]
    """Unit, and for each line its run's place, steps and values: what the page's script draws from."""


@dataclass(frozen=True)
class LegendEntry:
    label: str
    hue: str
    dash: str


def legend(runs: Sequence[Run]) -> list[LegendEntry]:
    """One entry a run, with the dash pattern of its lines."""
    styles = run_styles([run.method for run in runs])
    return [
        LegendEntry(label, hue, DASH_ARRAYS[dash]) for label, (hue, dash) in zip(run_labels(runs), styles, strict=True)
    ]


def draw_curves(runs: Sequence[Run]) -> list[CurveFigure]:
    """The figures for which at least one run has numbers."""
    with drawing():
        return [
            CurveFigure(curve.title, curve.caption, _draw(curve, runs), _data(curve, runs))
            for curve in CURVES
            if any(curve.series in run.series for run in runs)
        ]


def _data(curve: Curve, runs: Sequence[Run]) -> dict[str, Any]:
    lines = []
    for place, run in enumerate(runs):
        if curve.series in run.series:
            points = thinned(run.series[curve.series])
            values = [float(f"{value:.5g}") for value in points.values]
            lines.append({"run": place, "steps": points.steps.tolist(), "values": values})
    return {"title": curve.title, "unit": curve.unit, "lines": lines}


def thinned(series: Series, limit: int = MAX_POINTS) -> Series:
    """At most ``limit`` points, each the mean of its neighbors; the last step stays where it is."""
    if len(series) <= limit:
        return series
    parts = np.array_split(np.arange(len(series)), limit)
    return Series(
        steps=np.array([series.steps[part[-1]] for part in parts]),
        values=np.array([series.values[part].mean() for part in parts]),
    )


def ticks_up_to(top: float) -> list[float]:
    """Five to seven round numbers from 0 to the first that is not below ``top``; page.js has the same."""
    top = top if top > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(top / 3))
    step = max(factor * power for factor in (0.5, 1, 2, 2.5, 5) if factor * power < top / 3)
    return [place * step for place in range(math.ceil(top / step - 1e-9) + 1)]


def reach_to_tick(axes: Axes) -> None:
    """Heights from 0 to the first round number that is not below what is drawn."""
    ticks = ticks_up_to(axes.dataLim.ymax)
    axes.set_ylim(0, ticks[-1])
    axes.set_yticks(ticks)


def _draw(curve: Curve, runs: Sequence[Run]) -> str:
    figure = new_figure(4.6, 2.9)
    axes = figure.add_subplot(facecolor="none")
    said = []
    styles = run_styles([run.method for run in runs])
    for run, label, (hue, dash) in zip(runs, run_labels(runs), styles, strict=True):
        if curve.series not in run.series:
            continue
        points = thinned(run.series[curve.series])
        marker = "o" if len(points) <= 12 else ""
        color = HUES[hue][0]
        axes.plot(points.steps, points.values, dash, color=color, marker=marker, markersize=3.5, linewidth=1.8)
        said.append(f"{label} ends at {decimal(float(points.values[-1]), 1)}{' ' * bool(curve.unit)}{curve.unit}")
    axes.set_xlabel("training step", color=INK)
    axes.set_ylabel(curve.unit, color=INK)
    reach_to_tick(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.tick_params(colors=INK, color=FAINT, labelcolor=INK)
    axes.locator_params(axis="x", nbins=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
    return to_svg(figure, f"{curve.title} over training steps: {'; '.join(said)}.")
