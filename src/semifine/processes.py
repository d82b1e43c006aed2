"""Child processes that end when their parent ends, however it ends, and that import nothing from the working directory.

The parent passes its process id in an environment variable. The child compares it with the id of its current parent,
which changes when the parent ends. A parent-death signal of Linux would depend on the thread that started the child: it
is sent when this thread ends, and a web server ends its threads earlier.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARENT = "SEMIFINE_PARENT"
"""Environment variable with the process id of the parent."""
POLL_SECONDS = 0.5
GRACE_SECONDS = 60
"""Time to save a checkpoint after the parent has ended."""


def child_environment() -> dict[str, str]:
    """Returns the environment for a Python program that must not outlive this process.

    The program imports from the same folders as this process. Without these variables it would also import from the
    working directory, which may contain files of others.

    Example:
        >>> int(child_environment()[PARENT]) == os.getpid()
        True
    """
    folders = os.pathsep.join(folder for folder in sys.path if folder)
    return {**os.environ, "PYTHONSAFEPATH": "1", "PYTHONPATH": folders, PARENT: str(os.getpid())}


@contextmanager
def children_end_with_this_process() -> Iterator[None]:
    """Starts all processes in the context with the process id of this one, for launchers with an own environment.

    Example:
        >>> with children_end_with_this_process():
        ...     int(os.environ[PARENT]) == os.getpid()
        True
        >>> PARENT in os.environ
        False
    """
    os.environ[PARENT] = str(os.getpid())
    try:
        yield
    finally:
        del os.environ[PARENT]


def end_with_parent(end: Callable[[], None] | None = None) -> None:
    """Ends this process when the parent that started it ends; does nothing without a parent in the environment.

    Args:
        end: Called when the parent has ended, in a thread. By default, the process receives SIGTERM, on which a
            training saves a checkpoint, and is killed if it has not ended after ``GRACE_SECONDS``.

    Example:
        >>> end_with_parent()  # nothing to watch
    """
    parent = os.environ.pop(PARENT, "")
    if parent.isdigit() and os.name == "posix":
        threading.Thread(target=_watch, args=(int(parent), end or _terminate), daemon=True, name="parent").start()


def _watch(parent: int, end: Callable[[], None]) -> None:
    while os.getppid() == parent:  # false from the beginning if the parent has ended before this process could look
        time.sleep(POLL_SECONDS)
    end()


def _terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(GRACE_SECONDS)
    os.kill(os.getpid(), signal.SIGKILL)
