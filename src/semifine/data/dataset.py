"""A data set opened once: catalog, image store and report together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from semifine.config import RunSettings
from semifine.data.catalog import Catalog, Split
from semifine.data.checks import DataReport, inspect
from semifine.data.extra_labels import ExtraLabels, add_labels, of_catalog, read_labels
from semifine.data.sources import load_catalog
from semifine.data.store import ImageStore, open_store, set_aside_unreadable, unreadable_images
from semifine.errors import UserError
from semifine.training.progress import Display


@dataclass(frozen=True)
class Dataset:
    """Rows of the catalog and of the store agree."""

    catalog: Catalog
    store: ImageStore
    set_aside: list[str]
    """Paths of unreadable images that were left out."""
    report: DataReport | None = None
    """What is in the data, and what is wrong with it."""
    labels: ExtraLabels | None = None
    """Further labels (--labels) that the catalog has been given."""


def open_dataset(
    settings: RunSettings, display: Display, labels: ExtraLabels | None = None, *, look_alikes: bool = False
) -> Dataset:
    """Reads the catalog, decodes what is not decoded yet, and leaves out what cannot be read.

    ``labels`` take the place of those in the file that the settings name; ``look_alikes`` seeks near-duplicates too.
    """
    catalog, store = _open(settings, display)
    broken = unreadable_images(catalog, store)
    catalog, store = set_aside_unreadable(catalog, store, skip_unreadable=settings.train.skip_unreadable)
    for path, reason in broken:
        display.log(f"left out {path}: {reason}")
    report = inspect(catalog, store, look_alikes=look_alikes)
    if report.errors:
        raise UserError(f"{report.errors[0]} 'semifine prepare' shows all problems of the data.")
    for warning in report.warnings:
        display.log(f"note: {warning}")
    if settings.train.labels:
        labels = of_catalog(catalog, labels or read_labels(Path(settings.train.labels)))
        catalog, store, note = add_labels(catalog, store, labels)
        display.log(note)
    return Dataset(catalog, store, [path for path, _ in broken], report, labels)


def inspect_data(settings: RunSettings, display: Display) -> DataReport:
    """Decodes a data set and reports what is in it; an unreadable labeled image stops it, unless skipped."""
    catalog, store = _open(settings, display)
    report = inspect(catalog, store, look_alikes=True)
    set_aside_unreadable(catalog, store, skip_unreadable=settings.train.skip_unreadable)
    return report


def _open(settings: RunSettings, display: Display) -> tuple[Catalog, ImageStore]:
    catalog = load_catalog(settings.data, settings.data_settings)
    with display.bar("decoding images", len(catalog)):
        store = open_store(
            catalog,
            settings.train.stored_side,
            cache_dir=settings.train.cache,
            progress=lambda done, total: display.advance(done),  # noqa: ARG005
        )
    for note in (store.note, *catalog.notes):
        display.log(note)
    return catalog, store


def describe(catalog: Catalog) -> str:
    """One line: how many classes, and how many images in each split."""
    counts = ", ".join(f"{len(catalog.rows(split))} {split.name.lower()}" for split in Split)
    return f"{catalog.name}: {catalog.num_classes} classes, {counts}"
