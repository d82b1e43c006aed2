"""The table of images: path, label and split of each."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from semifine.errors import UserError, first_few

StringArray: TypeAlias = np.ndarray[Any, Any]
"""An array of NumPy's variable-width ``StringDType``."""


class PathColumn(Sequence[str]):
    """Paths in one packed NumPy array. A million paths take tens of megabytes and pickle as one block.

    Example:
        >>> PathColumn(["a.jpg", "b.jpg"])[1]
        'b.jpg'
    """

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
        """Selects rows."""
        return PathColumn(self.array[rows])


def _pack(paths: list[str]) -> StringArray:
    try:
        return np.array(paths, dtype=np.dtypes.StringDType())
    except UnicodeEncodeError as error:
        escaped = (path.encode("utf-8", "backslashreplace").decode("utf-8") for path in paths)
        name = next(shown for path, shown in zip(paths, escaped, strict=True) if shown != path)
        raise UserError(f"The file name {name} is not valid UTF-8: rename the file.") from error


UNKNOWN = -1
"""The label of an image without a known class."""


class Split(IntEnum):
    """What an image is used for."""

    LABELED = 0
    UNLABELED = 1
    VAL = 2
    TEST = 3


class ImageReader(Protocol):
    """Reads the pixels of images by their row in the catalog.

    Set the attribute ``in_memory = True`` if the images are in memory or computed. The store then keeps no decoded
    copy on disk.
    """

    def read(self, row: int) -> NDArray[np.uint8]:
        """The decoded image as `(height, width, 3)` RGB; raises OSError or ValueError for an unreadable image."""
        ...

    def fingerprint(self) -> list[str]:
        """One string per row, which changes if the image changes."""
        ...


@dataclass(frozen=True, eq=False)
class Catalog:
    """Images as columns of equal length; each row is an image.

    Args:
        name: Name of the data set.
        class_names: Names of the classes; the position is the class id.
        paths: `(rows,)` paths, for messages and statistics.
        label: `(rows,)` class ids for training; -1 for every unlabeled image.
        split: `(rows,)` values of ``Split``.
        truth: `(rows,)` class ids for metrics only. It equals ``label`` for labeled, val and test rows. For unlabeled
            rows it is the hidden class if known, else -1; ``num_classes`` or more is a class outside the label set.
        reader: Reads the pixels by row.
        class_groups: The group of each class, such as its genus; for analysis only.
        root: The folder that paths are relative to.
        notes: Remarks for the user on how the splits were made.

    Raises:
        AssertionError: If the columns contradict each other, for example if an unlabeled image has a label.

    Example:
        >>> from semifine.data.decode import FileReader
        >>> paths, label = ["a.jpg", "b.jpg", "c.jpg"], [0, 1, -1]
        >>> split = [Split.LABELED, Split.LABELED, Split.UNLABELED]
        >>> catalog = Catalog("pets", ("cat", "dog"), paths, label, split, truth=label, reader=FileReader(paths))
        >>> catalog.describe()
        'pets: 2 classes, 2 labeled, 1 unlabeled, 0 val, 0 test'
    """

    name: str
    class_names: tuple[str, ...]
    paths: Sequence[str]
    label: NDArray[np.int64]
    split: NDArray[np.uint8]
    truth: NDArray[np.int64]
    reader: ImageReader
    class_groups: tuple[str, ...] | None = None
    root: Path | None = None
    notes: tuple[str, ...] = ()

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
        if not len(self.paths) == len(self.label) == len(self.split) == len(self.truth):
            raise AssertionError("columns of a catalog must be of equal length")
        if len(set(self.class_names)) != self.num_classes:
            raise AssertionError("class names must differ")
        if self.class_groups is not None and len(self.class_groups) != self.num_classes:
            raise AssertionError("class_groups must have one entry per class")
        if (self.split > max(Split)).any():
            raise AssertionError("unknown split")
        hidden = self.split == Split.UNLABELED
        if (self.label[hidden] != UNKNOWN).any():
            raise AssertionError("an unlabeled image must not carry a label")
        known = self.label[~hidden]
        if (known < 0).any() or (known >= self.num_classes).any():
            raise AssertionError("labels of labeled, val and test images must be class ids")
        if (self.truth[~hidden] != known).any() or (self.truth < UNKNOWN).any():
            raise AssertionError("truth must equal the label if there is one, else be a class id or -1")

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
        """`(images,)` rows of one split, in catalog order."""
        return np.flatnonzero(self.split == split)

    def take(self, rows: NDArray[np.int64]) -> Catalog:
        """Selects rows, in the given order."""
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
        """Labels unlabeled images of known classes with their true class: the training set of ``oracle``.

        Raises:
            UserError: If no true class is known.
        """
        known = (self.split == Split.UNLABELED) & (self.truth >= 0) & (self.truth < self.num_classes)
        if not known.any():
            raise UserError(
                f"{self.name}: the true classes of the unlabeled images are not known: choose a method other than "
                "oracle."
            )
        return replace(
            self,
            label=np.where(known, self.truth, self.label),
            split=np.where(known, np.uint8(Split.LABELED), self.split),
        )


