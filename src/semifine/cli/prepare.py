"""``semifine prepare``: decodes a data set and reports its content and problems."""

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

MAX_CLASSES = 60
MAX_PAIRS = 20


def run(arguments: Sequence[str]) -> int:
    """Runs the command and returns its exit code."""
    parser = create_parser("prepare")
    parser.description = (
        "Decode a data set, so that training starts faster, and report its content and problems. Takes the options of "
        "'semifine train'; those for data and image size have an effect."
    )
    parser.add_argument("--json", action="store_true", help="print the report as one JSON object")
    parser.add_argument(
        "--write-folder",
        type=Path,
        metavar="FOLDER",
        help="only write the images to FOLDER, as labeled/, unlabeled/ and so on",
    )
    options, settings, dataset = parse_settings(parser, arguments)
    if options.write_folder:
        return _write_folder(dataset.catalog, options.write_folder)

    # Slow imports, after the options have been checked
    from rich.console import Console

    from semifine.training.progress import Display

    display = Display()
    with display.bar("decoding images", len(dataset.catalog)):
        report = dataset.inspect(
            settings.train.stored_side,
            cache_dir=settings.train.cache,
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


def _write_folder(catalog: Catalog, folder: Path) -> int:
    from semifine.data.sources.folder import write_folder  # only for this option

    unreadable = write_folder(catalog, folder)
    for note in catalog.notes:
        print(f"note: {note}")
    for path, reason in unreadable:
        print(f"left out {path}: {reason}")
    print(f"{len(catalog) - len(unreadable)} images of {catalog.name} written to {folder}")
    return 0


def _print_report(report: DataReport, console: Console) -> None:
    from rich.table import Table  # only for the text output

    console.print(f"{report.name}: {report.num_images} images, {len(report.classes)} classes", highlight=False)
    counts = ", ".join(f"{count} {split}" for split, count in report.splits.items())
    console.print(f"splits: {counts}", highlight=False)
    for side, spread in (("height", report.height), ("width", report.width)):
        console.print(f"{side}: {spread.min} to {spread.max} pixels, median {spread.median:.0f}", highlight=False)
    table = Table("class", "labeled", "val", "test", title="images per class")
    for name, counts_of_class in list(report.classes.items())[:MAX_CLASSES]:
        table.add_row(name, *(str(counts_of_class[split]) for split in ("labeled", "val", "test")))
    console.print(table, markup=False)
    if len(report.classes) > MAX_CLASSES:
        console.print(f"and {len(report.classes) - MAX_CLASSES} more classes; --json shows all", highlight=False)
    for item in report.left_out:
        equal = f" (= {item.copy_of})" if item.copy_of else ""
        console.print(f"left out: {item.path}: {item.reason}{equal}", markup=False, highlight=False, soft_wrap=True)
    for group in (*report.overlaps, *report.duplicates):
        console.print(f"exact copies: {', '.join(group)}", markup=False, highlight=False, soft_wrap=True)
    for pair in report.near_duplicates[:MAX_PAIRS]:
        console.print(f"near-duplicates: {', '.join(pair)}", markup=False, highlight=False, soft_wrap=True)
    if left_out := report.describe_left_out():
        text = f"note: training leaves out {left_out}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)
    for text in report.warnings:
        console.print(f"note: {text}", markup=False, highlight=False, soft_wrap=True)
