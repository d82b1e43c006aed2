"""Figure 5: the entropy of labels before and after selection, and against the number of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from semifine.report.figures.statistics import entropy_by_k, fraction_below_diagonal, kernel_density, mass_levels
from semifine.report.figures.style import COLUMN, FULL, GRAY, color, in_lines, panels
from semifine.report.formatting import percent
from semifine.report.names import is_reference, is_soc
from semifine.report.scores import RunGroup
from semifine.runs.analysis import Interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
PANELS_A_ROW = 3


def draw_entropies(groups: Sequence[RunGroup]) -> Figure | None:
    """A point for each unlabeled image, its density, the diagonal and the share below it; None without samples."""
    shown = with_samples(groups)
    if not shown:
        return None
    width = {1: COLUMN, 2: 4.8}.get(len(shown), FULL)
    figure, axes = panels(len(shown), 2.5, width, PANELS_A_ROW)
    end = max(_draw_entropies(panel, group) for panel, group in zip(axes, shown, strict=True))
    for place, panel in enumerate(axes):
        panel.plot([0, end], [0, end], "--", color=GRAY, linewidth=0.8)
        # A little room below 0: hard labels lie there, and would be hidden by the axis.
        panel.set(xlim=(0, end), ylim=(-0.04 * end, end), xlabel="Entropy of the prediction")
        if place % PANELS_A_ROW == 0:
            panel.set_ylabel("Entropy of the label")
    return figure


def with_samples(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Groups whose method makes labels of predictions; SoC's first, as the paper has it."""
    found = [group for group in groups if group.runs[0].samples("index") and not is_reference(group.method)]
    return sorted(found, key=lambda group: not is_soc(group.method))


def _draw_entropies(axes: Axes, group: RunGroup) -> float:
    """Draws the images of one group, and returns how far its axes must reach."""
    samples = group.runs[0].samples("entropy_before", "entropy_after")
    before, after = (samples[name].astype(np.float64) for name in ("entropy_before", "entropy_after"))
    hue = color(group.hue)
    # Tens of thousands of points as a picture keep the PDF small.
    axes.scatter(before, after, s=1.5, color=hue, alpha=0.25, linewidths=0, rasterized=True)
    words = f"{percent(100 * fraction_below_diagonal(before, after))} of the images\nbelow the diagonal"
    if is_hard(after):
        words += "\n(each label is one\nclass: entropy 0)"
    else:
        density = kernel_density(before, after)
        levels = sorted(set(mass_levels(density, SHARES)))
        axes.contour(density.x, density.y, density.values, levels=levels, colors=["#1b1b1b"], linewidths=0.6)
    axes.set_title(in_lines(group.label))
    axes.text(0.04, 0.96, words, transform=axes.transAxes, va="top", fontsize=7)
    return float(max(before.max(), after.max(), 0.1)) * 1.05


def is_hard(entropy: np.ndarray) -> bool:
    """Whether every label is a single class: then the points are a line, which has no density."""
    return bool(entropy.max() < 1e-6)


def draw_entropy_by_k(groups: Sequence[RunGroup]) -> Figure | None:
    """Mean entropy of the labels for each k, with 95 % intervals; None where no run has clusters."""
    chosen = [(group, _by_k(group)) for group in with_samples(groups)]
    shown = [(group, found) for group, found in chosen if len(found) > 1]
    if not shown:
        return None
    figure, (axes,) = panels(1, 2.2)
    for group, found in shown:
        hue = color(group.hue)
        ks = sorted(found)
        axes.plot(ks, [found[k].mean for k in ks], "o-", color=hue, markersize=2.5, label=group.label)
        lows, highs = [found[k].low for k in ks], [found[k].high for k in ks]
        axes.fill_between(ks, np.maximum(lows, 0), highs, color=hue, alpha=0.18, lw=0)
    axes.set(xlabel="Number of clusters k", ylabel="Entropy of the label", ylim=(0, None))
    axes.grid(axis="y")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    return figure


def _by_k(group: RunGroup) -> dict[int, Interval]:
    """Of all images with each k; of runs that did not note it, of the images that chose the k."""
    if group.runs[0].entropy_by_k is not None:
        return group.runs[0].entropy_by_k
    samples = group.runs[0].samples("k", "entropy_after")
    return entropy_by_k(samples["k"], samples["entropy_after"].astype(np.float64))
