"""When one process of several dies, the others end at once, and say why it died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from semifine.errors import UserError

# What the libraries that carry messages between processes say of themselves; their errors have no kind of their own.
CARRIERS = ("gloo", "nccl", "connection", "store")


@contextmanager
def lost_processes_explained(log: Path, process: int) -> Iterator[None]:
    """Turns the failure of a message between processes into a sentence with the reason of the one that died."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not torch.distributed.is_initialized():
            raise
        if not any(carrier in str(error).lower() for carrier in CARRIERS):
            raise
        raise UserError(
            f"Another process of the run has ended ({_reason(log, process)}), so this one ends, too; "
            "go on with --resume from the last checkpoint."
        ) from error


def _reason(log: Path, process: int) -> str:
    """What the log has last from another process, if that is an error since the run was started."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
    for line in reversed(lines):
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if record["process"] != process:
            if record["kind"] == "error":
                return f"process {record['process']}: {record['text'].rstrip('.')}"
            break
    return "it left no reason, as when it is killed from outside"
