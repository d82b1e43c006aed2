"""Which files to predict: paths, folders, or names from standard input."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from semifine.data.sources.scan import images_below
from semifine.errors import UserError

STANDARD_INPUT = "-"


def some_files(paths: Sequence[str], separator: bytes = b"\n") -> Iterator[str]:
    """As ``find_files``, but at least one, and of paths that are there: a mistyped one is no unreadable image."""
    for path in paths:
        _check_exists(path)
    files = find_files(paths, separator)
    first = next(files, None)
    if first is None:
        places = ", ".join("standard input" if path == STANDARD_INPUT else path for path in paths)
        raise UserError(f"No images found in {places}.")
    return chain([first], files)


def _check_exists(path: str) -> None:
    """A link to something missing is there; whatever else is wrong with a path is said when it is read."""
    try:
        if path != STANDARD_INPUT:
            os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path or 'An empty PATH'} does not exist; 'semifine predict --help' says what a PATH can be."
        ) from None
    except OSError:
        pass


def find_files(paths: Iterable[str], separator: bytes = b"\n") -> Iterator[str]:
    """The files that are meant, in the order given; of a folder all images in it and below, sorted.

    A file that does not exist is given back as well: reading it will say so.
    """
    for path in paths:
        if path == STANDARD_INPUT:
            yield from find_files(_names(sys.stdin.buffer, separator))
        elif os.path.isdir(path):
            found = images_below(Path(path), ".", with_closed=True)
            yield from (os.path.join(path, inside.removeprefix("./")) for inside in found)
        else:
            yield path


def _names(stream: BinaryIO, separator: bytes) -> Iterator[str]:
    """Names as they come, so that a long list is never held; a name may be of any bytes but the separator."""
    rest = b""
    while chunk := stream.read1(65536) if hasattr(stream, "read1") else stream.read(65536):
        *whole, rest = (rest + chunk).split(separator)
        yield from (_name(name) for name in whole if name.strip(b"\r"))
    if rest.strip(b"\r\n"):
        yield _name(rest)


def _name(raw: bytes) -> str:
    if b"\0" in raw:
        raise UserError("The names on standard input end with a NUL, as find -print0 writes them: add --null.")
    name = os.fsdecode(raw.removesuffix(b"\r"))
    if name == STANDARD_INPUT:
        raise UserError("Standard input names '-' among the files: write './-' for a file of that name.")
    return name
