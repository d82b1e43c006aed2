"""``semifine studio --export`` and ``--import``: labels of a run's log to and from files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from semifine.data.boxes import MAX_BYTES
from semifine.data.catalog import Catalog, Split
from semifine.data.extra_labels import labels_as_csv, read_labels
from semifine.data.label_classes import resolve_classes
from semifine.data.label_log import LabelLog, current_labels, read_events
from semifine.errors import UserError, short_reason
from semifine.files import read_text, write_atomically
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run
from semifine.studio.exchange import (
    CAMTRAP,
    PhotoTable,
    collect_labels,
    export_as,
    guess_format,
    import_text,
    needs_size,
    record_labels,
)
from semifine.studio.exchange_camtrap import read_package
from semifine.studio.exchange_formats import Skipped
from semifine.studio.plain import open_photos
from semifine.studio.queue import normalize_name

MAX_SKIPPED_LINES = 20


@dataclass(frozen=True)
class FileImport:
    """The outcome of an import.

    Args:
        recorded: Number of new labels in the log.
        known: Number of labels that the person had given already.
        skipped: Labels that do not fit the data set.
    """

    recorded: int
    known: int
    skipped: list[Skipped]

    def messages(self) -> Iterator[str]:
        """Yields a line for each of the first labels that were not imported, and their number."""
        for item in self.skipped[:MAX_SKIPPED_LINES]:
            yield f"not imported: {item.path}: {item.reason}"
        if len(self.skipped) > MAX_SKIPPED_LINES:
            yield f"not imported: {len(self.skipped) - MAX_SKIPPED_LINES} more labels"
        if self.known:
            yield f"note: {self.known} labels are in the log already"


def export_labels(run_path: Path, log: Path, file: Path, format_name: str = "csv") -> int:
    """Writes the label of every image without a conflict to a new file. Returns the number of labels.

    Raises:
        UserError: If the file exists or there are no labels.
    """
    if file.exists():
        raise UserError(f"{file} exists already: choose another name.")
    if not log.exists():
        raise UserError(f"There are no labels yet: {log} does not exist.")
    if format_name == "csv":  # contains only what is in the log, so that the data set is not needed
        pairs = read_labels(log).pairs
        write_atomically(file, labels_as_csv(pairs))
        return len(pairs)
    catalog, events = _open_catalog(run_path), read_events(log)
    photos = PhotoTable(catalog, catalog.rows(Split.UNLABELED))
    labels = collect_labels(current_labels(events).items(), photos, needs_size(format_name))
    class_names = resolve_classes(events, catalog.class_names)[1].active_names
    write_atomically(file, export_as(format_name, labels, class_names, photos))
    return len(labels)


def import_labels(run_path: Path, log: Path, file: Path, format_name: str | None, person: str) -> FileImport:
    """Adds the labels in a file to a log as one answer of a person.

    Args:
        run_path: The run, whose data set contains the photos.
        log: The log; created if it does not exist.
        file: The file; for Camtrap DP also a folder or an archive.
        format_name: The format; None to guess it from the name of the file.
        person: Who answers for the labels.
    """
    person = normalize_name(person)
    format_name = format_name or guess_format(file)
    text = read_package(file) if format_name == CAMTRAP else _read(file)
    catalog = _open_catalog(run_path)
    photos = PhotoTable(catalog, catalog.rows(Split.UNLABELED))
    label_log = LabelLog(log)
    try:
        class_names = resolve_classes(label_log.events(), catalog.class_names)[1].active_names
        result = import_text(format_name, str(file), text, photos, class_names)
        pairs = [(photos.path(row), name) for row, name in result.labels]
        recorded = record_labels(label_log, person, pairs, format_name)
    finally:
        label_log.close()
    return FileImport(recorded, len(pairs) - recorded, result.skipped)


def _open_catalog(path: Path) -> Catalog:
    """Opens the images of a run, or of a folder of photos without a run."""
    return Run(path).catalog if RunFolder(path).settings.exists() else open_photos(str(path), {}).catalog


def _read(file: Path) -> str:
    try:
        return read_text(file, MAX_BYTES)
    except (OSError, ValueError) as error:
        raise UserError(f"Cannot read the labels {file} ({short_reason(error)}): check the file.") from error
