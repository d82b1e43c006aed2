"""semifine predict"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_checkpoint, add_device, add_views
from semifine.data.boxes import MIN_CONFIDENCE
from semifine.errors import Interrupted, UserError
from semifine.version import __version__

if TYPE_CHECKING:
    import argparse

    from semifine.data.boxes import Photo
    from semifine.inference.predict import Model
    from semifine.inference.prediction import Prediction, PredictOptions
    from semifine.inference.tables import Record
    from semifine.training.progress import Display

MAX_BATCH_SIZE = 100_000
NOTHING_READABLE = 2
"""Exit code if no file is readable, as for every user error."""


def create_parser() -> Parser:
    parser = Parser(
        prog="semifine predict",
        description="Classify images with calibrated confidences.",
        allow_abbrev=False,
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="run folder, or exported .onnx file")
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="images, folders of images, or - to read names from standard input"
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="table to write, .csv, .jsonl or .parquet (default: print lines)"
    )
    parser.add_argument("--resume", action="store_true", help="continue an interrupted table (--out)")
    parser.add_argument("--top", type=int, default=5, metavar="K", help="number of classes to name (default: 5)")
    parser.add_argument(
        "--coverage",
        type=float,
        default=0.9,
        metavar="P",
        help="probability that a conformal set contains the true class (default: 0.9)",
    )
    parser.add_argument(
        "--false-alarms",
        type=float,
        default=0.05,
        metavar="P",
        help="fraction of images of known classes that may be flagged as unknown (default: 0.05)",
    )
    parser.add_argument(
        "--taxonomy",
        type=Path,
        metavar="FILE",
        help="CSV file of classes and their higher ranks (species,genus,...), to name a genus if the species is "
        "uncertain",
    )
    parser.add_argument(
        "--taxon-threshold",
        type=float,
        metavar="P",
        help="with --taxonomy: lowest probability of a named taxon (default: 0.9)",
    )
    parser.add_argument(
        "--camtrap-dp", type=Path, metavar="FOLDER", help="also write a Camera Trap Data Package; needs --out"
    )
    parser.add_argument(
        "--null", action="store_true", help="names on standard input end with NUL, as written by find -print0"
    )
    _add_crops(parser)
    add_checkpoint(parser)
    add_views(parser)
    parser.set_defaults(checkpoint=None)  # to reject the option for an exported file, which has no checkpoints
    add_device(parser, "compute")
    parser.add_argument("--batch-size", type=int, metavar="N", help="images in a batch (default: 64, on a GPU 256)")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads or processes that decode images (default: one per core)"
    )
    parser.add_argument("--json", action="store_true", help="print a summary as one JSON object; needs --out")
    parser.add_argument("--quiet", action="store_true", help="show no progress")
    return parser


def _add_crops(parser: Parser) -> None:
    parser.add_argument(
        "--crops",
        type=Path,
        metavar="FILE",
        help="boxes of animals in MegaDetector's JSON, COCO JSON or a CSV table: predict each box",
    )
    parser.add_argument(
        "--crop-confidence",
        type=float,
        metavar="P",
        help=f"with --crops: confidence from which boxes are used (default: {MIN_CONFIDENCE})",
    )


def run(arguments: Sequence[str]) -> int:
    parser = create_parser()
    given = parser.parse_args(arguments)
    if given.out is None and (given.json or given.resume or given.camtrap_dp):
        parser.error("--json, --resume and --camtrap-dp need --out")
    if given.taxon_threshold is not None and given.taxonomy is None:
        parser.error("--taxon-threshold applies to the taxa of a taxonomy: it needs --taxonomy")
    _check_crop_confidence(parser, given)
    sizes = [size for size in (given.batch_size, given.workers) if size is not None]
    if not all(1 <= size <= MAX_BATCH_SIZE for size in sizes):
        parser.error(f"--batch-size and --workers must lie between 1 and {MAX_BATCH_SIZE}")

    # Slow to import: 'semifine --help' does not need them.
    from semifine.inference.camtrap import check_folder
    from semifine.inference.predict import Terminated, open_model, termination_as_interrupt
    from semifine.inference.prediction import PredictOptions
    from semifine.inference.tables import check_output
    from semifine.inference.taxonomy import read_taxonomy
    from semifine.training.progress import Display

    display = Display(quiet=given.quiet)
    if given.out:
        check_output(given.out)
        if given.resume and given.out.exists():
            return _report_finished(given)
    if given.camtrap_dp:
        check_folder(given.camtrap_dp)
    photos = _open_photos(given)
    model = open_model(given.model, given.checkpoint, given.device, given.views)
    options = PredictOptions(
        top=given.top,
        coverage=given.coverage,
        false_alarms=given.false_alarms,
        taxon_threshold=PredictOptions.taxon_threshold if given.taxon_threshold is None else given.taxon_threshold,
        taxonomy=read_taxonomy(given.taxonomy, model.metadata.class_names) if given.taxonomy else None,
    )
    display.log(model.calibration_note)
    if given.out is None:
        return _print_lines(model, photos, options, given)
    try:
        with termination_as_interrupt():
            return _write_table(model, photos, options, given, display)
    except KeyboardInterrupt as stop:
        display.log("Stopped; finished images are kept: repeat the command with --resume.")
        raise Interrupted(signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT) from stop
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise UserError(
            f"The disk is full ({error.filename or given.out}): finished images are kept; free some space and repeat "
            "the command with --resume."
        ) from error


def _check_crop_confidence(parser: Parser, given: argparse.Namespace) -> None:
    if given.crop_confidence is None:
        given.crop_confidence = MIN_CONFIDENCE
    elif given.crops is None:
        parser.error("--crop-confidence applies to boxes: it needs --crops")
    elif not 0 <= given.crop_confidence <= 1:
        parser.error("--crop-confidence must lie between 0 and 1")


def _open_photos(given: argparse.Namespace) -> Iterable[Photo]:
    """The files of the command line, or the crops of these files."""
    # Slow to import: 'semifine --help' does not need them.
    from semifine.data.boxes import read_boxes
    from semifine.data.crops import FileCrops
    from semifine.inference.pipeline import list_files

    files = list_files(given.paths, b"\0" if given.null else b"\n")
    if given.crops is None:
        return files
    folders = [path if os.path.isdir(path) else os.path.dirname(path) for path in given.paths]
    return FileCrops(files, read_boxes(given.crops, given.crop_confidence), folders)


def _report_finished(given: argparse.Namespace) -> int:
    """Handles --resume if the table exists and is therefore complete."""
    from semifine.inference.camtrap import has_package  # slow to import

    if given.camtrap_dp and not has_package(given.camtrap_dp):
        raise UserError(f"{given.out} is finished already: choose another --out to get the package.")
    print(f"note: {given.out} is finished already; model, files and options were not compared", file=sys.stderr)
    if given.json:
        print(json.dumps({"out": str(given.out), "finished": True}))
    return 0


def _print_lines(model: Model, photos: Iterable[Photo], options: PredictOptions, given: argparse.Namespace) -> int:
    # Slow to import: 'semifine --help' does not need them.
    from semifine.inference.predict import predict_files
    from semifine.inference.tables import printable

    num_readable = 0
    for file, result in predict_files(model, photos, options, given.batch_size, given.workers):
        if isinstance(result, str):
            print(f"semifine: {printable(result)}", file=sys.stderr)
            continue
        num_readable += 1
        print(f"{printable(file)}: {_format_prediction(result)}")
    return 0 if num_readable else NOTHING_READABLE


def _format_prediction(prediction: Prediction) -> str:
    pairs = zip(prediction.names, prediction.probabilities, strict=True)
    text = ", ".join(f"{name} {100 * probability:.1f} %" for name, probability in pairs)
    if prediction.is_ood:
        text += " [unknown]"
    if prediction.taxon:
        text += f" [taxon: {prediction.taxon.name} ({prediction.taxon.rank})]"
    if prediction.box:
        text += f" [box: {', '.join(f'{number:.3f}' for number in prediction.box[:4])}]"
    return text


def _write_table(
    model: Model, photos: Iterable[Photo], options: PredictOptions, given: argparse.Namespace, display: Display
) -> int:
    # Slow to import: 'semifine --help' does not need them.
    from semifine.data.crops import FileCrops
    from semifine.inference.camtrap import write_package
    from semifine.inference.predict import predict_to_table, unreadable_list

    missing_fields: list[str] = []

    def write_camtrap(records: Iterator[Record]) -> None:
        name = f"semifine {__version__}, {given.model.resolve().name}"
        ranks = [level.rank for level in options.taxonomy.levels] if options.taxonomy else []
        missing_fields.extend(write_package(records, given.camtrap_dp, name, ranks))

    with display.bar("predicting", None):
        summary = predict_to_table(
            given.out,
            model,
            photos,
            options,
            crops=photos.identity if isinstance(photos, FileCrops) else None,
            resume=given.resume,
            batch_size=given.batch_size,
            workers=given.workers,
            progress=display.advance,
            write_also=write_camtrap if given.camtrap_dp else None,
        )
    if isinstance(photos, FileCrops):
        display.log(photos.describe())
    for note in missing_fields:
        print(note, file=sys.stderr)  # even with --quiet, because the user has to act
    if summary.unreadable:
        images, them = ("1 image", "it") if summary.unreadable == 1 else (f"{summary.unreadable} images", "them")
        print(
            f"semifine: {images} could not be read; {unreadable_list(given.out)} lists {them} with the reason.",
            file=sys.stderr,
        )
    if given.json:
        print(json.dumps({"out": str(given.out), **dataclasses.asdict(summary)}))
    else:
        speed = (summary.predicted + summary.unreadable) / max(summary.seconds, 1e-9)
        is_fitted = model.metadata.calibration.is_fitted
        flags = f"{summary.unknown} of them flagged as unknown" if is_fitted else "no flags"
        print(
            f"{summary.predicted} {'crops and photos' if given.crops else 'images'} predicted, {flags}, "
            f"{summary.unreadable} unreadable; {speed:.0f} images/s. Table: {given.out}"
        )
    return 0
