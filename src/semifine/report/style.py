"""Colors, line styles, axes and SVG output of the report's drawings."""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from semifine.methods.registry import method_display
from semifine.runs.run import Series

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name -> (on a light background, on a dark background)
HUES = {
    "black": ("#1b1b1b", "#f0f0f0"),
    "blue": ("#0072b2", "#4fb0f0"),
    "vermilion": ("#d55e00", "#f28543"),
    "green": ("#009e73", "#2cc79b"),
    "orange": ("#e69f00", "#f2b632"),
    "purple": ("#cc79a7", "#e39cc4"),
    "sky": ("#56b4e9", "#8fd0f5"),
}
SPARE_HUES = ("vermilion", "green", "orange", "purple", "sky")
DASHES = ("-", "--", "-.", ":")
DASH_ARRAYS = {"-": "none", "--": "6 3", "-.": "6 3 1.5 3", ":": "1.5 3"}

# RGB values between light and dark, for images on both backgrounds.
BLUE, RED = (33, 136, 207), (222, 98, 30)

Style = tuple[str, str]
"""A hue and a line style."""


# --- Line styles of methods ---


def run_styles(methods: Sequence[str]) -> list[Style]:
    """Returns hue and line style of each run. Further runs of a method differ in the line style."""
    firsts = method_styles(methods)
    taken = set(firsts.values())
    styles = []
    for index, method in enumerate(methods):
        style = firsts[method]
        if repeat := methods[:index].count(method):
            hue, dash = style
            others = [(hue, other) for other in _rotate(DASHES, DASHES.index(dash) + repeat)]
            style = next((other for other in others if other not in taken), others[0])
        taken.add(style)
        styles.append(style)
    return styles


def method_styles(methods: Collection[str]) -> dict[str, Style]:
    """Returns the style of each method's first run. Methods without a color take a free style."""
    displays = {method: method_display(method) for method in methods}
    styles = {method: (display.color, display.line_style) for method, display in displays.items() if display.color}
    for method in sorted(set(methods) - set(styles)):  # sorted: independent of the order of the runs
        styles[method] = _free_style(method, set(styles.values()))
    return styles


def _free_style(method: str, taken: Collection[Style]) -> Style:
    """Returns a style with a hue that no other method in the report has, or else a free pair of hue and line style."""
    # The checksum gives a method the same color in every report, if that color is free.
    hues = _rotate(SPARE_HUES, crc32(method.encode()))
    styles = [(hue, dash) for dash, hue in product(DASHES, hues)]
    taken_hues = {hue for hue, _ in taken}
    new_hues = [style for style in styles if style[0] not in taken_hues]
    free = [style for style in styles if style not in taken]
    return next(iter(new_hues + free), styles[0])


def _rotate(choices: Sequence[str], start: int) -> list[str]:
    start %= len(choices)
    return [*choices[start:], *choices[:start]]


def css_variables(dark: bool) -> str:
    """Returns the hues as CSS declarations such as ``--hue-blue: #0072b2;``."""
    return " ".join(f"--hue-{name}: {shades[dark]};" for name, shades in HUES.items())


# --- Axes and color scales ---

COLOR_NOTE = "Colors follow the square root"


def downsample(series: Series, limit: int) -> Series:
    """Reduces a series to at most ``limit`` points by averaging neighbors. Keeps the last step."""
    if len(series) <= limit:
        return series
    parts = np.array_split(np.arange(len(series)), limit)
    return Series(
        steps=np.array([series.steps[part[-1]] for part in parts]),
        values=np.array([series.values[part].mean() for part in parts]),
    )


def axis_ticks(top: float) -> list[float]:
    """Returns five to seven round ticks from 0 to the first one that is not below ``top``. page.js does the same.

    Example:
        >>> axis_ticks(93.0)
        [0.0, 25.0, 50.0, 75.0, 100.0]
    """
    top = top if top > 0 else 1.0
    power = 10.0 ** math.floor(math.log10(top / 3))
    step = max(factor * power for factor in (0.5, 1, 2, 2.5, 5) if factor * power < top / 3)
    return [index * step for index in range(math.ceil(top / step - 1e-9) + 1)]


