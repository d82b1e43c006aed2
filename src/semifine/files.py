"""Atomic writes, JSON files and locks."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from filelock import lock_descriptor

from semifine.errors import OutOfMemory, UserError, short_reason

NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF}
"""Errors of file systems without locks, such as some network file systems."""
RETRY_SECONDS = 0.05
MAX_JSON_BYTES = 64 << 20
"""Size of the largest JSON file that is read. Parsed JSON takes up to thirty times the memory of the file."""


@contextmanager
def atomic_file(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """Yields a temporary path next to ``path`` to write to, then moves it to ``path``.

    Readers see either the old or the complete new file, even after a power failure. If the block raises, the old file
    stays.

    Args:
        path: The file to write.
        exclusive: Set this if no other process can write the file at the same time, for example under a lock. The
            temporary file then has a fixed name, so it replaces the one that a killed process left.

    Example:
        >>> with atomic_file(Path("numbers.txt")) as partial:
        ...     _ = partial.write_text("1 2 3")
        >>> Path("numbers.txt").read_text()
        '1 2 3'
    """
    process = "" if exclusive else f".{os.getpid()}"
    partial = path.with_name(f".{path.name}{process}.partial")
    try:
        yield partial
        sync_to_disk(partial)
        os.replace(partial, path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_to_disk(path.parent)


def write_atomically(path: Path, content: str | bytes, *, exclusive: bool = False) -> None:
    """Writes a whole file with :func:`atomic_file`.

    Example:
        >>> write_atomically(Path("note.txt"), "done")
        >>> Path("note.txt").read_text()
        'done'
    """
    data = content.encode() if isinstance(content, str) else content
    with atomic_file(path, exclusive=exclusive) as partial:
        partial.write_bytes(data)


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the entries of a folder, have reached the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises ``UserError`` if the file is missing or damaged.

    Example:
        >>> write_json(Path("result.json"), {"top1": 71.5})
        >>> read_json(Path("result.json"))
        {'top1': 71.5}
    """
    with damage_as_user_error(path):
        if path.is_fifo():
            raise ValueError("it is not a regular file")  # reading a pipe may wait forever
        text = read_text(path)
        value = parse_json(text, path)
        if not isinstance(value, dict):
            raise ValueError("it does not contain a JSON object")
        if "\\ud" in text.lower():
            json.dumps(value, ensure_ascii=False).encode()  # raises ValueError for half of a surrogate pair
    return value


class JsonObject(dict[str, Any]):
    """An object of a JSON file. ``UserError`` names the file if a key is missing."""

    def __init__(self, content: dict[str, Any], path: Path) -> None:
        super().__init__(content)
        self._file = path

    def __missing__(self, key: str) -> Any:
        raise UserError(f"{self._file} is damaged: the key '{key}' is missing; restore the file.")


def parse_json(text: str, path: Path) -> Any:
    """Parses text of a JSON file, with objects as :class:`JsonObject`.

    Example:
        >>> parse_json('{"top1": 71.5}', Path("result.json"))["top5"]
        Traceback (most recent call last):
        semifine.errors.UserError: result.json is damaged: the key 'top5' is missing; restore the file.
    """
    return json.loads(text, object_hook=lambda content: JsonObject(content, path))


def read_text(path: Path, most: int = MAX_JSON_BYTES, errors: str = "strict") -> str:
    """Reads a file in UTF-8, with the line ends of any system.

    Raises:
        ValueError: If it has more than ``most`` bytes, as an endless file does.

    Example:
        >>> write_atomically(Path("note.txt"), "done")
        >>> read_text(Path("note.txt"), most=10)
        'done'
        >>> read_text(Path("note.txt"), most=3)
        Traceback (most recent call last):
        ValueError: it is larger than 3 bytes
    """
    with path.open("rb") as file:
        status = os.fstat(file.fileno())
        size = status.st_size if stat.S_ISREG(status.st_mode) and status.st_size else most
        data = file.read(min(size, most) + 1)
    if max(len(data), status.st_size) > most:
        raise ValueError(f"it is larger than {most >> 20} MB" if most >> 20 else f"it is larger than {most} bytes")
    return data.decode(errors=errors).replace("\r\n", "\n").replace("\r", "\n")


@contextmanager
def damage_as_user_error(path: Path) -> Iterator[None]:
    """Replaces errors of reading a file of semifine by a ``UserError`` that names the file."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except MemoryError as error:
        raise OutOfMemory("host", f"{path} is too large to be read here") from error
    except Exception as error:  # JSON, safetensors and Parquet have their own error classes
        raise UserError(f"{path} is damaged: {short_reason(error)}.") from error


def lock_file(file: IO[Any], *, tries: int | None = 1) -> bool | None:
    """Takes the exclusive lock of an open file; the system releases it when the file is closed or the process ends.

    Args:
        file: An open file. Its content stays as it is.
        tries: Number of attempts, 0.05 seconds apart. None waits until the lock is free.

    Returns:
        True if the lock is held, False if another process holds it, None if the file system has no locks.

    Example:
        >>> first, second = open("lock", "a"), open("lock", "a")
        >>> lock_file(first), lock_file(second)
        (True, False)
        >>> first.close()
        >>> lock_file(second)
        True
        >>> second.close()
    """
    try:
        if tries is None:
            return lock_descriptor(file.fileno(), poll_interval=RETRY_SECONDS)
        for attempt in range(tries):
            if attempt:
                time.sleep(RETRY_SECONDS)
            if lock_descriptor(file.fileno(), blocking=False):
                return True
        return False
    except OSError as error:
        if error.errno in NO_LOCKS:
            return None
        raise
