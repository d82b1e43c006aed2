"""Durable writes, JSON files and locks."""

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
MAX_SIGNED_BYTES = 1 << 30
"""Size of the largest file of semifine that is searched for its signature."""
NO_FOLDER_SYNC = {errno.EINVAL, errno.EOPNOTSUPP, errno.EACCES, errno.EPERM, errno.EBADF, errno.EISDIR}
"""Errors of file systems that cannot sync a folder, and of folders that may be written but not read."""
NOT_WRITTEN = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS}
"""Errors of writing, which the system reports without the name of the file."""
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
"""Flags that refuse a symbolic link, and that do not wait for the reader of a pipe."""
PARTIAL = ".partial"
"""Suffix of files and folders that are not complete."""


@contextmanager
def atomic_file(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """Yields a temporary path next to ``path`` to write to, then moves it to ``path``.

    Every finished file of semifine is written by this function. Readers see either the old or the complete new file,
    even after a power failure: the content is synced to disk, then the file is renamed, then the folder is synced. If
    the block raises, the old file stays.

    The temporary file is new: a link with its name, which could point at another file, is removed and not followed.

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
    partial = path.with_name(f".{path.name}{process}{PARTIAL}")
    try:
        with errors_name(path, partial):
            partial.unlink(missing_ok=True)
            os.close(os.open(partial, os.O_RDWR | os.O_CREAT | os.O_EXCL | NO_FOLLOW, 0o666))
            yield partial
            sync_to_disk(partial)
            os.replace(partial, path)
            sync_to_disk(path.parent)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


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


def create_folder(folder: Path) -> None:
    """Creates a folder and its missing parents, which then survive a power failure.

    Example:
        >>> create_folder(Path("runs/soc"))
        >>> Path("runs/soc").is_dir()
        True
    """
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_to_disk(path.parent)


def sync_to_disk(path: Path) -> None:
    """Waits until a file, or the entries of a folder, have reached the disk."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC or not path.is_dir():
            raise


def sync_tree(folder: Path) -> None:
    """Waits until all files and folders in a folder, and the folder itself, have reached the disk."""
    for current, _, files in os.walk(folder, topdown=False):
        for name in files:
            sync_to_disk(Path(current, name))
        sync_to_disk(Path(current))


@contextmanager
def errors_name(path: Path, partial: Path | None = None) -> Iterator[None]:
    """Adds a file to errors of writing, such as a full disk, which the system reports without the name.

    Args:
        path: The file.
        partial: A temporary file, in whose place ``path`` is named.

    Example:
        >>> with errors_name(Path("table.csv")):
        ...     raise OSError(errno.ENOSPC, "No space left on device")
        Traceback (most recent call last):
        OSError: [Errno 28] No space left on device: 'table.csv'
    """
    try:
        yield
    except OSError as error:
        if error.errno in NOT_WRITTEN and (error.filename is None or str(error.filename) == str(partial)):
            error.filename = str(path)
        raise


def open_regular(path: Path, mode: str, encoding: str | None = None) -> IO[Any]:
    """Opens a file for writing that stays in its folder: a log, a lock or a journal.

    A link is not followed, because in the folder of someone else it could point at any file. ``mode`` should append or
    create (``"a"``, ``"x"``), because another mode would truncate a file before it is checked.

    Raises:
        UserError: If the path is a symbolic link, a pipe or a device.

    Example:
        >>> Path("log.jsonl").symlink_to("diary.txt")
        >>> open_regular(Path("log.jsonl"), "a")
        Traceback (most recent call last):
        semifine.errors.UserError: log.jsonl is a link or no regular file, and is not written to: remove it.
    """
    try:
        file = open(path, mode, encoding=encoding, opener=_open_regular)  # noqa: SIM115 (returned)
    except OSError as error:
        if path.is_symlink() or error.errno in (errno.ELOOP, errno.ENXIO):
            raise _not_regular(path) from error
        raise
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise _not_regular(path)
    return file


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | NO_FOLLOW, 0o666)


def _not_regular(path: Path) -> UserError:
    return UserError(f"{path} is a link or no regular file, and is not written to: remove it.")


def write_json(path: Path, value: Any) -> None:
    """Writes a value as indented JSON, atomically."""
    write_atomically(path, format_json(value))


def format_json(value: Any) -> str:
    """Formats a value as indented JSON.

    Example:
        >>> format_json([1])
        '[\\n  1\\n]\\n'
    """
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def read_json(path: Path) -> dict[str, Any]:
    """Returns the object in a JSON file; raises ``UserError`` if the file is missing or damaged.

    Example:
        >>> write_json(Path("result.json"), {"top1": 71.5})
        >>> read_json(Path("result.json"))
        {'top1': 71.5}
    """
    with damage_as_user_error(path):
        check_is_no_pipe(path)
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


def check_is_no_pipe(path: Path) -> None:
    """Raises ``ValueError`` if a file of a run is a pipe, because reading it may wait forever."""
    if path.is_fifo():
        raise ValueError("it is not a regular file")


def has_signature(path: Path, signature: bytes) -> bool:
    """Whether a file contains the mark of a program, and may therefore be replaced by it.

    Example:
        >>> write_atomically(Path("report.html"), "<p>semifine</p>")
        >>> has_signature(Path("report.html"), b"semifine")
        True
        >>> has_signature(Path("/dev/zero"), b"semifine")
        False
    """
    return path.is_file() and path.stat().st_size <= MAX_SIGNED_BYTES and signature in path.read_bytes()


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
        raise UserError(f"{path} is damaged: {short_reason(error)}; restore the file.") from error


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
