"""Exceptions that end a command, with their exit codes."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import ClassVar, Literal


class UserError(ValueError):
    """Wrong input. The message is one sentence that names the file or key and the remedy.

    The command line prints the message without a traceback and exits with ``exit_code``.
    """

    exit_code: ClassVar[int] = 2


class OutOfMemory(UserError):
    """GPU or host memory is exhausted. A run may succeed when no other run shares the memory.

    Example:
        >>> raise OutOfMemory("GPU", "lower --batch-size")
        Traceback (most recent call last):
        semifine.errors.OutOfMemory: Out of GPU memory: lower --batch-size.
    """

    exit_code = 3

    def __init__(self, memory: Literal["GPU", "host"], remedy: str) -> None:
        limit = address_space_limit() if memory == "host" else None
        first = f"raise the limit of {limit / 1e9:.1f} GB of address space (ulimit -v), or " if limit else ""
        super().__init__(f"Out of {memory} memory: {first}{remedy}.")


class Interrupted(Exception):
    """A signal stopped the run, and the run saved its state.

    Args:
        signal_number: The signal, such as ``signal.SIGTERM``.

    Example:
        >>> Interrupted(signal.SIGTERM).exit_code
        143
    """

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number

    @property
    def exit_code(self) -> int:
        """128 + signal number, as shells expect."""
        return 128 + self.signal_number


HOST_MEMORY_SIGNS = ("DefaultCPUAllocator", "Cannot allocate memory", "failed to map segment", "bad_alloc")
"""Parts of messages of PyTorch, the system, and the loader of shared libraries."""


def address_space_limit() -> int | None:
    """Returns the limit of the address space (``ulimit -v``) in bytes, or None without a limit."""
    try:
        import resource  # does not exist on Windows
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if limit == resource.RLIM_INFINITY else limit


def exhausted_memory(error: BaseException) -> Literal["GPU", "host"] | None:
    """Returns which memory an error reports as exhausted, or None for other errors.

    PyTorch has no exception class for most of these errors, so the message decides.

    Example:
        >>> exhausted_memory(RuntimeError("CUDA error: out of memory"))
        'GPU'
    """
    text = str(error)
    if isinstance(error, MemoryError) or any(sign in text for sign in HOST_MEMORY_SIGNS):
        return "host"
    if isinstance(error, SystemError) and address_space_limit():  # "error return without exception set"
        return "host"
    is_gpu = isinstance(error, RuntimeError) and ("out of memory" in text or "STATUS_ALLOC_FAILED" in text)
    return "GPU" if is_gpu else None


def short_reason(error: BaseException, most: int = 200) -> str:
    """The message of an error of a library in one line of limited length, without the final period.

    Example:
        >>> short_reason(ValueError("expected ':',\\n  found 'x'."))
        "expected ':', found 'x'"
    """
    text = " ".join(str(error)[: 10 * most].split()) or type(error).__name__
    return (text if len(text) <= most else f"{text[:most]}…").rstrip(".")


def first_few(names: Sequence[str], most: int = 3) -> str:
    """Joins the first names with commas, with an ellipsis if there are more.

    Example:
        >>> first_few(["ant", "bee", "fly", "wasp"])
        'ant, bee, fly, …'
    """
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
