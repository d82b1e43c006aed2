"""Layout of the paper's figures: column widths, font sizes and colors for color-blind readers."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from semifine.files import atomic_file, create_folder
from semifine.report import style
from semifine.report.style import HUES

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLUMN = 3.35
"""Width in inches of a column in a two-column paper."""
FULL = 6.9
"""Width in inches of both columns."""
DARK = "#1b1b1b"
GRAY = "#6b7280"
FAINT = "#d5d9de"
MAX_LINE = 22
"""Characters in a line of a title."""
LEGEND_LINE, LEGEND_CHARACTER = 0.6, 0.062
"""Width in inches of a line with its margins in a legend, and of a character."""
FORMATS = ("png", "pdf")
SIGNATURE = "Drawn by semifine"
"""Part of each file. A file without it is never replaced."""

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
    "pdf.fonttype": 42,  # keeps text as text
    "text.parse_math": False,  # a class may be called $x$
}


def color(hue: str) -> str:
    """Returns a hue of the palette for a white background."""
    return HUES[hue][0]


def paper_style() -> AbstractContextManager[None]:
    """Context in which matplotlib uses the layout of the paper and ignores the user's configuration."""
    return style.drawing(_RC)


def panels(
    number: int, height: float, width: float | None = None, columns: int | None = None, **more: Any
) -> tuple[Figure, list[Axes]]:
    """Returns a figure with panels side by side.

    Args:
        number: Number of panels.
        height: Height of a row in inches.
        width: Width in inches; by default a column for one panel, otherwise the page.
        columns: Number of panels per row; by default all.
        more: Arguments of ``Figure.subplots``.
    """
    from matplotlib.figure import Figure  # slow, and only figures need it

    per_row = min(number, columns or number)
    rows = -(-number // per_row)
    figure = Figure(figsize=(width or (COLUMN if number == 1 else FULL), rows * height), layout="constrained")
    axes = figure.subplots(rows, per_row, squeeze=False, **more).ravel().tolist()
    for spare in axes[number:]:
        spare.remove()
    return figure, axes[:number]


def wrap(label: str) -> str:
    """Breaks the label of a panel or bar into lines."""
    return textwrap.fill(label, MAX_LINE)


def add_legend(figure: Figure, handles: Sequence[Artist], side: Literal["upper", "lower"]) -> None:
    """Adds a legend below or above all panels, with as many columns as fit."""
    longest = max(len(str(handle.get_label())) for handle in handles)
    columns = int(figure.get_figwidth() / (LEGEND_LINE + LEGEND_CHARACTER * longest))
    location: Any = f"outside {side} center"  # Any, because the stubs list every location as a literal
    figure.legend(handles=handles, loc=location, ncols=max(1, min(columns, 5, len(handles))), labelcolor="#1d2126")


def figure_files(folder: Path, name: str) -> list[Path]:
    """Returns the files of a figure."""
    return [folder / f"{name}.{kind}" for kind in FORMATS]


def save(figure: Figure, folder: Path, name: str) -> list[Path]:
    """Writes ``name.png`` and ``name.pdf`` atomically and returns their paths."""
    create_folder(folder)
    written = figure_files(folder, name)
    for path, kind in zip(written, FORMATS, strict=True):
        # Without a date: the same runs give the same bytes.
        metadata = {"Creator": SIGNATURE, "CreationDate": None} if kind == "pdf" else {"Software": SIGNATURE}
        with atomic_file(path) as partial:
            figure.savefig(partial, format=kind, metadata=metadata)
    return written
