"""All figures that some runs allow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.errors import UserError
from semifine.report.figures.bars import draw_cost, draw_results
from semifine.report.figures.entropies import draw_entropies, draw_entropy_by_k
from semifine.report.figures.matrices import draw_matrices
from semifine.report.figures.objectives import draw_objectives
from semifine.report.figures.style import SIGNATURE, drawing, files_of, save
from semifine.report.figures.training import draw_training
from semifine.report.scores import RunGroup, group_runs
from semifine.runs.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The file's name, what draws it, and why there may be none.
BY_GROUP: tuple[tuple[str, Callable[[Sequence[RunGroup]], Figure | None], str], ...] = (
    ("fig1-training", draw_training, "no run recorded its accuracy over training"),
    ("fig4-objectives", draw_objectives, "the true classes of the unlabeled images are not known"),
    ("fig5-entropies", draw_entropies, "no run gives labels to unlabeled images"),
    ("fig5-entropy-by-k", draw_entropy_by_k, "no run chooses a number of clusters"),
    ("tables-results", draw_results, "no run has test images"),
    ("cost", draw_cost, "no run recorded the time of its steps with unlabeled images"),
)
MATRICES = "fig6-matrices"


def write_figures(runs: Sequence[Run], folder: Path, log: Callable[[str], None] = print) -> list[Path]:
    """Writes the figures into the folder, and says which cannot be drawn and why."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; --figures names a folder.")
    _check_files(folder, [name for name, _, _ in BY_GROUP] + [MATRICES])
    groups = group_runs(runs)
    written: list[Path] = []
    with drawing():
        for name, draw, reason in BY_GROUP:
            written += _write(draw(groups), folder, name, reason, log)
        matrices = draw_matrices(runs)
        written += _write(matrices, folder, MATRICES, "no run has transitions or test images", log)
    return written


def _check_files(folder: Path, names: Sequence[str]) -> None:
    """Raises where a file of somebody else has the name of a figure."""
    for path in (path for name in names for path in files_of(folder, name)):
        if path.exists() and SIGNATURE.encode() not in path.read_bytes():
            raise UserError(f"{path} exists and is no figure of semifine: name another folder for --figures.")


def _write(figure: Figure | None, folder: Path, name: str, reason: str, log: Callable[[str], None]) -> list[Path]:
    if figure is None:
        log(f"no {name}: {reason}")
        return []
    return save(figure, folder, name)
