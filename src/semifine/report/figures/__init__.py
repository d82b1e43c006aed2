"""The figures of the paper for any runs, as PNG and PDF files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.errors import UserError
from semifine.files import has_signature
from semifine.report.figures.accuracy import draw_cost, draw_results, draw_training
from semifine.report.figures.soft_labels import draw_entropies, draw_entropy_by_k, draw_matrices, draw_objectives
from semifine.report.figures.style import SIGNATURE, figure_files, paper_style, save
from semifine.report.scores import RunGroup, group_runs
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["write_figures"]

# Figures of groups of runs: file name, function that draws the figure, and the reason if it returns None.
FIGURES: tuple[tuple[str, Callable[[Sequence[RunGroup]], Figure | None], str], ...] = (
    ("fig1-training", draw_training, "no run recorded its accuracy over training"),
    ("fig4-objectives", draw_objectives, "no run has unlabeled images with known true classes"),
    ("fig5-entropies", draw_entropies, "no run makes labels for unlabeled images"),
    ("fig5-entropy-by-k", draw_entropy_by_k, "no run chooses a number of clusters"),
    ("tables-results", draw_results, "no run has test images"),
    ("cost", draw_cost, "no run recorded the time of steps with unlabeled images"),
)
MATRICES = "fig6-matrices"


def write_figures(runs: Sequence[Run], folder: Path, log: Callable[[str], None] = print) -> list[Path]:
    """Writes the figures as PNG and PDF files.

    Args:
        runs: Finished runs. Runs that differ only in their seed become one line or bar.
        folder: Existing files are replaced only if they are figures of semifine.
        log: Receives a line about each figure that cannot be drawn, with the reason.

    Returns:
        The written files.

    Example:
        >>> write_figures([Run("runs/soc")], Path("figures"))  # doctest: +SKIP
        no fig4-objectives: no run has unlabeled images with known true classes
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give a folder for --figures.")
    _check_files(folder, [name for name, _, _ in FIGURES] + [MATRICES])
    groups = group_runs(runs)
    written: list[Path] = []
    with paper_style():
        for name, draw, reason in FIGURES:
            written += _write(draw(groups), folder, name, reason, log)
        written += _write(draw_matrices(runs), folder, MATRICES, "no run has class transitions or test images", log)
    return written


def _check_files(folder: Path, names: Sequence[str]) -> None:
    """Raises ``UserError`` if a file with the name of a figure was not written by semifine."""
    for path in (path for name in names for path in figure_files(folder, name)):
        if path.exists() and not has_signature(path, SIGNATURE.encode()):
            raise UserError(f"{path} exists and is not a figure of semifine; give another folder for --figures.")


def _write(figure: Figure | None, folder: Path, name: str, reason: str, log: Callable[[str], None]) -> list[Path]:
    if figure is None:
        log(f"no {name}: {reason}")
        return []
    return save(figure, folder, name)
