"""Figure 1: accuracy on test images and of pseudo-labels over training."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from semifine.report.figures.style import add_legend, color, panels
from semifine.report.scores import RunGroup
from semifine.report.sections.curves import reach_to_tick, thinned
from semifine.runs.run import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANELS = (("test_top1", "Test accuracy (%)"), ("pseudo_label_accuracy", "Pseudo-label accuracy (%)"))
MAX_POINTS = 200


def draw_training(groups: Sequence[RunGroup]) -> Figure | None:
    """A panel for each of the two accuracies; None where no run has any. Seeds: the mean, and a band around all."""
    shown = [panel for panel in PANELS if any(panel[0] in run.series for group in groups for run in group.runs)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 2.3, sharex=True)
    for panel, (name, title) in zip(axes, shown, strict=True):
        for group in groups:
            _draw_group(panel, group, name)
        panel.set_title(title)
        panel.set_xlabel("Training step")
        panel.set_xlim(left=0)
        reach_to_tick(panel)
        panel.grid(axis="y")
        panel.locator_params(axis="x", nbins=5)
    add_legend(figure, axes[0].get_legend_handles_labels()[0], "lower")
    return figure


def _draw_group(axes: Axes, group: RunGroup, name: str) -> None:
    series = [thinned(run.series[name], MAX_POINTS) for run in group.runs if name in run.series]
    if not series:
        axes.plot([], [], group.dash, color=color(group.hue), label=group.label)
        return
    steps, values = at_common_steps(series)
    axes.plot(steps, values.mean(axis=0), group.dash, color=color(group.hue), label=group.label)
    if len(series) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=color(group.hue), alpha=0.18, lw=0)
    axes.plot(steps[-1], values[:, -1].mean(), "o", color=color(group.hue), markersize=3, clip_on=False)


def at_common_steps(series: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
    """(n,) the steps of the first series that all reach, and (runs, n) the values there, interpolated."""
    last = min(int(one.steps[-1]) for one in series)
    steps = series[0].steps[series[0].steps <= last]
    return steps, np.stack([np.interp(steps, one.steps, one.values) for one in series])
