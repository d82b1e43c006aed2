"""One thing that a person said about one image."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

LABEL, NONE_OF_THESE, UNSURE, SKIP, UNDO = "label", "none_of_these", "unsure", "skip", "undo"
KINDS = (LABEL, NONE_OF_THESE, UNSURE, SKIP, UNDO)


@dataclass(frozen=True)
class Event:
    """A line of the log; ``number`` and ``time`` are given by the log."""

    person: str
    path: str
    kind: str
    class_name: str | None = None
    """The class of a ``label``, and of nothing else."""
    seen: int = 0
    """Number of the last event on this image that the person had before their eyes and meant to replace."""
    undoes: int | None = None
    """Number of the event that an ``undo`` takes back."""
    shown: dict[str, Any] = field(default_factory=dict)
    """What the page showed: the candidates, the model and its guess."""
    number: int = 0
    time: str = ""

    @property
    def is_verdict(self) -> bool:
        """Whether it says what the image is, or is not."""
        return self.kind in (LABEL, NONE_OF_THESE)

    def agrees_with(self, other: Event) -> bool:
        """Whether both say the same of an image."""
        return (self.kind, self.class_name) == (other.kind, other.class_name)
