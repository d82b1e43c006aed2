"""A data set that is opened once per process and handed down: catalog, decoded images and checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from semifine.data import sources
from semifine.data.catalog import Catalog
from semifine.data.checks import DataReport, inspect
from semifine.data.extra_labels import ExtraLabels, add_labels, with_catalog_paths
from semifine.data.selection import select_images
from semifine.data.store import ImageStore, Progress, open_store
from semifine.errors import UserError

Log = Callable[[str], object]


def _no_log(note: str) -> None:
    pass


class Dataset:
    """The catalog, the decoded images and the checks of one data source.

    The catalog is read on first use, and :meth:`open_store` decodes the images, each at most once. Pass one object to
    all functions instead of opening the data again.

    Args:
        read: Reads the catalog.

    Example:
        >>> dataset = Dataset.open("synthetic", {"genera": 2, "species": 3, "unlabeled_per_class": 4})
        >>> dataset.catalog.describe()
        'synthetic: 6 classes, 30 labeled, 24 unlabeled, 30 val, 120 test'
        >>> store = dataset.open_store(shorter_side=32)
        >>> store.image(0).shape
        torch.Size([32, 32, 3])
        >>> dataset.store is store
        True
    """

    report: DataReport | None
    """Findings of the checks; set by ``open_store``."""
    labels: ExtraLabels | None
    """Labels that ``open_store`` added to the catalog."""

    def __init__(self, read: Callable[[], Catalog]) -> None:
        self._read = read
        self._store: ImageStore | None = None
        self.report = None
        self.labels = None

    @classmethod
    def open(cls, source: str, settings: Any = None) -> Dataset:
        """Opens a data source.

        Args:
            source: A folder, a table, or the name of a source, such as ``synthetic`` or ``semi_cub:PATH``.
            settings: The settings of the source, or a mapping of their values. None uses the defaults.

        Raises:
            UserError: If the source or a setting is unknown, or the path does not exist.
        """
        if settings is None or isinstance(settings, Mapping):
            settings = sources.build_settings(source, settings or {})
        return cls(lambda: sources.load_catalog(source, settings))

    @classmethod
    def from_catalog(cls, catalog: Catalog, store: ImageStore | None = None) -> Dataset:
        """Creates a data set from a catalog, and optionally a store with the same rows."""
        dataset = cls(lambda: catalog)
        dataset._store = store
        return dataset

    @cached_property
    def catalog(self) -> Catalog:
        """All images and labels. After ``open_store``, its rows are the rows of the store."""
        return self._read()

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user on the splits."""
        return self.catalog.notes

    @property
    def unreadable(self) -> list[tuple[str, str]]:
        """Path and reason of the unreadable images, which ``open_store`` leaves out."""
        return self.report.unreadable if self.report else []

    @property
    def is_decoded(self) -> bool:
        """Whether ``open_store`` has been called."""
        return self._store is not None

    @property
    def store(self) -> ImageStore:
        """The decoded images; call ``open_store`` first."""
        assert self._store is not None, "call open_store first"
        return self._store

    def open_store(
        self,
        shorter_side: int,
        *,
        cache_dir: Path | str | None = None,
        labels: ExtraLabels | None = None,
        near_duplicates: bool = False,
        progress: Progress | None = None,
        log: Log = _no_log,
    ) -> ImageStore:
        """Decodes the images, leaves out those that cannot be used, runs the checks and adds labels.

        :func:`~semifine.data.selection.select_images` decides which images are left out. A second call returns the same
        store.

        Args:
            shorter_side: Larger images are shrunk to this shorter side.
            cache_dir: Folder of the cache; None uses ``$SEMIFINE_CACHE`` or ``~/.cache/semifine``.
            labels: Labels for unlabeled images. Each becomes a labeled copy of its image.
            near_duplicates: Also find validation and test images that look like training images.
            progress: Called with the number of decoded images and the number of all images.
            log: Receives one line per note, for example about decoding or images that are left out.

        Raises:
            UserError: If the data set cannot be used, for example because most of its images are unreadable.
        """
        if self._store is not None:
            return self._store
        every_image = self.catalog
        selection = select_images(every_image, self._decode(shorter_side, cache_dir, progress, log))
        catalog, store = selection.catalog, selection.store
        self.report = inspect(selection, near_duplicates=near_duplicates)
        if self.report.errors:
            raise UserError(f"{self.report.errors[0]} 'semifine prepare' shows all problems of the data.")
        if left_out := self.report.describe_left_out():
            log(f"left out: {left_out}; data.json and the report list them")
        for warning in self.report.warnings:
            log(f"note: {warning}")
        if labels:
            self.labels = _labels_of_used(with_catalog_paths(every_image, labels), self.report, log)
            catalog, store, note = add_labels(catalog, store, self.labels)
            log(note)
        self.catalog, self._store = catalog, store
        return store

    def inspect(
        self,
        shorter_side: int,
        *,
        cache_dir: Path | str | None = None,
        progress: Progress | None = None,
        log: Log = _no_log,
    ) -> DataReport:
        """Decodes the images and returns the report of the checks, with near-duplicates and with errors."""
        store = self._decode(shorter_side, cache_dir, progress, log)
        return inspect(select_images(self.catalog, store), near_duplicates=True)

    def _decode(
        self, shorter_side: int, cache_dir: Path | str | None, progress: Progress | None, log: Log
    ) -> ImageStore:
        store = open_store(self.catalog, shorter_side, cache_dir=cache_dir, progress=progress)
        for note in (store.note, *self.catalog.notes):
            log(note)
        return store


def _labels_of_used(labels: ExtraLabels, report: DataReport, log: Log) -> ExtraLabels:
    """Removes the labels of unlabeled images that are left out."""
    left_out = {item.path for item in report.left_out if item.split == "unlabeled"}
    pairs = [(path, name) for path, name in labels.pairs if path not in left_out]
    if len(pairs) < len(labels.pairs):
        log(f"labels from {labels.file} for images that are left out: {len(labels.pairs) - len(pairs)}, not used")
    return replace(labels, pairs=pairs)
