"""What the log of a run says at its end: why it failed, and whether memory was the reason."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

from semifine.errors import NO_MEMORY

# Libraries have words of their own for memory that has run out.
MEMORY_WORDS = (NO_MEMORY, "out of memory", "STATUS_ALLOC_FAILED", "can't allocate memory")


def reason(log: Path, exit_code: int) -> str:
    """The sentence that a run said about its mistake, else the error it ended with, else its last words."""
    lines = last_lines(log)
    said = [line.removeprefix("semifine: ") for line in lines if line.startswith("semifine: ")]
    errors = [line for line in lines if re.match(r"[\w.]*(Error|Exception): ", line)]
    return (said or errors or lines or [f"ended with exit code {exit_code}"])[-1]


def lacked_memory(log: Path, exit_code: int) -> bool:
    """By what the run said; where the machine's own memory ends, the system kills without a word."""
    told = "\n".join(last_lines(log))
    return exit_code == -signal.SIGKILL or any(words in told for words in MEMORY_WORDS)


def last_lines(path: Path) -> list[str]:
    """The end of a file that may be long, without empty lines; nothing where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - 4096))
            lines = file.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return []
    return [line for line in lines if line.strip()]
