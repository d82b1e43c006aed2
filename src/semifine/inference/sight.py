"""How a model gets to see images. Needs numpy and Pillow alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from semifine.data.reading import Pixels, decode_or_reason
from semifine.inference.gathering import Group, gather_items
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import central_view


class Sight(Protocol):
    """What a model needs to see."""

    known: Knowledge
    together: int
    """Images that had best be handled at a time."""

    def decode_file(self, file: str) -> Pixels | str:
        """The pixels of a file, at least as many as its view needs, or the reason why there are none."""
        ...

    def gather(self, images: Sequence[Pixels]) -> Any:
        """What the core that decoded some images does with them before they are handed over."""
        ...

    def gather_files(self, files: Iterable[str], workers: int) -> Iterator[Group]:
        """Any number of files decoded and gathered, in their order, on as many cores."""
        ...

    def views(self, gathered: Any) -> Sequence[Any]:
        """Of each image that was gathered its view, (S, S, 3) levels, as the model's network takes it."""
        ...


class HostSight:
    """With Pillow and numpy alone: images are shrunk as training's are, and their central squares cut out."""

    together = 4  # enough to hand over, few enough that large photos keep all threads busy to the end

    def __init__(self, known: Knowledge) -> None:
        self.known = known

    def decode_file(self, file: str) -> Pixels | str:
        return decode_or_reason(file, self.known.stored_side)

    def gather(self, images: Sequence[Pixels]) -> Sequence[Pixels]:
        return [central_view(image, self.known.image_size) for image in images]

    def gather_files(self, files: Iterable[str], workers: int) -> Iterator[Group]:
        return gather_items(files, self.decode_file, self, workers)

    def views(self, gathered: Sequence[Pixels]) -> Sequence[Pixels]:
        return gathered
