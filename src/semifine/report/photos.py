"""The photos of a run's data, where that is still there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

from numpy.typing import NDArray

from semifine.analysis.runs import RunFacts
from semifine.data.catalog import Catalog, Split
from semifine.errors import UserError
from semifine.report.data_sets import data_name
from semifine.report.pictures import MAX_PER_CLASS, SIDE, data_uri


class RunPhotos:
    """Photos by class and by path; none, and the reason, where the data cannot be read."""

    def __init__(self, run: RunFacts) -> None:
        self._catalog: Catalog | None = None
        self.missing = ""
        """Why there are no photos; empty where there are."""
        try:
            self._catalog = _open_catalog(run)
        except (UserError, OSError) as error:
            root = run.data.partition(":")[2]
            self.missing = str(error).replace(root, data_name(run)) if root else str(error)

    def of_classes(self) -> dict[int, list[NDArray[Any]]]:
        """A few labelled photos of each class."""
        if self._catalog is None:
            return {}
        found: dict[int, list[NDArray[Any]]] = {}
        for row in self._catalog.rows(Split.LABELLED):
            photos = found.setdefault(int(self._catalog.label[row]), [])
            if len(photos) < MAX_PER_CLASS:
                photos += self._read(int(row))
        return found

    def of_samples(self, paths: Iterable[str]) -> dict[str, str]:
        """Data URIs of unlabelled photos by path, as far as they can be read."""
        wanted = {path: self._rows[path] for path in paths if path in self._rows}
        pixels = {path: self._read(row) for path, row in wanted.items()}
        return {path: data_uri(found[0]) for path, found in pixels.items() if found}

    @cached_property
    def _rows(self) -> dict[str, int]:
        if self._catalog is None:
            return {}
        return {str(self._catalog.paths[row]): int(row) for row in self._catalog.rows(Split.UNLABELLED)}

    def _read(self, row: int) -> list[NDArray[Any]]:
        from semifine.data.store_build import try_decode

        assert self._catalog is not None
        decoded = try_decode(self._catalog.reader, row, SIDE)
        return [] if isinstance(decoded, str) else [decoded.pixels]


def _open_catalog(run: RunFacts) -> Catalog:
    """The data as the run's settings name it, if its classes are still those of the run."""
    from semifine.config.schema import build
    from semifine.data import sources

    named: Any = run.settings.get("data")
    if not isinstance(named, Mapping) or "source" not in named:
        raise UserError("The run's settings do not name its data.")
    source, _ = sources.resolve(str(named["source"]))
    values = {key: value for key, value in named.items() if key != "source"}
    catalog = sources.load_catalog(str(named["source"]), build(sources.settings_class(source), values, "data."))
    if tuple(catalog.class_names) != run.class_names:
        raise UserError(f"The classes of {named['source']} are no longer those of the run.")
    return catalog
