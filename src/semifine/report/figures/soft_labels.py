"""Figures 4 to 6: objectives and entropies of the labels of unlabeled images, and matrices of confused classes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semifine.report.class_order import ClassOrder, choose_run, order_classes
from semifine.report.figures.statistics import entropy_by_k, fraction_below_diagonal, kernel_density, mass_levels
from semifine.report.figures.style import COLUMN, DARK, FULL, GRAY, add_legend, color, panels, wrap
from semifine.report.formatting import percent, shorten
from semifine.report.names import is_reference, is_soc
from semifine.report.run_settings import changed_method_settings
from semifine.report.scores import RunGroup
from semifine.report.style import COLOR_NOTE, SPARE_HUES, half_color_value
from semifine.runs.analysis import Interval
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

# Shares of the images inside the contour lines.
OBJECTIVE_SHARES = (0.95, 0.75, 0.5, 0.25, 0.05)
ENTROPY_SHARES = (0.9, 0.7, 0.5, 0.3, 0.1)
PAIRS_PER_ROW = 4
PANELS_PER_ROW = 3
MAX_NAMED = 24


# --- Figure 4 ---


def draw_objectives(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws the densities of both objectives for plain SoC, or else the first run, and each other run.

    Plain SoC is the run of SoC whose method settings differ least from the defaults. Runs of one method, such as
    variants of SoC, differ in color and in line style.
    """
    with_truth = [group for group in groups if len(known_samples(group.runs[0])["z_obj1"])]
    if not with_truth:
        return None
    variants = [group for group in with_truth if is_soc(group.method)]
    reference = min(variants, key=lambda group: len(changed_method_settings(group.runs[0])), default=with_truth[0])
    first, *others = _with_own_hues([reference, *(group for group in with_truth if group is not reference)])
    pairs = [[first, other] for other in others] or [[first]]
    width = None if len(pairs) == 1 else min(FULL, 1.72 * max(len(pairs), 2))
    figure, axes = panels(len(pairs), 2.5, width, PAIRS_PER_ROW, sharey=True)
    for index, (panel, pair) in enumerate(zip(axes, pairs, strict=True)):
        for group in pair:
            _draw_density(panel, group)
        panel.set_xlim(0, 1)
        panel.set_ylim(bottom=0)
        panel.set_title(wrap(" and ".join(group.label for group in pair)))
        if index % PAIRS_PER_ROW == 0:
            panel.set_ylabel("Entropy of the prediction")
    figure.supxlabel("Probability of the true class (0: no candidate)", fontsize=8)
    _add_hue_legend(figure, [first, *others])
    return figure


