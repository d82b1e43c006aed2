"""Figure 5: the entropy of labels before and after selection, and against the number of clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from semifine.analysis.density import kernel_density, mass_levels
from semifine.analysis.entropies import entropy_by_k, share_below_diagonal
from semifine.analysis.intervals import Interval
from semifine.figures.style import COLUMN, FULL, GREY, colour, panels
from semifine.report.groups import RunGroup
from semifine.report.wording import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
MAX_PANELS = 3


def draw_entropies(groups: Sequence[RunGroup]) -> Figure | None:
    """A point for each unlabelled image, its density, the diagonal and the share below it; None without samples."""
    shown = with_samples(groups)[:MAX_PANELS]
    if not shown:
        return None
    width = {1: COLUMN, 2: 4.8}.get(len(shown), FULL)
    figure, axes = panels(len(shown), 2.5, width, sharex=True, sharey=True)
    for panel, group in zip(axes, shown, strict=True):
        _draw_entropies(panel, group)
    axes[0].set_ylabel("Entropy of the label")
    return figure


def with_samples(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Groups whose method makes labels of predictions; SoC's first, as the paper has it."""
    found = [
        group for group in groups if group.runs[0].samples("index") and group.method not in ("supervised", "oracle")
    ]
    return sorted(found, key=lambda group: group.method != "soc")


def _draw_entropies(axes: Axes, group: RunGroup) -> None:
    samples = group.runs[0].samples("entropy_before", "entropy_after")
    before, after = (samples[name].astype(np.float64) for name in ("entropy_before", "entropy_after"))
    hue = colour(group.hue)
    # Tens of thousands of points as a picture keep the PDF small.
    axes.scatter(before, after, s=1.5, color=hue, alpha=0.25, linewidths=0, rasterized=True)
    density = kernel_density(before, after)
    levels = sorted(set(mass_levels(density, SHARES)))
    axes.contour(density.x, density.y, density.values, levels=levels, colors=["#1b1b1b"], linewidths=0.6)
    end = float(max(before.max(), after.max(), 0.1)) * 1.05
    axes.plot([0, end], [0, end], "--", color=GREY, linewidth=0.8)
    axes.set(xlim=(0, end), ylim=(0, end), xlabel="Entropy of the prediction")
    axes.set_title(group.label)
    below = percent(100 * share_below_diagonal(before, after))
    axes.text(0.04, 0.96, f"{below} of the images\nbelow the diagonal", transform=axes.transAxes, va="top", fontsize=7)


def draw_entropy_by_k(groups: Sequence[RunGroup]) -> Figure | None:
    """Mean entropy of the labels for each k, with 95 % intervals; None where no run has clusters."""
    chosen = [(group, _by_k(group)) for group in with_samples(groups)]
    shown = [(group, found) for group, found in chosen if len(found) > 1]
    if not shown:
        return None
    figure, (axes,) = panels(1, 2.2)
    for group, found in shown:
        hue = colour(group.hue)
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