def normalize_class_name(text: str) -> str:
    """Converts a class name to composed Unicode (NFC) without surrounding spaces.

    Operating systems store accents composed or decomposed; both forms name one class.

    Example:
        >>> normalize_class_name(" e\\u0301toile ") == "\\u00e9toile"
        True
    """
    return unicodedata.normalize("NFC", text.strip())


def case_variant_notes(names: Iterable[str]) -> list[str]:
    """Returns a note that lists classes whose names differ only in case; an empty list if there are none.

    Example:
        >>> case_variant_notes(["robin", "wren"])
        []
    """
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.casefold(), []).append(name)
    variants = [" and ".join(f"'{name}'" for name in same) for same in spellings.values() if len(same) > 1]
    if not variants:
        return []
    return [f"these classes are learned separately, although their names differ only in case: {first_few(variants)}"]


class SubsetReader:
    """Reads selected rows of another reader."""

    base: ImageReader
    rows: NDArray[np.int64]

    def __init__(self, base: ImageReader, rows: NDArray[np.int64]) -> None:
        self.base = base.base if isinstance(base, SubsetReader) else base
        self.rows = base.rows[rows] if isinstance(base, SubsetReader) else rows

    @property
    def in_memory(self) -> bool:
        """Whether the images are in memory."""
        return bool(getattr(self.base, "in_memory", False))

    def read(self, row: int) -> NDArray[np.uint8]:
        """Reads an image, see :class:`ImageReader`."""
        return self.base.read(int(self.rows[row]))

    def fingerprint(self) -> list[str]:
        """The fingerprints of the selected rows."""
        fingerprints = self.base.fingerprint()
        return [fingerprints[row] for row in self.rows]


def readable_rows(catalog: Catalog, reasons: Mapping[int, str], skip_unreadable: bool) -> NDArray[np.int64]:
    """Selects the rows without unreadable images.

    Unreadable unlabeled images are always left out. Leaving out others would change what is learned or measured, so it
    requires ``skip_unreadable``.

    Args:
        catalog: All images.
        reasons: Why an image is unreadable, by row.
        skip_unreadable: Leave out unreadable labeled, validation and test images too.

    Returns:
        `(kept rows,)` row numbers.

    Raises:
        UserError: If a labeled, validation or test image is unreadable and ``skip_unreadable`` is not set, or if no
            readable labeled image of a class remains.
    """
    unreadable = np.array(sorted(reasons), np.int64)
    needed = unreadable[catalog.split[unreadable] != Split.UNLABELED]
    if len(needed) and not skip_unreadable:
        row = int(needed[0])
        more = f" (and {len(needed) - 1} more)" if len(needed) > 1 else ""
        raise UserError(
            f"The {Split(catalog.split[row]).name.lower()} image {catalog.paths[row]}{more} cannot be read "
            f"({reasons[row]}): replace it, or set skip_unreadable to leave it out."
        )
    kept = np.delete(np.arange(len(catalog)), unreadable)
    labeled = catalog.label[kept][catalog.split[kept] == Split.LABELED]
    empty = np.flatnonzero(np.bincount(labeled, minlength=catalog.num_classes) == 0)
    if len(unreadable) and len(empty):
        raise UserError(f"All labeled images of class '{catalog.class_names[empty[0]]}' are unreadable: replace them.")
    return kept