def _with_own_hues(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Returns the groups with a free hue for each whose hue an earlier one has, as long as there are free hues."""
    given = {group.hue for group in groups}
    taken: set[str] = set()
    chosen = []
    for group in groups:
        if group.hue in taken:
            group = replace(group, hue=next((hue for hue in SPARE_HUES if hue not in given | taken), group.hue))
        taken.add(group.hue)
        chosen.append(group)
    return chosen


def known_samples(run: Run) -> dict[str, Any]:
    """Returns z_obj1 and entropy of the images whose true class is known and one of the K classes."""
    samples = run.samples("truth", "z_obj1", "entropy_before")
    if not samples:
        return {"z_obj1": np.zeros(0), "entropy_before": np.zeros(0)}
    known = (samples["truth"] >= 0) & (samples["truth"] < run.num_classes)
    return {name: samples[name][known].astype(np.float64) for name in ("z_obj1", "entropy_before")}


def _draw_density(axes: Axes, group: RunGroup) -> None:
    samples = known_samples(group.runs[0])
    density = kernel_density(samples["z_obj1"], samples["entropy_before"])
    levels = sorted(set(mass_levels(density, OBJECTIVE_SHARES)))
    hue = color(group.hue)
    top = max(levels[-1] * 1.001, float(density.values.max()) * 1.001)
    axes.contourf(density.x, density.y, density.values, levels=[levels[0], top], colors=[hue], alpha=0.12)
    axes.contour(
        density.x, density.y, density.values, levels=levels, colors=[hue], linewidths=0.9, linestyles=group.dash
    )


def _add_hue_legend(figure: Figure, groups: Sequence[RunGroup]) -> None:
    from matplotlib.lines import Line2D  # slow, and only figures need it

    handles = [Line2D([], [], color=color(group.hue), ls=group.dash, label=group.label) for group in groups]
    add_legend(figure, handles, "upper")


# --- Figure 5 ---


def draw_entropies(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws the entropies of each unlabeled image before and after selection, their density and the diagonal."""
    shown = groups_with_labels(groups)
    if not shown:
        return None
    width = {1: COLUMN, 2: 4.8}.get(len(shown), FULL)
    figure, axes = panels(len(shown), 2.5, width, PANELS_PER_ROW)
    end = max(_draw_images(panel, group) for panel, group in zip(axes, shown, strict=True))
    for index, panel in enumerate(axes):
        panel.plot([0, end], [0, end], "--", color=GRAY, linewidth=0.8)
        # Starts below 0, because the axis would hide the points of hard labels.
        panel.set(xlim=(0, end), ylim=(-0.04 * end, end), xlabel="Entropy of the prediction")
        if index % PANELS_PER_ROW == 0:
            panel.set_ylabel("Entropy of the label")
    return figure


def groups_with_labels(groups: Sequence[RunGroup]) -> list[RunGroup]:
    """Returns the groups whose method makes pseudo-labels, SoC first."""
    found = [group for group in groups if group.runs[0].samples("index") and not is_reference(group.method)]
    return sorted(found, key=lambda group: not is_soc(group.method))


def _draw_images(axes: Axes, group: RunGroup) -> float:
    """Draws a point for each image and returns the upper limit of both axes."""
    samples = group.runs[0].samples("entropy_before", "entropy_after")
    before, after = (samples[name].astype(np.float64) for name in ("entropy_before", "entropy_after"))
    # Rasterized, because tens of thousands of vector points make a large PDF.
    axes.scatter(before, after, s=1.5, color=color(group.hue), alpha=0.25, linewidths=0, rasterized=True)
    text = f"{percent(100 * fraction_below_diagonal(before, after))} of the images\nbelow the diagonal"
    if is_hard(after):
        text += "\n(each label is one\nclass: entropy 0)"
    else:
        density = kernel_density(before, after)
        levels = sorted(set(mass_levels(density, ENTROPY_SHARES)))
        axes.contour(density.x, density.y, density.values, levels=levels, colors=[DARK], linewidths=0.6)
    axes.set_title(wrap(group.label))
    axes.text(0.04, 0.96, text, transform=axes.transAxes, va="top", fontsize=7)
    return float(max(before.max(), after.max(), 0.1)) * 1.05


def is_hard(entropy: np.ndarray) -> bool:
    """Whether every label is a single class. Such points lie on a line and have no density."""
    return bool(entropy.max() < 1e-6)


def draw_entropy_by_k(groups: Sequence[RunGroup]) -> Figure | None:
    """Draws the mean entropy of the labels for each number of clusters k, with 95 % intervals."""
    found = [(group, _entropy_by_k(group)) for group in groups_with_labels(groups)]
    shown = [(group, by_k) for group, by_k in found if len(by_k) > 1]
    if not shown:
        return None
    figure, (axes,) = panels(1, 2.2)
    for group, by_k in shown:
        hue = color(group.hue)
        ks = sorted(by_k)
        axes.plot(ks, [by_k[k].mean for k in ks], "o-", color=hue, markersize=2.5, label=group.label)
        lows, highs = [by_k[k].low for k in ks], [by_k[k].high for k in ks]
        axes.fill_between(ks, np.maximum(lows, 0), highs, color=hue, alpha=0.18, lw=0)
    axes.set(xlabel="Number of clusters k", ylabel="Entropy of the label", ylim=(0, None))
    axes.grid(axis="y")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    return figure


def _entropy_by_k(group: RunGroup) -> dict[int, Interval]:
    """Returns the mean over all images for each k, or, if it was not recorded, over the images that chose k."""
    if group.runs[0].entropy_by_k is not None:
        return group.runs[0].entropy_by_k
    samples = group.runs[0].samples("k", "entropy_after")
    return entropy_by_k(samples["k"], samples["entropy_after"].astype(np.float64))


# --- Figure 6 ---


def draw_matrices(runs: Sequence[Run]) -> Figure | None:
    """Draws the class-transition matrix and the confusion matrix, ordered by the learned clusters."""
    index = choose_run(runs)
    if index is None:
        return None
    shown = order_classes(runs[index], "")
    matrices = [
        ("Class transitions in training", "Blues", shown.run.transitions, ("to", "from"), "changes"),
        ("Confusions on test images", "Oranges", shown.run.confusion, ("predicted", "true"), "images"),
    ]
    present = [entry for entry in matrices if entry[2] is not None and entry[2].any()]
    if not present:
        return None
    figure, axes = panels(len(present), 3.6)
    for panel, (title, colors, matrix, names, unit) in zip(axes, present, strict=True):
        assert matrix is not None
        values = matrix[np.ix_(shown.order, shown.order)]
        np.fill_diagonal(values, 0)
        top = max(1, int(values.max()))
        _add_color_scale(figure, _draw_matrix(panel, values, top, shown, colors), top, unit)
        panel.set(title=title, xlabel=f"{names[0]} class", ylabel=f"{names[1]} class")
    figure.supxlabel(COLOR_NOTE, fontsize=7)
    return figure


def _add_color_scale(figure: Figure, image: AxesImage, top: int, unit: str) -> None:
    ticks = [0, *filter(None, [half_color_value(top)]), top]
    scale = figure.colorbar(image, ax=image.axes, ticks=ticks, shrink=0.6, aspect=30, location="bottom")
    scale.set_label(unit)
    scale.outline.set_visible(False)


def _draw_matrix(axes: Axes, values: NDArray[np.int64], top: int, shown: ClassOrder, colors: str) -> AxesImage:
    # Slow, and only figures need them.
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    order = shown.order
    norm = PowerNorm(0.5, vmin=0, vmax=top)  # a few pairs have most of the counts
    image = axes.imshow(np.ma.masked_equal(values, 0), cmap=colors, interpolation="none", norm=norm)
    start = 0
    for members in shown.blocks:
        corner = (start - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, len(members), len(members), fill=False, edgecolor=DARK, linewidth=0.6))
        start += len(members)
    if len(order) <= MAX_NAMED:
        names = [shorten(shown.run.class_names[label], 20) for label in order]
        axes.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(order)), names, fontsize=6)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
    return image
