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
        description="Write an HTML report of one or several finished runs, and optionally the paper's figures.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="folder of a finished run")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the HTML file (default: report.html in the folder of the run, or in the parent folder of several runs)",
    )
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="also write the paper's figures as PNG and PDF")
    parser.add_argument("--title", default="Training report", help="heading of the report (default: Training report)")
    parser.add_argument(
        "--clusters",
        type=int,
        metavar="K",
        help="number of class clusters to show (default: the number of groups, or the method's largest k)",
    )
    options = parser.parse_args(arguments)

    # Slow, and --help does not need them.
    from semifine.report import write_page
    from semifine.runs.run import Run

    paths = list({path.resolve(): path for path in options.runs}.values())  # without repeated runs
    out = options.out or _default_folder(paths) / "report.html"
    page = write_page(paths, out, title=options.title, num_clusters=options.clusters)
    print(f"Report: {page}")
    if options.figures:
        from semifine.report.figures import write_figures  # imports matplotlib

        runs = [Run(path) for path in paths]
        written = write_figures(runs, options.figures, log=lambda text: print(text, file=sys.stderr))
        print(f"Figures: {len(written)} files in {options.figures}")
    return 0


def _default_folder(runs: Sequence[Path]) -> Path:
    """Returns the folder of a single run, or the common parent folder of several runs."""
    if len(runs) == 1:
        return runs[0]
    parents = {Path(os.path.abspath(run)).parent for run in runs}
    if len(parents) > 1:
        raise UserError(
            "The runs are in different parent folders: give the file of the report with --out, such as report.html."
        )
    return parents.pop()
