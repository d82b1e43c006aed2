"""How a model comes to see images: from files to pixels, from pixels to the views that its network takes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from semifine.data.in_order import InOrder, map_in_order
from semifine.data.reading import decode_file
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import Pixels, central_view


class Sight(Protocol):
    """What a model needs to see."""

    known: Knowledge
    together: int
    """Images that had best be handled at a time."""

    @property
    def files_in_order(self) -> InOrder:
        """How all cores had best decode files."""
        ...

    def decode_file(self, file: str) -> Pixels:
        """The pixels of a file, at least as many as its view needs; raises OSError that names the file."""
        ...

    def gather(self, images: Sequence[Pixels]) -> Any:
        """What the core that decoded them does with some images before they are handed over."""
        ...

    def views(self, gathered: Any) -> Sequence[Any]:
        """Of each image that was gathered its view, (S, S, 3) levels, as the model's network takes it."""
        ...


class HostSight:
    """With Pillow and numpy alone: images are shrunk as training's are, and their central squares cut out."""

    together = 4  # enough to hand over, few enough that large photos keep all threads busy to the end

    def __init__(self, known: Knowledge) -> None:
        self.known = known
        self.files_in_order: InOrder = map_in_order

    def decode_file(self, file: str) -> Pixels:
        return decode_file(file, self.known.stored_side).pixels

    def gather(self, images: Sequence[Pixels]) -> Sequence[Pixels]:
        return [central_view(image, self.known.image_size) for image in images]

    def views(self, gathered: Sequence[Pixels]) -> Sequence[Pixels]:
        return gathered
