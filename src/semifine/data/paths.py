"""A column of paths that does not need a Python object for each image."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias, overload

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
