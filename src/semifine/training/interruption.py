"""Interruption of a run, and failures of peer processes."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import torch

from semifine.errors import UserError
from semifine.training.fabric import Fabric


class StopRequest:
    """Remembers the first signal; the second one is not waited for."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
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


# What the libraries that carry messages between processes say of themselves; their errors have no kind of their own.
CARRIERS = ("gloo", "nccl", "connection", "tcpstore")
ENDED = "Another process of the run has ended"


@contextmanager
def explain_peer_failures(log: Path, process: int) -> Iterator[None]:
    """Turns the failure of a message between processes into a sentence with the reason of the one that died."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not torch.distributed.is_initialized():
            raise
        if not any(carrier in str(error).lower() for carrier in CARRIERS):
            raise
        raise UserError(
            f"{ENDED} ({_reason(log, process)}), so this one ends, too; go on with --resume from the last checkpoint."
        ) from error


def _reason(log: Path, process: int) -> str:
    """The first cause: an error that is the last word of another process, and is no echo of a third one's.

    A process of this run has at least said that it began, after all that one of the same number said in earlier runs;
    but an earlier run may have had more of them.
    """
    log_tail: dict[int, dict[str, str]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            log_tail[record["process"]] = record
        except (ValueError, KeyError, TypeError):  # cut short when an earlier process ended
            continue
    others = set(range(torch.distributed.get_world_size())) - {process}
    for other, record in log_tail.items():
        if other in others and record["kind"] == "error" and not record["text"].startswith(ENDED):
            return f"process {other}: {record['text'].rstrip('.')}"
    return "it left no reason, as when it is killed from outside"
