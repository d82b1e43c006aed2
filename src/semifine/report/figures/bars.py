"""Tables 1 and 2 as bars with intervals, and what a step costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from semifine.report.figures.statistics import mean_interval, wilson_interval
from semifine.report.figures.style import FULL, color, in_lines, panels
from semifine.report.formatting import three_digits
from semifine.report.scores import RunGroup
from semifine.runs.analysis import Interval
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def draw_results(groups: Sequence[RunGroup]) -> Figure | None:
    """Top-1 and top-5 on test images; None where no run has any."""
    tested = [group for group in groups if any(run.result.get("top1") is not None for run in group.runs)]
    if not tested:
        return None
    figure, axes = panels(2, 0.75 + 0.27 * len(tested), FULL, sharey=True)
    for panel, (key, title) in zip(axes, (("top1", "Top-1 (%)"), ("top5", "Top-5 (%)")), strict=True):
        intervals = {place: accuracy_interval(group.runs, key) for place, group in enumerate(tested)}
        points = [[run.result[key] for run in group.runs if run.result.get(key) is not None] for group in tested]
        _draw_bars(panel, tested, intervals, points, "{:.1f}".format)
        panel.set_title(title)
        panel.set_xlim(0, 100)
    return figure


def accuracy_interval(runs: Sequence[Run], key: str) -> Interval:
    """Over seeds where there are several; with one, what chance in the choice of test images leaves open."""
    values = [float(run.result[key]) for run in runs if run.result.get(key) is not None]
    confusion = runs[0].confusion
    if len(values) == 1 and confusion is not None and confusion.sum():
        return wilson_interval(values[0], int(confusion.sum()))
    return mean_interval(values)


# What a step costs: the title of the panel, and the number of a run that it shows.
COSTS: tuple[tuple[str, Callable[[Run], float | None]], ...] = (
    ("Time of a training step (ms)", lambda run: run.step_seconds and 1000 * run.step_seconds),
    ("GPU memory at most (GB)", lambda run: run.peak_gpu_bytes and run.peak_gpu_bytes / 1e9),
)


def draw_cost(groups: Sequence[RunGroup]) -> Figure | None:
    """Milliseconds a training step, and GPU memory where a run recorded it; None where no run has either."""
    numbers = [[[found for run in group.runs if (found := cost(run))] for group in groups] for _, cost in COSTS]
    shown = [(title, values) for (title, _), values in zip(COSTS, numbers, strict=True) if any(values)]
    if not shown:
        return None
    figure, axes = panels(len(shown), 0.75 + 0.27 * len(groups), sharey=True)
    for panel, (title, values) in zip(axes, shown, strict=True):
        known = [place for place, found in enumerate(values) if found]
        intervals = {place: mean_interval(values[place]) for place in known}
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
    """A bar for each group that has an interval, and a point for each of its runs."""
    for place, interval in intervals.items():
        values, hue = points[place], color(groups[place].hue)
        axes.barh(place, interval.mean, height=0.62, color=hue, alpha=0.8)
        low, high = max(interval.mean - interval.low, 0), max(interval.high - interval.mean, 0)
        if low or high:  # one run alone has no interval
            axes.errorbar(interval.mean, place, xerr=[[low], [high]], color="#1b1b1b", linewidth=0.9, capsize=2)
        if len(values) > 1:
            axes.plot(values, [place] * len(values), "o", color="white", markeredgecolor="#1b1b1b", ms=2.6, mew=0.5)
        axes.annotate(
            format_value(interval.mean), (max(interval.high, interval.mean), place), (3, 0),
            textcoords="offset points", va="center", fontsize=7,
        )  # fmt: skip
    axes.set_yticks(range(len(groups)), [in_lines(group.label) for group in groups])
    axes.set_ylim(len(groups) - 0.45, -0.55)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x")
