"""One look for all figures: the width of a column, letters that can be read there, colors that all can tell apart."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semifine.files import atomic_file
from semifine.report import style
from semifine.report.style import HUES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.35
"""Inches: a column of a two-column paper."""
FULL = 6.9
"""Inches: both columns."""
GRAY = "#6b7280"
FAINT = "#d5d9de"
LINE_LETTERS = 22
LEGEND_LINE, LEGEND_LETTER = 0.6, 0.062
"""Inches that a line of a legend takes with its margins, and a letter of its name."""
FORMATS = ("png", "pdf")
SIGNATURE = "Drawn by semifine"
"""In each file: only files that have it are drawn anew."""

_RC = {
    "font.size": 8.0,
    "axes.titlesize": 8.5,
    "axes.labelsize": 8.0,
    "xtick.labelsize": 7.5,
    "ytick.labelsize": 7.5,
    "legend.fontsize": 7.5,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GRAY,
    "axes.linewidth": 0.7,
    "xtick.color": GRAY,
    "ytick.color": GRAY,
    "xtick.labelcolor": "#1d2126",
    "ytick.labelcolor": "#1d2126",
    "grid.color": FAINT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "lines.linewidth": 1.4,
    "savefig.dpi": 300,
    "pdf.fonttype": 42,  # letters stay letters in the PDF
    "text.parse_math": False,  # a class may be called $x$
}


def color(hue: str) -> str:
    """A hue of the palette on white paper."""
    return HUES[hue][0]


def drawing() -> AbstractContextManager[None]:
    """matplotlib with this look, whatever its user has configured."""
    return style.drawing(_RC)


def panels(
    number: int, height: float, width: float | None = None, columns: int | None = None, **more: Any
) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side: one has the width of a column, several that of the page.

    More than ``columns`` panels go on in further rows, each of this ``height``.
    """
    from matplotlib.figure import Figure

    beside = min(number, columns or number)
    rows = -(-number // beside)
    figure = Figure(figsize=(width or (COLUMN if number == 1 else FULL), rows * height), layout="constrained")
    axes = figure.subplots(rows, beside, squeeze=False, **more).ravel().tolist()
    for spare in axes[number:]:
        spare.remove()
    return figure, axes[:number]


def in_lines(label: str) -> str:
    """What a panel or a bar is called, in lines that have room there."""
    return textwrap.fill(label, LINE_LETTERS)


def add_legend(figure: Figure, handles: Sequence[Artist], side: Literal["upper", "lower"]) -> None:
    """Below or above all panels, with as many names beside each other as have room."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    beside = int(figure.get_figwidth() / (LEGEND_LINE + LEGEND_LETTER * longest))
    place: Any = f"outside {side} center"  # too long a list of literals to be checked
    figure.legend(handles=handles, loc=place, ncols=max(1, min(beside, 5, len(handles))), labelcolor="#1d2126")


def files_of(folder: Path, name: str) -> list[Path]:
    """The files of a figure."""
    return [folder / f"{name}.{kind}" for kind in FORMATS]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf``, each whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    written = files_of(folder, name)
    for path, kind in zip(written, FORMATS, strict=True):
        # Without a date, so that the same runs give the same bytes.
        metadata = {"Creator": SIGNATURE, "CreationDate": None} if kind == "pdf" else {"Software": SIGNATURE}
        with atomic_file(path) as partial:
            figure.savefig(partial, format=kind, metadata=metadata)
    return written
