"""What the time of a run goes into."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

Part = Literal["start_up", "steps", "evaluation", "saving"]


class TimeSpent:
    """Seconds by part, those before a resume included; what is booked on no other part goes into steps.

    The host's clock is read and no GPU waited for: of the steps that the host is ahead, some are booked late.
    """

    def __init__(self) -> None:
        self.seconds: dict[Part, float] = {"start_up": 0.0, "steps": 0.0, "evaluation": 0.0, "saving": 0.0}
        self._since = time.perf_counter()
        self._taken = 0.0

    def begin_steps(self, started: float | None) -> None:
        """All since the moment ``started``, on ``time.perf_counter``, was start-up."""
        self._since = time.perf_counter() if started is None else started
        self._book("start_up")
        self._taken = self.seconds["steps"]

    @contextmanager
    def spent_on(self, part: Part) -> Iterator[None]:
        """What passes in the context goes into the part."""
        self._book("steps")
        yield
        self._book(part)

    def take_steps(self) -> float:
        """Seconds of steps since the last time."""
        self._book("steps")
        seconds, self._taken = self.seconds["steps"] - self._taken, self.seconds["steps"]
        return seconds

    @property
    def training(self) -> float:
        """All but the start-up."""
        return sum(self.seconds.values()) - self.seconds["start_up"]

    def _book(self, part: Part) -> None:
        now = time.perf_counter()
        self.seconds[part] += now - self._since
        self._since = now
