"""Figure 4: how the two objectives lie over the unlabeled images, for pairs of runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from semifine.report.figures.statistics import kernel_density, mass_levels
from semifine.report.figures.style import FULL, add_legend, color, in_lines, panels
from semifine.report.names import is_soc
from semifine.report.scores import RunGroup
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SHARES = (0.95, 0.75, 0.5, 0.25, 0.05)
PAIRS_A_ROW = 4


def draw_objectives(groups: Sequence[RunGroup]) -> Figure | None:
    """SoC, or else the first run, against each of the others; None without images whose truth is known."""
    with_truth = [group for group in groups if len(known_samples(group.runs[0])["z_obj1"])]
    if not with_truth:
        return None
    first = next((group for group in with_truth if is_soc(group.method)), with_truth[0])
    others = [group for group in with_truth if group is not first]
    pairs = [[first, other] for other in others] or [[first]]
    width = None if len(pairs) == 1 else min(FULL, 1.72 * max(len(pairs), 2))
    figure, axes = panels(len(pairs), 2.5, width, PAIRS_A_ROW, sharey=True)
    for place, (panel, pair) in enumerate(zip(axes, pairs, strict=True)):
        for group in pair:
            _draw_density(panel, group)
        panel.set_xlim(0, 1)
        panel.set_ylim(bottom=0)
        panel.set_title(in_lines(" and ".join(group.label for group in pair)))
        if place % PAIRS_A_ROW == 0:
            panel.set_ylabel("Entropy of the prediction")
    figure.supxlabel("Probability of the true class (0: no candidate)", fontsize=8)
    _name_groups(figure, [first, *others])
    return figure


def known_samples(run: Run) -> dict[str, Any]:
    """z_obj1 and entropy of the images whose true class is known and one of the classes."""
    samples = run.samples("truth", "z_obj1", "entropy_before")
    if not samples:
        return {"z_obj1": np.zeros(0), "entropy_before": np.zeros(0)}
    known = (samples["truth"] >= 0) & (samples["truth"] < run.num_classes)
    return {name: samples[name][known].astype(np.float64) for name in ("z_obj1", "entropy_before")}


def _draw_density(axes: Axes, group: RunGroup) -> None:
    samples = known_samples(group.runs[0])
    density = kernel_density(samples["z_obj1"], samples["entropy_before"])
    levels = sorted(set(mass_levels(density, SHARES)))
    hue = color(group.hue)
    top = max(levels[-1] * 1.001, float(density.values.max()) * 1.001)
    axes.contourf(density.x, density.y, density.values, levels=[levels[0], top], colors=[hue], alpha=0.12)
    axes.contour(density.x, density.y, density.values, levels=levels, colors=[hue], linewidths=0.9)


def _name_groups(figure: Figure, groups: Sequence[RunGroup]) -> None:
    from matplotlib.lines import Line2D

    handles = [Line2D([], [], color=color(group.hue), label=group.label) for group in groups]
    add_legend(figure, handles, "upper")
