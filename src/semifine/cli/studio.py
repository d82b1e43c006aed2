"""semifine studio"""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

from semifine.cli.main import Parser, add_device
from semifine.errors import UserError

if TYPE_CHECKING:
    from semifine.studio.snapshot import ModelSnapshot


def run(arguments: Sequence[str]) -> int:
    options = _create_parser().parse_args(arguments)

    # Slow: these import torch.
    from semifine.runs.folder import RunFolder
    from semifine.studio.queue import default_log, export_labels

    is_run = RunFolder(options.run).settings.exists() or not options.run.is_dir()
    run_path = RunFolder.open(options.run).path.resolve() if is_run else options.run.resolve()
    if is_run and options.crops:
        raise UserError("--crops is for a folder of photos; a run has the boxes that it was trained with.")
    log_file = options.db or default_log(run_path)
    if options.export:
        count = export_labels(log_file, options.export)
        print(f"{count} labels from {log_file} written to {options.export}")
        return 0
    if find_spec("starlette") is None or find_spec("uvicorn") is None:
        raise UserError("The studio needs a web server: install it with pip install 'semifine[studio]'.")
    _serve(run_path, log_file, options)
    return 0


def _create_parser() -> Parser:
    parser = Parser(
        prog="semifine studio",
        description="Label the images that a run is uncertain about, or a folder of photos without any labels, on a "
        "local page in the browser.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "run",
        type=Path,
        metavar="RUN",
        help="folder of a finished run, or a folder of photos: with labeled/<class>/ and unlabeled/, or without labels",
    )
    parser.add_argument(
        "--db",
        type=Path,
        metavar="FILE",
        help="label log (default: the log that the run was trained with, else RUN.studio.db beside the folder)",
    )
    parser.add_argument(
        "--method", type=Path, metavar="FILE", help="method file for trainings, if the run was trained with one"
    )
    parser.add_argument(
        "--crops",
        metavar="FILE",
        help="folder of photos: boxes of animals in MegaDetector's JSON, COCO JSON or a CSV table; each photo is "
        "cropped to its most confident box",
    )
    parser.add_argument(
        "--taxonomy",
        type=Path,
        metavar="FILE",
        help="CSV file with a column of classes and columns of higher ranks, shown as a tree",
    )
    parser.add_argument("--cache", metavar="FOLDER", help="folder of decoded images and features of a folder of photos")
    parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="print the URL without opening a browser")
    add_device(parser, "predict")
    parser.add_argument("--export", type=Path, metavar="CSV", help="write the labels to a CSV file and exit")
    return parser


def _serve(run_path: Path, log_file: Path, options: argparse.Namespace) -> None:
    # Optional: starlette and uvicorn are installed with semifine[studio].
    from semifine.data.label_log import LabelLog, check_is_log
    from semifine.studio.app import Studio, listen, serve
    from semifine.studio.taxonomy import read_ranks

    def ready(url: str) -> None:
        print(f"Labels are saved to {log_file}. Press Ctrl-C to stop.", file=sys.stderr)
        print(url, flush=True)
        if not options.no_browser:
            # In a thread, because some browsers such as w3m block until they are closed.
            Thread(target=webbrowser.open, args=(url,), daemon=True).start()

    with listen(options.port) as listening:
        if log_file.exists():
            check_is_log(log_file)  # before the predictions, which take time
        ranks = read_ranks(options.taxonomy) if options.taxonomy else None
        snapshot, photo_options = _take_snapshot(run_path, options)
        studio = Studio(snapshot, LabelLog(log_file), options.device, options.method, photo_options, ranks)
        if count := studio.label_queue.num_unknown_paths:
            print(f"note: {count} lines of {log_file} are about images that are not in this data set", file=sys.stderr)
        serve(studio, listening, ready)


def _take_snapshot(run_path: Path, options: argparse.Namespace) -> tuple[ModelSnapshot, list[str]]:
    """Returns the predictions of the run, or the features of the photos, and options for trainings of the photos."""
    # Slow: these import torch.
    from semifine.runs.folder import RunFolder
    from semifine.studio.plain import open_photos, take_plain_snapshot
    from semifine.studio.snapshot import take_snapshot

    if RunFolder(run_path).settings.exists():
        print(f"Predicting all images of {options.run} ...", file=sys.stderr)
        return take_snapshot(run_path, options.device), []
    boxes = {"crops": str(Path(options.crops).resolve())} if options.crops else {}
    dataset = open_photos(str(run_path), boxes)
    steps: list[str] = []

    def progress(step: str, done: int, total: int) -> None:
        if step not in steps:
            steps.append(step)
            print(f"{STEPS[step]} of {total} photos ...", file=sys.stderr)
        if sys.stderr.isatty():
            print(f"\r{done} of {total}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    snapshot = take_plain_snapshot(
        run_path, dataset, options.device, cache=options.cache, progress=progress, log=_print_note
    )
    print(dataset.catalog.describe(), file=sys.stderr)
    photo_options = ["--data.optional_labels", "true", *(f"--data.{name}={value}" for name, value in boxes.items())]
    return snapshot, photo_options + (["--cache", str(options.cache)] if options.cache else [])


def _print_note(note: str) -> None:
    print(note, file=sys.stderr)


STEPS = {"decoding": "Decoding", "features": "Computing features"}