def set_y_axis(axes: Axes) -> None:
    """Sets the y axis from 0 to a round tick above the data."""
    ticks = axis_ticks(axes.dataLim.ymax)
    axes.set_ylim(0, ticks[-1])
    axes.set_yticks(ticks)


def color_by_value(values: NDArray[np.float64], color: tuple[int, int, int]) -> NDArray[np.uint8]:
    """Returns a `(..., 4)` RGBA image whose opacity is the square root of the value relative to the largest one.

    A few large counts would hide all others on a linear scale. Zero is transparent.
    """
    image = np.empty((*values.shape, 4), np.uint8)
    image[..., :3] = color
    image[..., 3] = np.round(255 * np.sqrt(values / max(float(values.max()), 1e-12)))
    return image


def half_color_value(top: float) -> int | None:
    """Returns the integer with half the color of ``top``; None if rounding would shift it too far."""
    return round(top / 4) if top >= 4 else None


# --- SVG ---

# Placeholders, unlike any hue, which are replaced by the colors of the page.
INK = "#010101"
FAINT = "#020202"
_PAGE_COLORS = {INK: "currentColor", FAINT: "var(--faint)"} | {
    light: f"var(--hue-{name})" for name, (light, _) in HUES.items()
}

# Namespace of the prefix xlink, which browsers do not need but other SVG readers do.
_XLINK = "http://www.w3.org/1999/xlink"

_RC = {
    "svg.fonttype": "none",  # keeps text as text, in the font of the page
    "svg.hashsalt": "semifine",  # the same runs give the same bytes
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 9.0,
    "axes.unicode_minus": True,
}


@contextmanager
def drawing(style: Mapping[str, Any] = _RC) -> Iterator[None]:
    """Context in which matplotlib uses the given style and ignores the user's configuration."""
    import matplotlib  # slow, and a summary of runs needs no drawing

    with matplotlib.rc_context(), warnings.catch_warnings():
        # Warnings about glyphs that are missing in matplotlib's font; the browser has them.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams  # its typed keys differ between releases
        parameters.update(style)
        yield


def new_figure(width: float, height: float) -> Figure:
    """Returns an empty figure with a transparent background. Sizes are in inches."""
    from matplotlib.figure import Figure  # slow, see ``drawing``

    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def to_svg(figure: Figure, label: str) -> str:
    """Returns the figure as an ``<svg>`` element. ``label`` describes its content for screen readers."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embeddable(buffer.getvalue(), label)


def _embeddable(svg: str, label: str) -> str:
    """Removes prolog, metadata, fixed colors and fonts, unused ids and the size in points."""
    from markupsafe import escape  # imported with jinja2

    start = svg.index("<svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    # Changes tags only, so that class names that look like a color or an id stay as they are.
    svg = re.sub(r"<[^>]+>", lambda tag: _adapt_tag(tag[0], used), svg)
    view_box = re.search(r'viewBox="[^"]+"', svg)
    assert view_box is not None
    opening = f'<svg role="img" aria-label="{escape(label)}" {view_box[0]} xmlns:xlink="{_XLINK}">'
    return opening + svg[svg.index(">") + 1 :]


def _adapt_tag(tag: str, used_ids: set[str]) -> str:
    """Returns a tag with the colors and the font of the page, and without an unused id."""
    for drawn, shown in _PAGE_COLORS.items():
        tag = tag.replace(drawn, shown)
    # Releases of matplotlib write the font as one property or as several. Only the size is kept.
    tag = re.sub(r"font: (?:[^;\"]*?)([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    return re.sub(r' id="([\w-]+)"', lambda found: found[0] if found[1] in used_ids else "", tag)
