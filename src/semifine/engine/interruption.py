"""Ctrl-C and termination end a run between two steps, after saving."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

import torch

from semifine.engine.devices import Fabric


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


def agree_to_stop(fabric: Fabric, stop: StopRequest, may_ask: bool) -> int | None:
    """The signal that ends the run; several processes ask each other when they may, so that all end together."""
    if fabric.world_size == 1:
        return stop.signal_number
    if not may_ask:
        return None
    seen = torch.tensor(float(stop.signal_number or 0), device=fabric.device)
    return round(float(fabric.all_reduce(seen, reduce_op="max"))) or None  # type: ignore[arg-type]
