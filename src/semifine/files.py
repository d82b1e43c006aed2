"""Files: atomic writes, JSON, and locks."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from semifine.errors import UserError


def try_to_lock(descriptor: int, *, shared: bool = False) -> bool | None:
    """Whether the lock is held now; None where the file system has no locks, as some network file systems have none."""
    kind = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):  # NFS has either word for a lock that another one holds
        return False
    except OSError:
        return None
    return True


def read_json(path: Path) -> dict[str, Any]:
    """What a JSON file of ours holds; a clear UserError where it is damaged."""
    with damage_told(path):
        value = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(value, dict):
            raise ValueError("it holds no names with values")
    return value


@contextmanager
def damage_told(path: Path) -> Iterator[None]:
    """Whatever goes wrong while a file of ours is read is told as one sentence about that file."""
    try:
        yield
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from error
    except Exception as error:  # JSON, safetensors and Parquet have kinds of their own
        raise UserError(f"{path} is damaged: {' '.join(str(error).split()).rstrip('.')}.") from error


def write_json(path: Path, value: Any) -> None:
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """The file holds either its old or its new content, whenever the machine stops."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")  # two programs may write the same file
    with partial.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
