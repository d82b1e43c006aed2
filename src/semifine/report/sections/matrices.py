"""The class-transition matrix and the test confusion matrix, in the same order of classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from semifine.report.class_order import Arrangement
from semifine.report.formatting import count, percent, shortened, whole
from semifine.report.style import INK, drawing, new_figure, to_svg

MAX_NAMED = 60
MAX_SIDE_BY_SIDE = 30
MAX_LARGE_LETTERS = 14
NAME_LENGTH = 26

# Half way between light and dark, so that the pictures can be read on both grounds.
BLUE, RED = (33, 136, 207), (222, 98, 30)
COLOR_NOTE = "Colors follow the square root"


@dataclass(frozen=True)
class MatrixFigure:
    title: str
    caption: str
    svg: str
    color: str
    ticks: tuple[str, str, str]
    """Values at the start, the middle and the end of the color scale."""


def draw_matrices(shown: Arrangement) -> list[MatrixFigure]:
    """Those of the two matrices that the run has."""
    with drawing():
        figures = [_transitions_figure(shown), _mistakes_figure(shown)]
    return [figure for figure in figures if figure is not None]


def _transitions_figure(shown: Arrangement) -> MatrixFigure | None:
    if shown.kind != "clusters" or shown.run.transitions is None:
        return None
    values = _off_diagonal(shown.run.transitions)
    top = float(values.max())
    return MatrixFigure(
        title="Class transitions in training",
        caption="How often the prediction of an unlabeled image moved from the row\u2019s class to the column\u2019s. "
        f"No label is needed to count this. {COLOR_NOTE}.",
        svg=_draw(values, BLUE, shown, "Class-transition matrix", ("later", "earlier")),
        color=_css(BLUE),
        ticks=("0", whole(middle) if (middle := middle_of_scale(top)) else "", count(top, "change")),
    )


def _mistakes_figure(shown: Arrangement) -> MatrixFigure | None:
    if shown.run.confusion is None:
        return None
    images = np.maximum(shown.run.confusion.sum(axis=1, keepdims=True), 1)
    values = _off_diagonal(100 * shown.run.confusion / images)
    top = float(values.max())
    return MatrixFigure(
        title="Mistakes on test images",
        caption="Share of the row\u2019s test images that were taken for the column\u2019s class. "
        f"Right answers, on the diagonal, are left out. {COLOR_NOTE}.",
        svg=_draw(values, RED, shown, "Test confusion matrix", ("predicted", "true")),
        color=_css(RED),
        ticks=("0", percent(top / 4), percent(top)),
    )


def middle_of_scale(top: float) -> int | None:
    """The whole number that has half the color of ``top``; None where that would be far from a whole one."""
    return round(top / 4) if top >= 4 else None


def names_fit(num_classes: int) -> bool:
    return num_classes <= MAX_NAMED


def _off_diagonal(matrix: NDArray[np.integer | np.floating]) -> NDArray[np.float64]:
    values = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(values, 0)
    return values


def _draw(
    values: NDArray[np.float64],
    color: tuple[int, int, int],
    shown: Arrangement,
    title: str,
    axis_names: tuple[str, str],
) -> str:
    order = shown.order
    named = names_fit(len(order))
    side = _side(len(order))
    figure = new_figure(side, side)
    axes = figure.add_subplot(facecolor="none")
    axes.imshow(tinted(values[np.ix_(order, order)], color), interpolation="none")
    _draw_borders(axes, shown)
    names = [shortened(shown.run.class_names[label], NAME_LENGTH) for label in order] if named else []
    places = range(len(names))
    size = min(9.0, 0.7 * side * 72 / max(1, len(names)) * 0.85)
    axes.set_xticks(places, names, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(places, names, fontsize=size, parse_math=False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel(f"{axis_names[0]} class", color=INK)
    axes.set_ylabel(f"{axis_names[1]} class", color=INK)
    for spine in axes.spines.values():
        spine.set_color(INK)
        spine.set_linewidth(0.6)
    blocks = count(len(shown.blocks), shown.kind.removesuffix("s")) if shown.blocks else "no blocks"
    return to_svg(figure, f"{title} of {count(len(order), 'class', 'classes')}, ordered into {blocks}.")


def _side(num_classes: int) -> float:
    """The side in inches: all figures of a column are shown equally wide, so a small one has large letters."""
    if num_classes <= MAX_LARGE_LETTERS or not names_fit(num_classes):
        return 4.6
    return 6.6 if num_classes <= MAX_SIDE_BY_SIDE else 9.0


def tinted(values: NDArray[np.float64], color: tuple[int, int, int]) -> NDArray[np.uint8]:
    """(K, K, 4): more is less transparent, so that the ground of the page shows where nothing is.

    By the square root, because a few pairs have most of the counts. The diagonal is gray: it is no value.
    """
    picture = np.empty((*values.shape, 4), np.uint8)
    picture[..., :3] = color
    picture[..., 3] = np.round(255 * np.sqrt(values / max(float(values.max()), 1e-12)))
    diagonal = np.arange(len(values))
    picture[diagonal, diagonal] = (128, 128, 128, 50)
    return picture


def _draw_borders(axes: object, shown: Arrangement) -> None:
    from matplotlib.axes import Axes
    from matplotlib.patches import Rectangle

    assert isinstance(axes, Axes)
    width = 1.0 if names_fit(len(shown.order)) else 0.5
    start = 0
    for members in shown.blocks:
        size = len(members)
        corner = (start - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=INK, linewidth=width))
        start += size


def _css(color: tuple[int, int, int]) -> str:
    return "rgb({} {} {})".format(*color)
