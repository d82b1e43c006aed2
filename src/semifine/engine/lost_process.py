"""When one process of several dies, the others end at once, and say why it died."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from semifine.errors import UserError

# What the libraries that carry messages between processes say of themselves; their errors have no kind of their own.
CARRIERS = ("gloo", "nccl", "connection", "tcpstore")
ENDED = "Another process of the run has ended"


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
            f"{ENDED} ({_reason(log, process)}), so this one ends, too; go on with --resume from the last checkpoint."
        ) from error


def _reason(log: Path, process: int) -> str:
    """The first cause: an error that is the last word of another process, and is no echo of a third one's.

    A process of this run has at least said that it began, after all that one of the same number said in earlier runs;
    but an earlier run may have had more of them.
    """
    last_words: dict[int, dict[str, str]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            last_words[record["process"]] = record
        except (ValueError, KeyError, TypeError):  # cut short when an earlier process ended
            continue
    others = set(range(torch.distributed.get_world_size())) - {process}
    for other, record in last_words.items():
        if other in others and record["kind"] == "error" and not record["text"].startswith(ENDED):
            return f"process {other}: {record['text'].rstrip('.')}"
    return "it left no reason, as when it is killed from outside"
