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
    from semifine.studio.sharing import Link, Sharing
    from semifine.studio.snapshot import ModelSnapshot

FORMATS = ("csv", "labelstudio", "coco", "fiftyone", "camtrapdp")
"""The keys of ``studio.exchange.FORMATS``, which is slow to import."""


def run(arguments: Sequence[str]) -> int:
    parser = _create_parser()
    options = parser.parse_args(arguments)
    _check_options(parser, options)

    # Slow: these import torch.
    from semifine.runs.folder import RunFolder
    from semifine.studio.queue import default_log

    is_run = RunFolder(options.run).settings.exists() or not options.run.is_dir()
    run_path = RunFolder.open(options.run).path.resolve() if is_run else options.run.resolve()
    if is_run and options.crops:
        raise UserError("--crops is for a folder of photos; a run has the boxes that it was trained with.")
    log_file = options.db or default_log(run_path)
    if options.export:
        return _export(run_path, log_file, options)
    if options.import_from:
        return _import(run_path, log_file, options)
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
    parser.add_argument(
        "--watch",
        type=Path,
        metavar="FOLDER",
        help="folder of the data set; its new photos appear in the studio",
    )
    parser.add_argument("--port", type=int, default=0, help="port on this machine (default: any free port)")
    parser.add_argument("--no-browser", action="store_true", help="print the URL without opening a browser")
    add_device(parser, "predict")
    _add_sharing_options(parser)
    _add_exchange_options(parser)
    return parser


def _add_sharing_options(parser: Parser) -> None:
    parser.add_argument("--share", action="store_true", help="let people in the local network label, each with a link")
    parser.add_argument(
        "--host", metavar="ADDRESS", help="address of this machine for --share (default: its address in the network)"
    )
    parser.add_argument(
        "--person",
        action="append",
        default=[],
        metavar="NAME:ROLE",
        help="a person for --share; repeat it for others. Roles: label; review, which also settles conflicts, changes "
        "classes and imports labels; train, which also trains. With --import: the name of the person, without a role",
    )
    parser.add_argument(
        "--people", type=Path, metavar="CSV", help="table of people for --share: name, role and optionally token"
    )
    parser.add_argument("--certificate", type=Path, metavar="PEM", help="certificate for encrypted connections (TLS)")
    parser.add_argument("--key", type=Path, metavar="PEM", help="private key, if it is not in --certificate")


def _add_exchange_options(parser: Parser) -> None:
    parser.add_argument("--export", type=Path, metavar="FILE", help="write the labels to a new file and exit")
    parser.add_argument(
        "--import", dest="import_from", type=Path, metavar="FILE", help="add the labels in a file to the log and exit"
    )
    parser.add_argument(
        "--format", choices=FORMATS, help="format of --export (default: csv) or --import (default: from the file name)"
    )


def _check_options(parser: Parser, options: argparse.Namespace) -> None:
    if not options.share and (options.host or options.people or options.certificate or options.key):
        parser.error("--host, --people, --certificate and --key need --share")
    if options.person and not (options.share or options.import_from):
        parser.error("--person needs --share or --import")
    if options.key and not options.certificate:
        parser.error("--key needs --certificate")
    if options.format and not (options.export or options.import_from):
        parser.error("--format needs --export or --import")


def _export(run_path: Path, log_file: Path, options: argparse.Namespace) -> int:
    from semifine.studio.exchange_files import export_labels  # slow: imports torch

    count = export_labels(run_path, log_file, options.export, options.format or "csv")
    print(f"{count} labels from {log_file} written to {options.export}")
    return 0


def _import(run_path: Path, log_file: Path, options: argparse.Namespace) -> int:
    from semifine.studio.exchange_files import import_labels  # slow: imports torch

    if len(options.person) > 1:
        raise UserError("The imported labels belong to one person: give --person once.")
    person = options.person[0] if options.person else "import"
    result = import_labels(run_path, log_file, options.import_from, options.format, person)
    for line in result.messages():
        print(line, file=sys.stderr)
    print(f"{result.recorded} labels from {options.import_from} added to {log_file}")
    return 0


def _create_sharing(options: argparse.Namespace) -> Sharing:
    """Returns who reaches the studio, and warns if others could read along."""
    from semifine.studio import sharing  # optional: it is installed with semifine[studio]

    if not options.share:
        return sharing.local_sharing()
    people = [sharing.parse_person(text) for text in options.person]
    people += sharing.read_people(options.people) if options.people else []
    sharing.check_people(people)
    certificate = sharing.Certificate(options.certificate, options.key) if options.certificate else None
    if certificate is not None:
        certificate.check()
    host = options.host or sharing.find_address()
    if certificate is None and not sharing.Address(host, 0).is_local:
        print(
            "warning: without --certificate, connections are not encrypted: everyone in the network can read the "
            "links, the photos and the labels. Share in trusted networks only.",
            file=sys.stderr,
        )
    return sharing.Sharing(host, sharing.create_links(people), certificate)


def _serve(run_path: Path, log_file: Path, options: argparse.Namespace) -> None:
    # Optional: starlette and uvicorn are installed with semifine[studio].
    from semifine.data.label_log import LabelLog, check_is_log
    from semifine.studio.app import Studio, serve
    from semifine.studio.sharing import listen
    from semifine.studio.taxonomy import read_ranks

    def ready(links: list[Link]) -> None:
        print(f"Labels are saved to {log_file}. Press Ctrl-C to stop.", file=sys.stderr)
        for visitor, url in links:
            print(url if visitor.name is None else f"{visitor.name} ({visitor.role}): {url}", flush=True)
        if not options.share and not options.no_browser:
            # In a thread, because some browsers such as w3m block until they are closed.
            Thread(target=webbrowser.open, args=(links[0].url,), daemon=True).start()

    sharing = _create_sharing(options)
    with listen(sharing.host, options.port) as listening:
        if log_file.exists():
            check_is_log(log_file)  # before the predictions, which take time
        ranks = read_ranks(options.taxonomy) if options.taxonomy else None
        snapshot, photo_options = _take_snapshot(run_path, options)
        studio = Studio(snapshot, LabelLog(log_file), options.device, options.method, photo_options, ranks)
        if count := studio.label_queue.num_unknown_paths:
            print(f"note: {count} lines of {log_file} are about images that are not in this data set", file=sys.stderr)
        if options.watch:
            studio.watch(options.watch)
        serve(studio, listening, ready, sharing)


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
