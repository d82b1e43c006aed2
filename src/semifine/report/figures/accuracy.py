"""Figures about accuracy and cost: figure 1 (accuracy over training), tables 1 and 2 as bars, time and memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from semifine.report.figures.statistics import mean_interval
from semifine.report.figures.style import DARK, FULL, add_legend, color, panels, wrap
from semifine.report.formatting import three_digits
from semifine.report.scores import RunGroup
from semifine.report.style import downsample, set_y_axis
from semifine.runs.analysis import Interval, wilson_interval
from semifine.runs.run import Run, Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

CURVES = (("test_top1", "Test accuracy (%)"), ("pseudo_label_accuracy", "Pseudo-label accuracy (%)"))
MAX_POINTS = 200


def draw_training(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws both accuracies over training, as the mean of the seeds with a band from minimum to maximum."""
    shown = [curve for curve in CURVES if any(curve[0] in run.series for group in groups for run in group.runs)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 2.3, sharex=True)
    for panel, (name, title) in zip(axes, shown, strict=True):
        for group in groups:
            _draw_curve(panel, group, name)
        panel.set_title(title)
        panel.set_xlabel("Training step")
        panel.set_xlim(left=0)
        set_y_axis(panel)
        panel.grid(axis="y")
        panel.locator_params(axis="x", nbins=5)
    add_legend(figure, axes[0].get_legend_handles_labels()[0], "lower")
    return figure


def _draw_curve(axes: Axes, group: RunGroup, name: str) -> None:
    series = [downsample(run.series[name], MAX_POINTS) for run in group.runs if name in run.series]
    hue = color(group.hue)
    if not series:
        axes.plot([], [], group.dash, color=hue, label=group.label)  # for the legend
        return
    steps, values = interpolate_at_common_steps(series)
    axes.plot(steps, values.mean(axis=0), group.dash, color=hue, label=group.label)
    if len(series) > 1:
        axes.fill_between(steps, values.min(axis=0), values.max(axis=0), color=hue, alpha=0.18, lw=0)
    axes.plot(steps[-1], values[:, -1].mean(), "o", color=hue, markersize=3, clip_on=False)


def interpolate_at_common_steps(series: Sequence[Series]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `(steps,)` steps of the first series that all series reach, and the `(runs, steps)` values there."""
    last = min(int(item.steps[-1]) for item in series)
    steps = series[0].steps[series[0].steps <= last]
    return steps, np.stack([np.interp(steps, item.steps, item.values) for item in series])


def draw_results(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws top-1 and top-5 on test images as bars with intervals."""
    tested = [group for group in groups if any(run.result.get("top1") is not None for run in group.runs)]
    if not tested:
        return None
    figure, axes = panels(2, 0.75 + 0.27 * len(tested), FULL, sharey=True)
    for panel, (key, title) in zip(axes, (("top1", "Top-1 (%)"), ("top5", "Top-5 (%)")), strict=True):
        intervals = {index: accuracy_interval(group.runs, key) for index, group in enumerate(tested)}
        points = [[run.result[key] for run in group.runs if run.result.get(key) is not None] for group in tested]
        _draw_bars(panel, tested, intervals, points, "{:.1f}".format)
        panel.set_title(title)
        panel.set_xlim(0, 100)
    return figure


def accuracy_interval(runs: Sequence[Run], key: str) -> Interval:
    """Returns the 95 % interval over seeds; for a single run, the interval over the choice of test images."""
    values = [float(run.result[key]) for run in runs if run.result.get(key) is not None]
    confusion = runs[0].confusion
    if len(values) == 1 and confusion is not None and confusion.sum():
        return wilson_interval(values[0], int(confusion.sum()))
    return mean_interval(values)


# Title of the panel, and the number of a run.
COSTS: tuple[tuple[str, Callable[[Run], float | None]], ...] = (
    ("Time of a training step (ms)", lambda run: run.step_seconds and 1000 * run.step_seconds),
    ("Peak GPU memory (GB)", lambda run: run.peak_gpu_bytes and run.peak_gpu_bytes / 1e9),
)


def draw_cost(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws the time of a training step and the peak GPU memory as bars, if they were recorded."""
    numbers = [[[value for run in group.runs if (value := cost(run))] for group in groups] for _, cost in COSTS]
    shown = [(title, values) for (title, _), values in zip(COSTS, numbers, strict=True) if any(values)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 0.75 + 0.27 * len(groups), sharey=True)
    for panel, (title, values) in zip(axes, shown, strict=True):
        intervals = {index: mean_interval(of_group) for index, of_group in enumerate(values) if of_group}
        _draw_bars(panel, groups, intervals, values, three_digits)
        panel.set_title(title)
        panel.set_xlim(0, 1.15 * max(max(interval.high, interval.mean) for interval in intervals.values()))
    return figure


def _draw_bars(
    axes: Axes,
    groups: Sequence[RunGroup],
    intervals: Mapping[int, Interval],
    points: Sequence[Sequence[float]],
    format_value: Callable[[float], str],
) -> None:
    """Draws a bar for each group with an interval, and a point for each of its runs."""
    for y, interval in intervals.items():
        values, hue = points[y], color(groups[y].hue)
        axes.barh(y, interval.mean, height=0.62, color=hue, alpha=0.8)
        low, high = max(interval.mean - interval.low, 0), max(interval.high - interval.mean, 0)
        if low or high:  # a single value has no interval
            axes.errorbar(interval.mean, y, xerr=[[low], [high]], color=DARK, linewidth=0.9, capsize=2)
        if len(values) > 1:
            axes.plot(values, [y] * len(values), "o", color="white", markeredgecolor=DARK, ms=2.6, mew=0.5)
        axes.annotate(
            format_value(interval.mean), (max(interval.high, interval.mean), y), (3, 0),
            textcoords="offset points", va="center", fontsize=7,
        )  # fmt: skip
    axes.set_yticks(range(len(groups)), [wrap(group.label) for group in groups])
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
