"""semifine demo"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_device
from semifine.errors import Interrupted

if TYPE_CHECKING:
    from semifine.runs.run import Run

METHODS = ("supervised", "soc")


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine demo",
        description="Train 'supervised' and 'soc' on the built-in data set, compare them, and write a report. "
        "The same command continues a demo that was stopped.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("demo"),
        metavar="FOLDER",
        help="folder for the runs and the report (default: demo)",
    )
    parser.add_argument("--seed", default="0", metavar="INT", help="random seed (default: 0)")
    parser.add_argument(
        "--iterations", metavar="INT", help="training steps of each method (default: chosen from the data)"
    )
    add_device(parser, "train")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    options = parser.parse_args(arguments)

    # Slow imports (torch, matplotlib), after the options have been checked
    from semifine.config import resolve
    from semifine.report import write_page
    from semifine.report.sections.summary import describe_comparisons
    from semifine.runs.run import Run
    from semifine.training.fit import fit
    from semifine.training.progress import Display

    common = {"seed": options.seed, "device": options.device}
    if options.iterations:
        common["iterations"] = options.iterations
    display = Display(quiet=options.quiet)
    for method in METHODS:
        settings = resolve([{"method.name": method, **common}])
        display.log(f"\n{method}")
        try:
            fit(settings, options.out / method, resume=True, display=display)
        except Interrupted as stop:
            display.log(f"Stopped by {stop}, state saved. Run the same command to continue.")
            raise
    runs = [Run(options.out / method) for method in METHODS]
    page = write_page([run.path for run in runs], options.out / "index.html", title="semifine on its built-in data set")
    _print_table(runs)
    for sentence in describe_comparisons(runs):
        print(sentence)
    print(f"\nReport: {page}")
    return 0


def _print_table(runs: Sequence[Run]) -> None:
    # Slow imports (rich, numpy)
    from rich.console import Console
    from rich.table import Column, Table

    from semifine.runs.accuracy import short_interval
    from semifine.runs.analysis import agreement_with_groups

    result = runs[0].result
    images = result["images"]["test"]
    table = Table(
        Column("method", no_wrap=True),
        "top-1",
        "top-5",
        "pseudo-label accuracy",
        Column("candidates", no_wrap=True),
        "hit rate",
        "ARI with genera",
        title=f"Built-in data set, {result['num_classes']} classes, seed {result['seed']}",
        caption=f"95 % intervals of the accuracy on {images} test images",
    )
    for run in runs:
        result, unlabeled = run.result, run.unlabeled
        agreement = agreement_with_groups(run.transitions, run.class_groups)
        table.add_row(
            result["method"],
            short_interval(result["top1"], images),
            short_interval(result["top5"], images),
            f"{unlabeled['pseudo_label_accuracy']:.1f} %",
            f"{unlabeled['candidates']:.1f}",
            f"{unlabeled['candidate_hit_rate']:.1f} %",
            "-" if agreement is None else f"{agreement:.2f}",
        )
    Console().print(table)
