"""semifine predict"""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_checkpoint, add_device
from semifine.errors import Interrupted, UserError
from semifine.version import __version__

if TYPE_CHECKING:
    import argparse

    from semifine.inference.predict import Model
    from semifine.inference.prediction import PredictOptions
    from semifine.inference.tables import Record
    from semifine.training.progress import Display

MOST_AT_A_TIME = 100_000
NOTHING_READABLE = 2
"""The exit code, as for every mistake of a user, where not one of the files is an image."""


def create_parser() -> Parser:
    parser = Parser(
        prog="semifine predict",
        description="Say what is in images, how sure that is, and what else they could be.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="folder of a run, or an exported .onnx file")
    parser.add_argument("paths", nargs="+", metavar="PATH", help="images, folders of images, or - for names from stdin")
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="table to write, .csv, .jsonl or .parquet (default: print lines)"
    )
    parser.add_argument(
        "--resume", action="store_true", help="go on with a table (--out) whose writing was interrupted"
    )
    parser.add_argument("--top", type=int, default=5, metavar="K", help="how many classes to name (default: 5)")
    parser.add_argument(
        "--coverage",
        type=float,
        default=0.9,
        metavar="P",
        help="how often a conformal set is to hold the true class (default: 0.9)",
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        default=0.05,
        metavar="P",
        help="share of ordinary images that may be flagged as strange (default: 0.05)",
    )
    parser.add_argument(
        "--taxonomy",
        type=Path,
        metavar="FILE",
        help="CSV file: classes, then ever higher ranks (species,genus,…), to name a genus where no species is sure",
    )
    parser.add_argument(
        "--sure",
        type=float,
        metavar="P",
        help="with --taxonomy: probability from which on a taxon is named (default: 0.9)",
    )
    parser.add_argument(
        "--camtrap-dp", type=Path, metavar="FOLDER", help="write a Camera Trap Data Package, too; needs --out"
    )
    parser.add_argument("--null", action="store_true", help="names from stdin end with a NUL, as find -print0 writes")
    add_checkpoint(parser)
    parser.set_defaults(checkpoint=None)  # so that one given for an exported file, which has but one, is noticed
    add_device(parser, "compute")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images at a time (default: 64, on a GPU 256)")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads or processes that read images (default: one a core)"
    )
    parser.add_argument("--json", action="store_true", help="print a summary as one JSON object; needs --out")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def run(arguments: Sequence[str]) -> int:
    parser = create_parser()
    options = parser.parse_args(arguments)
    if options.out is None and (options.json or options.resume or options.camtrap_dp):
        parser.error("--json, --resume and --camtrap-dp need --out")
    if options.sure is not None and options.taxonomy is None:
        parser.error("--sure is about the taxa of a taxonomy: it needs --taxonomy")
    numbers = [number for number in (options.batch_size, options.workers) if number is not None]
    if not all(1 <= number <= MOST_AT_A_TIME for number in numbers):
        parser.error(f"--batch-size and --workers must lie between 1 and {MOST_AT_A_TIME}")

    from semifine.inference.camtrap import check_folder
    from semifine.inference.pipeline import list_files
    from semifine.inference.predict import Terminated, open_model, termination_as_interrupt
    from semifine.inference.prediction import PredictOptions
    from semifine.inference.tables import check_suffix
    from semifine.inference.taxonomy import read_taxonomy
    from semifine.training.progress import Display

    display = Display(quiet=options.quiet)
    if options.out:
        check_suffix(options.out)
        if options.resume and options.out.exists():
            return _finished_before(options)
    if options.camtrap_dp:
        check_folder(options.camtrap_dp)
    files = list_files(options.paths, b"\0" if options.null else b"\n")
    model = open_model(options.model, options.checkpoint, options.device)
    questions = PredictOptions(
        top=options.top,
        coverage=options.coverage,
        false_alarms=options.false_alarms,
        sure=PredictOptions.sure if options.sure is None else options.sure,
        taxonomy=read_taxonomy(options.taxonomy, model.metadata.class_names) if options.taxonomy else None,
    )
    display.log(model.calibration_note)
    if options.out is None:
        return _print_lines(model, files, questions, options)
    try:
        with termination_as_interrupt():
            return _write_table(model, files, questions, options, display)
    except KeyboardInterrupt as stop:
        display.log("Stopped; what is done is kept: repeat the command with --resume.")
        raise Interrupted(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT) from stop


def _finished_before(options: argparse.Namespace) -> int:
    """A table that is there is complete; how it was made, it does not say."""
    from semifine.inference.camtrap import has_package

    if options.camtrap_dp and not has_package(options.camtrap_dp):
        raise UserError(f"{options.out} is finished already: choose another --out to get the package.")
    print(f"note: {options.out} is finished already; model, files and options were not compared", file=sys.stderr)
    if options.json:
        print(json.dumps({"out": str(options.out), "finished": True}))
    return 0


def _print_lines(model: Model, files: Iterable[str], questions: PredictOptions, options: argparse.Namespace) -> int:
    from semifine.inference.predict import as_text, predict_files

    readable = 0
    for file, result in predict_files(model, files, questions, options.batch_size, options.workers):
        if isinstance(result, str):
            print(f"semifine: {as_text(result)}", file=sys.stderr)
            continue
        readable += 1
        several = zip(result.names, result.probabilities, strict=True)
        named = ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in several)
        marks = ["strange"] if result.is_ood else []
        if result.taxon:
            marks.append(f"safe to name: {result.taxon.name} ({result.taxon.rank})")
        print(as_text(file) + ": " + named + "".join(f" [{mark}]" for mark in marks))
    return 0 if readable else NOTHING_READABLE


def _write_table(
    model: Model, files: Iterable[str], questions: PredictOptions, options: argparse.Namespace, display: Display
) -> int:
    from semifine.inference.camtrap import write_package
    from semifine.inference.predict import predict_into, unreadable_list

    gaps: list[str] = []

    def write_camtrap(records: Iterator[Record]) -> None:
        name = f"semifine {__version__}, {options.model.resolve().name}"
        ranks = [level.rank for level in questions.taxonomy.levels] if questions.taxonomy else []
        gaps.extend(write_package(records, options.camtrap_dp, name, ranks))

    with display.bar("predicting", None):
        tally = predict_into(
            options.out,
            model,
            files,
            questions,
            resume=options.resume,
            batch=options.batch_size,
            workers=options.workers,
            progress=display.advance,
            also=write_camtrap if options.camtrap_dp else None,
        )
    for gap in gaps:
        print(gap, file=sys.stderr)  # even when quiet: they are for the user to fill
    if tally.unreadable:
        what, them = ("1 image", "it") if tally.unreadable == 1 else (f"{tally.unreadable} images", "them")
        print(
            f"semifine: {what} could not be read; {unreadable_list(options.out)} lists {them} with the reason.",
            file=sys.stderr,
        )
    if options.json:
        print(json.dumps({"out": str(options.out), **dataclasses.asdict(tally)}))
    else:
        speed = (tally.predicted + tally.unreadable) / max(tally.seconds, 1e-9)
        flagged = f"{tally.strange} of them flagged as strange" if model.metadata.calibration.is_fitted else "no flags"
        print(
            f"{tally.predicted} images predicted, {flagged}, "
            f"{tally.unreadable} unreadable; {speed:.0f} images/s. Table: {options.out}"
        )
    return 0
