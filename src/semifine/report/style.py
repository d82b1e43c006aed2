"""Colors, line styles and SVG drawing of the report."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import TYPE_CHECKING, Any
from zlib import crc32

from semifine.methods.registry import method_display

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# name -> (on a light ground, on a dark ground)
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


Style = tuple[str, str]
"""A hue and a line style."""


def run_styles(methods: Sequence[str]) -> list[Style]:
    """Hue and line style of each run; further runs of the same method differ in the line style."""
    firsts = method_styles(methods)
    taken = set(firsts.values())
    styles = []
    for place, method in enumerate(methods):
        style = firsts[method]
        if repeat := methods[:place].count(method):
            hue, dash = style
            others = [(hue, other) for other in _from(DASHES, DASHES.index(dash) + repeat)]
            style = next((other for other in others if other not in taken), others[0])
        taken.add(style)
        styles.append(style)
    return styles


def method_styles(methods: Collection[str]) -> dict[str, Style]:
    """The style of each method's first run: known methods keep theirs, others take what those leave."""
    displays = {method: method_display(method) for method in methods}
    styles = {method: (own.color, own.line_style) for method, own in displays.items() if own.color}
    for method in sorted(set(methods) - set(styles)):  # sorted, so that the order of the runs does not matter
        styles[method] = _free_style(method, set(styles.values()))
    return styles


def _free_style(method: str, taken: Collection[Style]) -> Style:
    """Of a method of one's own: a hue that no other method on the page has, else a free pair of hue and line style."""
    # A checksum, because the color must not change from page to page without need.
    hues = _from(SPARE_HUES, crc32(method.encode()))
    styles = [(hue, dash) for dash, hue in product(DASHES, hues)]
    taken_hues = {hue for hue, _ in taken}
    new_hues = [style for style in styles if style[0] not in taken_hues]
    free = [style for style in styles if style not in taken]
    return next(iter(new_hues + free), styles[0])


def _from(choices: Sequence[str], start: int) -> list[str]:
    """The choices in their order, beginning at one of them and going round."""
    start %= len(choices)
    return [*choices[start:], *choices[:start]]


def css_variables(dark: bool) -> str:
    """The hues as declarations ``--hue-blue: #0072b2;``."""
    return " ".join(f"--hue-{name}: {shades[dark]};" for name, shades in HUES.items())


# Drawn with these, shown with the page's own colors; no hue of the palette comes near them.
INK = "#010101"
FAINT = "#020202"
_PAGE_COLORS = {INK: "currentColor", FAINT: "var(--faint)"} | {
    light: f"var(--hue-{name})" for name, (light, _) in HUES.items()
}

# The browser knows the prefix anyway; other readers of the drawing need its name.
_XLINK = "http://www.w3.org/1999/xlink"

_RC = {
    "svg.fonttype": "none",  # text stays text: small, sharp, and in the page's font
    "svg.hashsalt": "semifine",  # the same runs give the same bytes
    "text.parse_math": False,  # a class may be called $x$
    "font.size": 9.0,
    "axes.unicode_minus": True,
}


@contextmanager
def drawing(style: Mapping[str, Any] = _RC) -> Iterator[None]:
    """matplotlib in one style, by default that of the page, whatever its user has configured."""
    import matplotlib

    with matplotlib.rc_context(), warnings.catch_warnings():
        # The browser has the letters that matplotlib's own font lacks.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph.*")
        matplotlib.rcdefaults()
        parameters: Any = matplotlib.rcParams  # its typed keys differ between releases
        parameters.update(style)
        yield


def new_figure(width: float, height: float) -> Figure:
    """An empty figure without a ground of its own, in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained", facecolor="none")


def to_svg(figure: Figure, label: str) -> str:
    """An ``<svg>`` element; ``label`` says in words what the figure shows."""
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _embeddable(buffer.getvalue(), label)


def _embeddable(svg: str, label: str) -> str:
    """Without prolog, metadata, fixed colors and fonts, unused ids and the size in points."""
    from markupsafe import escape

    start = svg.index("<svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    # Only inside of tags: a class name that looks like a color or an id stays what it is.
    svg = re.sub(r"<[^>]+>", lambda tag: _adapted(tag[0], used), svg)
    view_box = re.search(r'viewBox="[^"]+"', svg)
    assert view_box is not None
    opening = f'<svg role="img" aria-label="{escape(label)}" {view_box[0]} xmlns:xlink="{_XLINK}">'
    return opening + svg[svg.index(">") + 1 :]


def _adapted(tag: str, used_ids: set[str]) -> str:
    """One tag with the page's colors and font, and without an id that nothing refers to."""
    for drawn, shown in _PAGE_COLORS.items():
        tag = tag.replace(drawn, shown)
    # Releases of matplotlib write the font as one property or as several; the size is what the page keeps.
    tag = re.sub(r"font: (?:[^;\"]*?)([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    return re.sub(r' id="([\w-]+)"', lambda found: found[0] if found[1] in used_ids else "", tag)
