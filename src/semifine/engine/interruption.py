"""Ctrl-C and termination end a run between two steps, after saving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interrupted(Exception):
    """The run was asked to stop, and has saved; ``signal_number`` says by which signal."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal.Signals(signal_number).name)
        self.signal_number = signal_number


class StopRequest:
    """Remembers the first signal; the second one is not waited for."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def watching_for_stop() -> Iterator[StopRequest]:
    """Catches SIGINT and SIGTERM for the time of the context; outside the main thread it does nothing."""
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        previous = [signal.signal(number, request) for number in numbers]
    except ValueError:  # only the main thread may set handlers
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)
