"""Files that are the same to the byte; found without decoding, and mostly without reading, an image."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from semifine.data.grouping import Groups
from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.reading import digest_of

BEGINNING = 4096
"""Bytes that tell most files of equal size apart: those of formats without compression all have one size."""
AT_ONCE = 64
"""Files that a thread looks at before it reports."""
REMEMBERED = 50_000
"""Files whose content is not read again while they stay as they are: a training opens its data several times."""


def copies(files: Sequence[str], sought: NDArray[np.bool_]) -> list[list[int]]:
    """Places of files with the same content: of each group at least one is ``sought``, else nobody would ask."""
    groups = [list(range(len(files)))]
    for look in (_size, _beginning, _content):  # each narrows down what the next, which is slower, looks at
        seen = _looked_at(look, [files[place] for group in groups for place in group])
        groups = [alike for group in groups for alike in _parted(group, seen) if sought[alike].any()]
    return groups


def join(groups: Groups, together: Sequence[Sequence[int]]) -> Groups:
    """The groups, where those of rows that are ``together`` are one; all others keep their number."""
    leader: dict[int, int] = {}

    def lead(group: int) -> int:
        while group in leader:
            group = leader[group]
        return group

    for rows in together:
        leads = sorted({lead(int(group)) for group in groups[list(rows)]})
        leader.update(dict.fromkeys(leads[1:], leads[0]))
    if not leader:
        return groups
    return np.array([lead(group) for group in groups.tolist()], np.int64)


def _parted(group: list[int], seen: Iterator[Hashable]) -> list[list[int]]:
    """Those of a group that were seen to be the same."""
    alike: dict[Hashable, list[int]] = {}
    for place in group:
        alike.setdefault(next(seen), []).append(place)
    return [places for found, places in alike.items() if found is not None and len(places) > 1]


def _looked_at(look: Callable[[str], Hashable], files: Sequence[str]) -> Iterator[Hashable]:
    """In threads: a file system on the network takes its time for each answer."""
    some = (files[start : start + AT_ONCE] for start in range(0, len(files), AT_ONCE))
    for seen in map_in_order(lambda part: [_or_none(look, file) for file in part], some, usable_cores()):
        yield from seen


def _or_none(look: Callable[[str], Hashable], file: str) -> Hashable:
    """What is wrong with a file is said when its pixels are read."""
    try:
        return look(file)
    except (OSError, ValueError):  # the latter of a name that no file can have
        return None


def _size(file: str) -> int | None:
    """None for what holds no image anyway: such files are not copies of each other."""
    status = os.stat(file)
    return status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else None


def _beginning(file: str) -> bytes:
    with open(file, "rb") as opened:
        return digest_of(opened.read(BEGINNING))


def _content(file: str) -> bytes:
    status = os.stat(file)
    return _digest(file, status.st_size, status.st_mtime_ns)


@lru_cache(REMEMBERED)
def _digest(file: str, size: int, changed: int) -> bytes:
    """``size`` and time of last change stand for the content that is remembered."""
    del size, changed
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "blake2b").digest()
