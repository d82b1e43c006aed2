"""semifine report"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from semifine.cli.main import Parser
from semifine.errors import UserError


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine report",
        description="Write one HTML page about one or several finished runs, and on request the paper's figures.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page (default: report.html in the folder of the run; of several runs, in the folder that holds them)",
    )
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also draw the paper's figures as PNG and PDF")
    parser.add_argument("--title", default="Training report", help="heading of the page (default: Training report)")
    parser.add_argument(
        "--clusters",
        type=int,
        metavar="K",
        help="how many clusters of classes to show (default: what suits the run)",
    )
    options = parser.parse_args(arguments)

    from semifine.report import write_page
    from semifine.runs.run import Run

    paths = list({path.resolve(): path for path in options.runs}.values())  # one that is named twice counts once
    out = options.out or _folder_for_page(paths) / "report.html"
    page = write_page(paths, out, title=options.title, num_clusters=options.clusters)
    print(f"Report: {page}")
    if options.figures:
        from semifine.report.figures import write_figures

        runs = [Run(path) for path in paths]
        written = write_figures(runs, options.figures, log=lambda text: print(text, file=sys.stderr))
        print(f"Figures: {len(written)} files in {options.figures}")
    return 0


def _folder_for_page(runs: Sequence[Path]) -> Path:
    """A run keeps the page about itself alone; one about several lies beside them."""
    if len(runs) == 1:
        return runs[0]
    parents = {Path(os.path.abspath(run)).parent for run in runs}
    if len(parents) > 1:
        raise UserError("The runs lie in different folders: name the file of their page with --out, such as page.html.")
    return parents.pop()
