"""Lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence


class UserError(ValueError):
    """Wrong input: one sentence that names the file or key and says what to do.

    The command line prints the sentence and exits with code 2, without a traceback.
    """


NO_MEMORY = "does not suffice"
"""How a run says that memory is exhausted; who runs several at once listens for it."""


def exhausted_memory(error: BaseException) -> str | None:
    """Whose memory did not suffice, where an error means that; torch has no kind of error for most of them."""
    text = str(error)
    if isinstance(error, MemoryError) or "DefaultCPUAllocator" in text or "Cannot allocate memory" in text:
        return "this machine"
    is_gpu = isinstance(error, RuntimeError) and ("out of memory" in text or "STATUS_ALLOC_FAILED" in text)
    return "the GPU" if is_gpu else None


def first_few(names: Sequence[str], most: int = 3) -> str:
    """``a, b, c, …``: a note is read, a list of hundreds is not."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
