"""Figure 6: the class-transition matrix beside the confusion matrix, ordered by the learned clusters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from semifine.report.class_order import Arrangement, arrange, choose_run
from semifine.report.figures.style import panels
from semifine.report.formatting import shortened
from semifine.report.sections.matrices import COLOR_NOTE, middle_of_scale
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

MAX_NAMED = 24


def draw_matrices(runs: Sequence[Run]) -> Figure | None:
    """Those of the two matrices that there are, with their scales, without diagonals; None where there is neither."""
    place = choose_run(runs)
    if place is None:
        return None
    shown = arrange(runs[place], "")
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
        _add_scale(figure, _draw(panel, values, top, shown, colors), top, unit)
        panel.set(title=title, xlabel=f"{names[0]} class", ylabel=f"{names[1]} class")
    figure.supxlabel(COLOR_NOTE, fontsize=7)
    return figure


def _add_scale(figure: Figure, picture: AxesImage, top: int, unit: str) -> None:
    ticks = [0, *filter(None, [middle_of_scale(top)]), top]
    scale = figure.colorbar(picture, ax=picture.axes, ticks=ticks, shrink=0.6, aspect=30, location="bottom")
    scale.set_label(unit)
    scale.outline.set_visible(False)


def _draw(axes: Axes, values: NDArray[np.int64], top: int, shown: Arrangement, colors: str) -> AxesImage:
    from matplotlib.colors import PowerNorm
    from matplotlib.patches import Rectangle

    order = shown.order
    by_square_root = PowerNorm(0.5, vmin=0, vmax=top)  # a few pairs have most of the counts
    picture = axes.imshow(np.ma.masked_equal(values, 0), cmap=colors, interpolation="none", norm=by_square_root)
    start = 0
    for members in shown.blocks:
        corner = (start - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, len(members), len(members), fill=False, edgecolor="#1b1b1b", linewidth=0.6))
        start += len(members)
    if len(order) <= MAX_NAMED:
        names = [shortened(shown.run.class_names[label], 20) for label in order]
        axes.set_xticks(range(len(order)), names, rotation=90, fontsize=6)
        axes.set_yticks(range(len(order)), names, fontsize=6)
    else:
        axes.set_xticks([])
        axes.set_yticks([])
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(True)
    return picture
