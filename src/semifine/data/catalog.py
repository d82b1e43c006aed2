"""The one table of images: where each is, which label it has, which split it belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError

StringArray: TypeAlias = np.ndarray[Any, Any]
"""An array of numpy's variable-width ``StringDType``."""


class PathColumn(Sequence[str]):
    """Paths in one packed numpy array: a million of them take tens of megabytes and pickle as one block."""

    __slots__ = ("array",)

    array: StringArray

    def __init__(self, paths: Iterable[str] | StringArray) -> None:
        if isinstance(paths, PathColumn):
            paths = paths.array
        self.array = paths if isinstance(paths, np.ndarray) else _pack(list(paths))

    def __len__(self) -> int:
        return len(self.array)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PathColumn: ...
    def __getitem__(self, index: int | slice) -> str | PathColumn:
        if isinstance(index, slice):
            return PathColumn(self.array[index])
        return str(self.array[index])

    def __iter__(self) -> Iterator[str]:
        return iter(self.array)

    def __repr__(self) -> str:
        return f"PathColumn({len(self)} paths)"

    def take(self, rows: NDArray[np.int64]) -> PathColumn:
        """The paths at the given rows."""
        return PathColumn(self.array[rows])


def _pack(paths: list[str]) -> StringArray:
    try:
        return np.array(paths, dtype=np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        bad = next(path for path in paths if not _is_text(path))
        shown = bad.encode("utf-8", "backslashreplace").decode("utf-8")
        raise UserError(f"The file name {shown} is not valid UTF-8: rename the file.") from error


def _is_text(path: str) -> bool:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


UNKNOWN = -1


class Split(IntEnum):
    """What an image is used for."""

    LABELED = 0
    UNLABELED = 1
    VAL = 2
    TEST = 3


class ImageReader(Protocol):
    """Gives the pixels of the images of a catalog, by their row.

    A reader whose images are already in memory says so with an attribute ``in_memory = True``; then no
    decoded copy is kept on disk.
    """

    def read(self, row: int) -> NDArray[np.uint8]:
        """The decoded image as (height, width, 3) RGB; raises OSError or ValueError when unreadable."""
        ...

    def fingerprint(self) -> list[str]:
        """One string a row that changes when the image changes."""
        ...


@dataclass(frozen=True, eq=False)
class Catalog:
    """Images as columns of equal length; a row is an image.

    ``label`` is what training may see: a class id, or -1 where the label is unknown, as for every
    unlabeled image. ``truth`` is what only metrics may see: the hidden class of an unlabeled image
    where it is known, else -1; a value of ``num_classes`` or more is a class outside the label set
    (out of distribution). For labeled, val and test rows truth equals label.
    """

    name: str
    class_names: tuple[str, ...]
    paths: Sequence[str]
    label: NDArray[np.int64]
    split: NDArray[np.uint8]
    truth: NDArray[np.int64]
    reader: ImageReader
    class_groups: tuple[str, ...] | None = None
    """The group (say genus) of each class where it is known; for analysis only."""
    root: Path | None = None
    notes: tuple[str, ...] = ()
    """What a person should know of how the splits came about."""

    def __post_init__(self) -> None:
        for name, column in (
            ("paths", PathColumn(self.paths)),
            ("label", np.asarray(self.label, dtype=np.int64)),
            ("split", np.asarray(self.split, dtype=np.uint8)),
            ("truth", np.asarray(self.truth, dtype=np.int64)),
        ):
            object.__setattr__(self, name, column)
        self._check()

    def _check(self) -> None:
        """Raises AssertionError where a source broke a promise that training and metrics rely on."""
        if not len(self.paths) == len(self.label) == len(self.split) == len(self.truth):
            raise AssertionError("columns of a catalog must be of equal length")
        if len(set(self.class_names)) != self.num_classes:
            raise AssertionError("class names must differ")
        if self.class_groups is not None and len(self.class_groups) != self.num_classes:
            raise AssertionError("there must be one class group a class")
        if (self.split > max(Split)).any():
            raise AssertionError("unknown split")
        hidden = self.split == Split.UNLABELED
        if (self.label[hidden] != UNKNOWN).any():
            raise AssertionError("an unlabeled image must not carry a label")
        known = self.label[~hidden]
        if (known < 0).any() or (known >= self.num_classes).any():
            raise AssertionError("labels of labeled, val and test images must be class ids")
        if (self.truth[~hidden] != known).any() or (self.truth < UNKNOWN).any():
            raise AssertionError("truth must equal the label where there is one, else be a class id or -1")

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def describe(self) -> str:
        """One line with the number of classes and of images in each split."""
        counts = ", ".join(f"{len(self.rows(split))} {split.name.lower()}" for split in Split)
        return f"{self.name}: {self.num_classes} classes, {counts}"

    def rows(self, split: Split) -> NDArray[np.int64]:
        """Row numbers of one split, in catalog order."""
        return np.flatnonzero(self.split == split)

    def take(self, rows: NDArray[np.int64]) -> Catalog:
        """The catalog of the given rows, in the given order."""
        rows = np.asarray(rows, dtype=np.int64)
        return replace(
            self,
            paths=PathColumn(self.paths).take(rows),
            label=self.label[rows],
            split=self.split[rows],
            truth=self.truth[rows],
            reader=SubsetReader(self.reader, rows),
        )

    def with_truth_revealed(self) -> Catalog:
        """The oracle's training set: in-class unlabeled images become labeled with their true class."""
        known = (self.split == Split.UNLABELED) & (self.truth >= 0) & (self.truth < self.num_classes)
        if not known.any():
            raise UserError(
                f"{self.name}: the true classes of the unlabeled images are not known, so no oracle can be trained."
            )
        return replace(
            self,
            label=np.where(known, self.truth, self.label),
            split=np.where(known, np.uint8(Split.LABELED), self.split),
        )


class SubsetReader:
    """Some rows of another reader, renumbered."""

    base: ImageReader
    rows: NDArray[np.int64]

    def __init__(self, base: ImageReader, rows: NDArray[np.int64]) -> None:
        self.base = base.base if isinstance(base, SubsetReader) else base
        self.rows = base.rows[rows] if isinstance(base, SubsetReader) else rows

    @property
    def in_memory(self) -> bool:
        return bool(getattr(self.base, "in_memory", False))

    def read(self, row: int) -> NDArray[np.uint8]:
        return self.base.read(int(self.rows[row]))

    def fingerprint(self) -> list[str]:
        fingerprints = self.base.fingerprint()
        return [fingerprints[row] for row in self.rows]


def readable_rows(catalog: Catalog, reasons: Mapping[int, str], skip_unreadable: bool) -> NDArray[np.int64]:
    """The rows without the unreadable images.

    Unlabeled images are always left out. The results would silently be about other data if labeled, validation or test
    images were, so one of these raises ``UserError`` unless ``skip_unreadable`` is set.

    Args:
        catalog: All images.
        reasons: Why an image is unreadable, by row.
        skip_unreadable: Leave out any unreadable image.
    """
    broken = np.array(sorted(reasons), np.int64)
    needed = broken[catalog.split[broken] != Split.UNLABELED]
    if len(needed) and not skip_unreadable:
        row = int(needed[0])
        more = f", nor can {len(needed) - 1} others" if len(needed) > 1 else ""
        raise UserError(
            f"The {Split(catalog.split[row]).name.lower()} image {catalog.paths[row]} cannot be read{more} "
            f"({reasons[row]}): replace it, or set skip_unreadable to leave it out."
        )
    kept = np.delete(np.arange(len(catalog)), broken)
    labeled = catalog.label[kept][catalog.split[kept] == Split.LABELED]
    empty = np.flatnonzero(np.bincount(labeled, minlength=catalog.num_classes) == 0)
    if len(broken) and len(empty):
        raise UserError(f"All labeled images of class '{catalog.class_names[empty[0]]}' are unreadable: replace them.")
    return kept
