"""The table of images: path, label and split of each."""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Any, Protocol, TypeAlias, overload

import numpy as np
from numpy.typing import NDArray

from semifine.data.left_out import LeftOut
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


HOLD_OUT_OPTION = "--data.val_share"
"""Notes on the held-out images name this option."""


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
        left_out: Classes and images that the source has left out already.
        held_out: Whether the val rows were held out from the labeled images.
        official_splits: Whether the splits are published, so that they are kept as they are.
        keep_conflicting: Whether to train on copies of an image that are labeled as different classes.
        labels_optional: Whether there may be no labels, because people give them in the studio.

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
    left_out: tuple[LeftOut, ...] = ()
    held_out: bool = False
    official_splits: bool = False
    keep_conflicting: bool = False
    labels_optional: bool = False

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

    def without(self, left_out: Iterable[LeftOut]) -> Catalog:
        """Removes images and classes. Unlabeled images of a removed class stay, as images of another class."""
        items = list(left_out)
        classes = {item.path for item in items if item.kind == "class"}
        images = {(item.path, item.split) for item in items if item.kind != "class"}
        split_names = [split.name.lower() for split in Split]
        if images:
            keys = zip(self.paths, self.split.tolist(), strict=True)
            kept = [row for row, (path, split) in enumerate(keys) if (path, split_names[split]) not in images]
            return self.take(np.array(kept, np.int64)).without_classes(classes)
        return self.without_classes(classes)

    def without_classes(self, names: Collection[str]) -> Catalog:
        """Removes classes with their labeled, val and test images, and renumbers the others."""
        removed = np.array([name in names for name in self.class_names], np.bool_)
        if not removed.any():
            return self
        kept = self.take(np.flatnonzero(~np.append(removed, False)[self.label]))
        # Removed classes become classes outside the label set, whose ids do not change.
        new_id = np.append(np.argsort(np.argsort(removed, kind="stable"), kind="stable"), UNKNOWN)
        is_known = kept.truth < self.num_classes
        groups = self.class_groups
        return replace(
            kept,
            class_names=tuple(name for name in self.class_names if name not in names),
            class_groups=groups and tuple(group for group, gone in zip(groups, removed, strict=True) if not gone),
            label=new_id[kept.label],
            truth=np.where(is_known, new_id[np.where(is_known, kept.truth, UNKNOWN)], kept.truth),
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


def without_hold_out(catalog: Catalog) -> Catalog:
    """Returns the catalog with the held-out images as labeled ones again."""
    split = np.where(catalog.split == Split.VAL, np.uint8(Split.LABELED), catalog.split)
    notes = tuple(note for note in catalog.notes if HOLD_OUT_OPTION not in note)
    return replace(catalog, split=split, held_out=False, notes=notes) if catalog.held_out else catalog


def unreadable_errors(catalog: Catalog, reasons: Mapping[int, str]) -> list[str]:
    """Describes unreadable images that make a data set unusable.

    Args:
        catalog: All images.
        reasons: Why an image is unreadable, by row.

    Returns:
        One sentence per split of which more than half of the images are unreadable. In published splits, one unreadable
        labeled, validation or test image suffices, because results would not be comparable without it.
    """
    split = np.where(catalog.held_out & (catalog.split == Split.VAL), np.uint8(Split.LABELED), catalog.split)
    errors = []
    for part in Split:
        rows = [row for row in sorted(reasons) if split[row] == part]
        total = int((split == part).sum())
        if 2 * len(rows) > total or (rows and catalog.official_splits and part != Split.UNLABELED):
            errors.append(
                f"{len(rows)} of {total} {part.name.lower()} images of {catalog.name} cannot be read "
                f"({catalog.paths[rows[0]]}: {reasons[rows[0]]}): restore them."
            )
    return errors
