"""Section: the class-transition matrix and the test confusion matrix, with the classes in the same order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from semifine.report.class_order import ClassOrder, describe_groups
from semifine.report.formatting import count, integer, percent, shorten
from semifine.report.section import ReportData, Section
from semifine.report.style import (
    BLUE,
    COLOR_NOTE,
    INK,
    RED,
    color_by_value,
    drawing,
    half_color_value,
    new_figure,
    to_svg,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_NAMED = 60
MAX_SIDE_BY_SIDE = 30
MAX_LARGE_LETTERS = 14
NAME_LENGTH = 26
DIAGONAL_RGBA = (128, 128, 128, 50)

TEMPLATE = """
{% if matrices %}
<section id="matrices">
<h2>Confused classes</h2>
<div class="prose">
<p>Classes of the run <strong>{{ shown.label }}</strong>
{%- if shown.kind == "clusters" %}, ordered by its learned clusters. A frame marks a cluster.
{%- if matrices|length == 2 %} If a frame is full in both matrices, the model confused the same classes in training and
on test images.{% endif %}
{%- elif shown.kind == "groups" %}, ordered by their groups ({{ groups }}). A frame marks a group.
{%- else %}, in the order of the class list.
{%- endif %}
{% if not named %} {{ shown.run.num_classes }} class names do not fit here; see the clusters below.{% endif %}</p>
</div>
<div class="figures matrices{{ ' wide' if wide }}">
{% for matrix in matrices %}
  <figure>
    <h3>{{ matrix.title }}</h3>
    <div class="scroll" tabindex="0" role="region" aria-label="{{ matrix.title }}">
      <div class="{{ 'named' if named else 'plain' }}">{{ matrix.svg|safe }}</div>
    </div>
    <div class="scale" aria-hidden="true">
      <span class="bar" style="background: linear-gradient(to right, transparent, {{ matrix.color }})"></span>
      <span class="ticks">{% for tick in matrix.ticks %}<span>{{ tick }}</span>{% endfor %}</span>
    </div>
    <figcaption>{{ matrix.caption }}</figcaption>
  </figure>
{% endfor %}
</div>
</section>
{% endif %}
"""


@dataclass(frozen=True)
class MatrixFigure:
    """One matrix of the section."""

    title: str
    caption: str
    svg: str
    color: str
    ticks: tuple[str, str, str]
    """Values at the start, the middle and the end of the color scale."""


def context(report: ReportData) -> dict[str, Any]:
    shown = report.class_order
    if shown is None:
        return {"matrices": []}
    num_classes = shown.run.num_classes
    return {
        "shown": shown,
        "groups": describe_groups(shown.run),
        "matrices": draw_matrices(shown),
        "named": names_fit(num_classes),
        "wide": num_classes > MAX_SIDE_BY_SIDE and names_fit(num_classes),
    }


SECTION = Section({"matrices": "Confusions"}, TEMPLATE, context)


def draw_matrices(shown: ClassOrder) -> list[MatrixFigure]:
    """Draws the matrices that the run has."""
    with drawing():
        figures = [_transitions_figure(shown), _confusion_figure(shown)]
    return [figure for figure in figures if figure is not None]


def _transitions_figure(shown: ClassOrder) -> MatrixFigure | None:
    if shown.kind != "clusters" or shown.run.transitions is None:
        return None
    values = _off_diagonal(shown.run.transitions)
    top = float(values.max())
    return MatrixFigure(
        title="Class transitions in training",
        caption="Number of times that the prediction for an unlabeled image changed from the class of the row to the "
        f"class of the column. Counting needs no labels. {COLOR_NOTE}.",
        svg=_draw(values, BLUE, shown, "Class-transition matrix", ("later", "earlier")),
        color=_css(BLUE),
        ticks=("0", integer(half) if (half := half_color_value(top)) else "", count(top, "change")),
    )


def _confusion_figure(shown: ClassOrder) -> MatrixFigure | None:
    if shown.confusion is None:
        return None
    images = np.maximum(shown.confusion.sum(axis=1, keepdims=True), 1)
    values = _off_diagonal(100 * shown.confusion / images)
    top = float(values.max())
    rows = "true" if shown.run.confusion is not None else "labeled"
    return MatrixFigure(
        title=f"Errors on {shown.confusion_images}",
        caption=f"Share of the {shown.confusion_images} of the row\u2019s class that are predicted as the "
        f"column\u2019s class. Correct predictions, on the diagonal, are left out. {COLOR_NOTE}.",
        svg=_draw(values, RED, shown, "Confusion matrix", ("predicted", rows)),
        color=_css(RED),
        ticks=("0", percent(top / 4), percent(top)),
    )


def names_fit(num_classes: int) -> bool:
    """Whether a matrix has room for the names of the classes."""
    return num_classes <= MAX_NAMED


def _off_diagonal(matrix: NDArray[np.integer | np.floating]) -> NDArray[np.float64]:
    values = np.array(matrix, dtype=np.float64)
    np.fill_diagonal(values, 0)
    return values


def _draw(
    values: NDArray[np.float64],
    color: tuple[int, int, int],
    shown: ClassOrder,
    title: str,
    axis_names: tuple[str, str],
) -> str:
    order = shown.order
    side = _side(len(order))
    figure = new_figure(side, side)
    axes = figure.add_subplot(facecolor="none")
    axes.imshow(matrix_image(values[np.ix_(order, order)], color), interpolation="none")
    _draw_frames(axes, shown)
    names = [shorten(shown.run.class_names[label], NAME_LENGTH) for label in order] if names_fit(len(order)) else []
    ticks = range(len(names))
    size = min(9.0, 0.7 * side * 72 / max(1, len(names)) * 0.85)
    axes.set_xticks(ticks, names, rotation=90, fontsize=size, parse_math=False)
    axes.set_yticks(ticks, names, fontsize=size, parse_math=False)
    axes.tick_params(length=0, labelcolor=INK)
    axes.set_xlabel(f"{axis_names[0]} class", color=INK)
    axes.set_ylabel(f"{axis_names[1]} class", color=INK)
    for spine in axes.spines.values():
        spine.set_color(INK)
        spine.set_linewidth(0.6)
    blocks = count(len(shown.blocks), shown.kind.removesuffix("s")) if shown.blocks else "no blocks"
    return to_svg(figure, f"{title} of {count(len(order), 'class', 'classes')}, ordered into {blocks}.")


def _side(num_classes: int) -> float:
    """Returns the side in inches. The page scales all figures to one width, so smaller figures get larger letters."""
    if num_classes <= MAX_LARGE_LETTERS or not names_fit(num_classes):
        return 4.6
    return 6.6 if num_classes <= MAX_SIDE_BY_SIDE else 9.0


def matrix_image(values: NDArray[np.float64], color: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Returns a `(classes, classes, 4)` RGBA image of a matrix. The diagonal is gray, because it has no value."""
    image = color_by_value(values, color)
    diagonal = np.arange(len(values))
    image[diagonal, diagonal] = DIAGONAL_RGBA
    return image


def _draw_frames(axes: Axes, shown: ClassOrder) -> None:
    from matplotlib.patches import Rectangle  # slow, and a report without matrices does not need it

    width = 1.0 if names_fit(len(shown.order)) else 0.5
    start = 0
    for members in shown.blocks:
        size = len(members)
        corner = (start - 0.5, start - 0.5)
        axes.add_patch(Rectangle(corner, size, size, fill=False, edgecolor=INK, linewidth=width))
        start += size


def _css(color: tuple[int, int, int]) -> str:
    return "rgb({} {} {})".format(*color)
