"""semifine prepare"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from semifine.cli.train import create_parser, parse_settings
from semifine.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

    from semifine.data.catalog import Catalog
    from semifine.data.checks import DataReport

MOST_CLASSES = 60
MOST_PAIRS = 20


def run(arguments: Sequence[str]) -> int:
    parser = create_parser("prepare")
    parser.description = (
        "Decode a data set once, so that training starts at once, and report what is in it. Give the options that "
        "'semifine train' will be given: what they say of data and image size counts."
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--write-folder", type=Path, metavar="FOLDER", help="only write the images, into labeled/, unlabeled/ and so on"
    )
    options, settings, dataset = parse_settings(parser, arguments)
    if options.write_folder:
        return _write_folder(dataset.catalog, options.write_folder, settings.train.skip_unreadable)

    from rich.console import Console

    from semifine.training.progress import Display

    display = Display()
    with display.bar("decoding images", len(dataset.catalog)):
        report = dataset.inspect(
            settings.train.stored_side,
            cache_dir=settings.train.cache,
            skip_unreadable=settings.train.skip_unreadable,
            progress=lambda done, _: display.advance(done),
            log=display.log,
        )
    if options.json:
        print(json.dumps(report.as_dict()))
    else:
        _print_report(report, Console())
    if report.errors:
        raise UserError(" ".join(report.errors))
    return 0


def _write_folder(catalog: Catalog, folder: Path, skip_unreadable: bool) -> int:
    from semifine.data.sources.folder import write_folder

    unreadable = write_folder(catalog, folder, skip_unreadable=skip_unreadable)
    for note in catalog.notes:
        print(f"note: {note}")
    for path, reason in unreadable:
        print(f"left out {path}: {reason}")
    print(f"{len(catalog) - len(unreadable)} images of {catalog.name} written to {folder}")
    return 0


def _print_report(report: DataReport, console: Console) -> None:
    from rich.table import Table

    console.print(f"{report.name}: {report.num_images} images, {len(report.classes)} classes", highlight=False)
    counts = ", ".join(f"{count} {split}" for split, count in report.splits.items())
    console.print(f"splits: {counts}", highlight=False)
    for side, spread in (("height", report.height), ("width", report.width)):
        console.print(f"{side}: {spread.min} to {spread.max} pixels, median {spread.median:.0f}", highlight=False)
    table = Table("class", "labeled", "val", "test", title="images a class")
    for name, of_class in list(report.classes.items())[:MOST_CLASSES]:
        table.add_row(name, *(str(of_class[split]) for split in ("labeled", "val", "test")))
    console.print(table, markup=False)
    if len(report.classes) > MOST_CLASSES:
        console.print(f"and {len(report.classes) - MOST_CLASSES} more classes; --json shows all", highlight=False)
    for path, reason in report.unreadable:
        console.print(f"unreadable: {path}: {reason}", markup=False, highlight=False, soft_wrap=True)
    for group in report.duplicates:
        console.print(f"exact copies: {', '.join(group)}", markup=False, highlight=False, soft_wrap=True)
    for pair in report.near_duplicates[:MOST_PAIRS]:
        console.print(f"look alike: {', '.join(pair)}", markup=False, highlight=False, soft_wrap=True)
    for text in report.warnings:
        console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
