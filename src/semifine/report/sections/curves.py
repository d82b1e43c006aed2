"""Section: numbers over training steps, one interactive figure each."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from semifine.report.formatting import decimal
from semifine.report.section import ReportData, Section
from semifine.report.style import (
    DASH_ARRAYS,
    FAINT,
    HUES,
    INK,
    downsample,
    drawing,
    new_figure,
    run_styles,
    set_y_axis,
    to_svg,
)
from semifine.runs.run import Run

MAX_POINTS = 300

TEMPLATE = """
{% if curves %}
<section id="curves">
<h2>Training curves</h2>
<ul class="legend" aria-label="Lines">
{% for entry in legend %}
  <li><button type="button" aria-pressed="true" data-run="{{ loop.index0 }}" disabled>
    <svg aria-hidden="true" viewBox="0 0 28 8"><line x1="1" y1="4" x2="27" y2="4" stroke="var(--hue-{{ entry.hue }})"
    stroke-width="2.5" stroke-dasharray="{{ entry.dash }}"/></svg>{{ entry.label }}</button></li>
{% endfor %}
  <li><button type="button" id="zoom-out" hidden>Reset zoom</button></li>
</ul>
<p class="small" id="curve-help" hidden>Hover over a figure, or tap it, to see values. Drag to zoom in. Click a name to
hide its lines.</p>
<div class="figures">
{% for curve in curves %}
  <figure data-curve="{{ loop.index0 }}">
    <h3>{{ curve.title }}</h3>
    <div class="plot">{{ curve.svg|safe }}</div>
    <figcaption>{{ curve.caption }}</figcaption>
  </figure>
{% endfor %}
</div>
</section>
{% endif %}
<script type="application/json" id="page-data">{{ data|safe }}</script>
"""


@dataclass(frozen=True)
class Curve:
    """A series of the metrics, and the texts of its figure."""

    series: str
    title: str
    caption: str
    unit: str


CURVES = (
    Curve("test_top1", "Test accuracy", "Top-1 on test images, which are not used for training.", "%"),
    Curve("val_top1", "Validation accuracy", "Top-1 on validation images, which are not used for training.", "%"),
    Curve(
        "pseudo_label_accuracy",
        "Pseudo-label accuracy",
        "Share of unlabeled images whose prediction equals the hidden true class.",
        "%",
    ),
    Curve("candidates", "Candidate classes", "Mean number of classes in a pseudo-label. Fewer are more specific.", ""),
    Curve(
        "cluster_changes",
        "Classes that changed cluster",
        "Number of classes whose cluster has other members than at the previous evaluation, averaged over the numbers "
        "of clusters. The clusters are stable if it is close to 0.",
        "",
    ),
    Curve("candidate_hit_rate", "Hit rate", "Share of images whose candidates contain the true class.", "%"),
    Curve(
        "entropy_after",
        "Entropy of the labels",
        "Mean entropy of the pseudo-labels after candidate selection. A label with a single class has entropy 0.",
        "",
    ),
    Curve("loss", "Loss", "Training loss. It is not comparable between methods.", ""),
)


@dataclass(frozen=True)
class CurveFigure:
    """One figure of the section."""

    title: str
    caption: str
    svg: str
    data: dict[str, Any]
    """Unit and lines for page.js. A line has the index, the steps and the values of a run."""


@dataclass(frozen=True)
class LegendEntry:
    """Name and line style of a run."""

    label: str
    hue: str
    dash: str


def context(report: ReportData) -> dict[str, Any]:
    entries, curves = legend(report.runs, report.labels), draw_curves(report.runs, report.labels)
    data = {"runs": [asdict(entry) for entry in entries], "curves": [curve.data for curve in curves]}
    # "<" is escaped, so that no name can end the script element.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    return {"legend": entries, "curves": curves, "data": text}


SECTION = Section({"curves": "Training"}, TEMPLATE, context)


def legend(runs: Sequence[Run], labels: Sequence[str]) -> list[LegendEntry]:
    """Returns one entry per run."""
    styles = run_styles([run.method for run in runs])
    return [LegendEntry(label, hue, DASH_ARRAYS[dash]) for label, (hue, dash) in zip(labels, styles, strict=True)]


def draw_curves(runs: Sequence[Run], labels: Sequence[str]) -> list[CurveFigure]:
    """Draws a figure of each curve that at least one run recorded."""
    with drawing():
        return [
            CurveFigure(curve.title, curve.caption, _draw(curve, runs, labels), _line_data(curve, runs))
            for curve in CURVES
            if any(curve.series in run.series for run in runs)
        ]


def _line_data(curve: Curve, runs: Sequence[Run]) -> dict[str, Any]:
    lines = []
    for index, run in enumerate(runs):
        if curve.series in run.series:
            points = downsample(run.series[curve.series], MAX_POINTS)
            values = [float(f"{value:.5g}") for value in points.values]
            lines.append({"run": index, "steps": points.steps.tolist(), "values": values})
    return {"title": curve.title, "unit": curve.unit, "lines": lines}


def _draw(curve: Curve, runs: Sequence[Run], labels: Sequence[str]) -> str:
    figure = new_figure(4.6, 2.9)
    axes = figure.add_subplot(facecolor="none")
    descriptions = []
    styles = run_styles([run.method for run in runs])
    for run, label, (hue, dash) in zip(runs, labels, styles, strict=True):
        if curve.series not in run.series:
            continue
        points = downsample(run.series[curve.series], MAX_POINTS)
        marker = "o" if len(points) <= 12 else ""
        color = HUES[hue][0]
        axes.plot(points.steps, points.values, dash, color=color, marker=marker, markersize=3.5, linewidth=1.8)
        last = decimal(float(points.values[-1]), 1)
        descriptions.append(f"{label} ends at {last}{' ' * bool(curve.unit)}{curve.unit}")
    axes.set_xlabel("training step", color=INK)
    axes.set_ylabel(curve.unit, color=INK)
    set_y_axis(axes)
    axes.grid(axis="y", color=FAINT, linewidth=0.7)
    axes.tick_params(colors=INK, color=FAINT, labelcolor=INK)
    axes.locator_params(axis="x", nbins=6)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(FAINT)
    return to_svg(figure, f"{curve.title} over training steps: {'; '.join(descriptions)}.")
