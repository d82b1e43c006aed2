"""From a matplotlib figure to SVG that lives inside the page: its colours and fonts are the page's."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from semifine.report.palette import HUES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Drawn with these, shown with the page's own colours; no hue of the palette comes near them.
INK = "#010101"
FAINT = "#020202"
_PAGE_COLOURS = {INK: "currentColor", FAINT: "var(--faint)"} | {
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
    """Without prolog, metadata, fixed colours and fonts, unused ids and the size in points."""
    from markupsafe import escape

    start = svg.index("<svg")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[start:], flags=re.DOTALL)
    used = set(re.findall(r"#([\w-]+)", svg))
    # Only inside of tags: a class name that looks like a colour or an id stays what it is.
    svg = re.sub(r"<[^>]+>", lambda tag: _adapted(tag[0], used), svg)
    view_box = re.search(r'viewBox="[^"]+"', svg)
    assert view_box is not None
    opening = f'<svg role="img" aria-label="{escape(label)}" {view_box[0]} xmlns:xlink="{_XLINK}">'
    return opening + svg[svg.index(">") + 1 :]


def _adapted(tag: str, used_ids: set[str]) -> str:
    """One tag with the page's colours and font, and without an id that nothing refers to."""
    for drawn, shown in _PAGE_COLOURS.items():
        tag = tag.replace(drawn, shown)
    # Releases of matplotlib write the font as one property or as several; the size is what the page keeps.
    tag = re.sub(r"font: (?:[^;\"]*?)([\d.]+)px [^;\"]*", r"font-size: \1px", tag)
    tag = re.sub(r"font-family: [^;\"]*;? ?", "", tag)
    return re.sub(r' id="([\w-]+)"', lambda found: found[0] if found[1] in used_ids else "", tag)
