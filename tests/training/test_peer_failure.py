"""Why another process of the run ended."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from semifine.errors import UserError
from semifine.training.interruption import explain_peer_failures


@pytest.fixture
def _connected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 3)


def fail(log: Path, text: str) -> None:
    with explain_peer_failures(log, process=0):
        raise RuntimeError(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """Process 1 of 3 failed, process 2 noticed it; of earlier attempts one was cut short, and one had a process 3."""
    echo = "Another process of the run has ended (process 1: No wheels), so this one ends, too."
    records = [(3, "error", "Old, too."), (1, "error", "Old."), (0, "start", ""), (1, "start", ""), (2, "start", "")]
    records += [(1, "error", "No wheels."), (2, "error", echo), (0, "message", "step 3")]
    lines = [json.dumps({"process": process, "kind": kind, "text": text}) for process, kind, text in records]
    path = tmp_path / "log.jsonl"
    path.write_text('{"process": 1, "ki\n[]\n' + "\n".join(lines))
    return path


@pytest.mark.usefixtures("_connected")
def test_the_first_cause_is_told(log: Path) -> None:
    with pytest.raises(UserError, match=r"has ended \(process 1: No wheels\), so this one ends, too"):
        fail(log, "[gloo/transport/tcp/pair.cc:545] Connection reset by peer")


def test_without_other_processes_an_error_stays_what_it_is(log: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^Connection closed"):
        fail(log, "Connection closed")


@pytest.mark.usefixtures("_connected")
def test_errors_of_our_own_stay_what_they_are(log: Path) -> None:
    with pytest.raises(RuntimeError, match=r"^shapes differ"):
        fail(log, "shapes differ")
