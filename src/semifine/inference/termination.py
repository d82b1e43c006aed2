"""Termination that ends a job as Ctrl-C does: what was begun is cleared away, what is done is kept."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import NoReturn


class Terminated(KeyboardInterrupt):
    """Stopped by SIGTERM."""


@contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """For the time of the context SIGTERM raises Terminated, unless somebody else has plans for it."""

    def stop(*_: object) -> NoReturn:
        raise Terminated

    is_ours = current_thread() is main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    if is_ours:
        signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        if is_ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
