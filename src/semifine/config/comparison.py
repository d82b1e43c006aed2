"""Whether settings are those of a run that was begun before."""

from __future__ import annotations

from typing import Any, NamedTuple

from semifine.config.files import flatten
from semifine.config.settings import RunSettings

# Settings with which a begun run may go on changed: where it runs, how it is watched, and what it does about broken
# images and losses (skip_unreadable, on_nonfinite), which change what it computes only where there are such.
CHANGEABLE = {
    "device",
    "devices",
    "store",
    "compile",
    "cuda_graphs",
    "cache",
    "log_every",
    "evaluate_every",
    "save_every",
    "keep_facts",
    "loggers",
    "skip_unreadable",
    "on_nonfinite",
}


class Difference(NamedTuple):
    """A setting that two runs do not share."""

    key: str
    before: Any
    now: Any


def first_difference(before: RunSettings, now: RunSettings) -> Difference | None:
    """The first setting, of those that a begun run must keep, in which the two differ."""
    old = flatten(before.as_dict())
    for key, value in flatten(now.as_dict()).items():
        if key not in CHANGEABLE and old.get(key) != value:
            return Difference(key, old.get(key), value)
    return None
