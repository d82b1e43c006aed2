"""The evaluation transform on the CPU, without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from math import ceil
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.decode import Pixels, decode_or_reason
from semifine.data.parallel import map_in_order, usable_cores
from semifine.inference.prediction import ModelMetadata

ItemT = TypeVar("ItemT")


class Group(NamedTuple):
    """Some images: the readable ones gathered, and of each why it is not among them, if so."""

    gathered: Any
    reasons: Sequence[str | None]


def decode_batches(
    items: Iterable[ItemT],
    decode: Callable[[ItemT], Pixels | str],
    preprocessor: Preprocessor,
    workers: int | None = None,
) -> Iterator[Group]:
    """Items of any kind, in order; ``decode`` gives one's pixels, or the reason why there are none."""
    Image.init()  # loads Pillow's formats once, before threads could meet over it

    def gathered(some: Sequence[ItemT]) -> Group:
        decoded = [decode(item) for item in some]
        reasons = [pixels if isinstance(pixels, str) else None for pixels in decoded]
        return Group(preprocessor.gather([pixels for pixels in decoded if not isinstance(pixels, str)]), reasons)

    at_work = workers or usable_cores()
    return map_in_order(gathered, several(items, preprocessor.together), at_work, in_flight=2 * at_work)


def several(items: Iterable[ItemT], count: int) -> Iterator[list[ItemT]]:
    """Lists of that many items; the last may be shorter."""
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some


# Both as views/maker.py has them; a test compares the two.
LARGEST_SHRINK = 1.5
MOST_OVERSAMPLE = 4


def central_view(pixels: Pixels, size: int) -> Pixels:
    """(H, W, 3) levels -> (size, size, 3): the central square, its shorter side resized to ``size``."""
    height, width, _ = pixels.shape
    shorter = min(height, width)
    oversample = oversampling(shorter, size)
    rows = _along(pixels, _places(height, shorter, size, oversample))
    both = _along(rows.swapaxes(0, 1), _places(width, shorter, size, oversample)).swapaxes(0, 1)
    if oversample > 1:
        both = both.reshape(size, oversample, size, oversample, 3).mean(axis=(1, 3))
    return (both + np.float32(0.5)).astype(np.uint8)


def oversampling(shorter: int, size: int) -> int:
    """How many samples a pixel of the view averages along each axis."""
    return min(max(1, ceil(shorter / size / LARGEST_SHRINK)), MOST_OVERSAMPLE)


def _places(extent: int, shorter: int, size: int, oversample: int) -> NDArray[np.float64]:
    """Where the samples along one axis lie, counted from the center of the first pixel."""
    resized = size * extent // shorter
    scale = extent / resized
    start = np.rint((resized - size) / 2) * scale
    steps = (np.arange(size * oversample) + 0.5) / oversample
    places: NDArray[np.float64] = np.clip(start + scale * steps - 0.5, 0, extent - 1)
    return places


def _along(levels: NDArray[Any], places: NDArray[np.float64]) -> NDArray[np.float32]:
    """Linear interpolation along the first axis."""
    # Only what is sampled is converted: of a long image a part.
    first, last = int(places[0]), min(int(places[-1]) + 2, len(levels))
    levels, places = levels[first:last].astype(np.float32), places - first
    lower = np.minimum(places.astype(np.intp), max(len(levels) - 2, 0))
    weight = (places - lower).astype(np.float32)[:, None, None]
    below = levels[lower]
    above = levels[np.minimum(lower + 1, len(levels) - 1)]
    between: NDArray[np.float32] = below + weight * (above - below)
    return between


class Preprocessor(Protocol):
    """What a model needs to see."""

    known: ModelMetadata
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


class CpuPreprocessor:
    """With Pillow and numpy alone: images are shrunk as training's are, and their central squares cut out."""

    together = 4  # enough to hand over, few enough that large photos keep all threads busy to the end

    def __init__(self, known: ModelMetadata) -> None:
        self.known = known

    def decode_file(self, file: str) -> Pixels | str:
        return decode_or_reason(file, self.known.stored_side)

    def gather(self, images: Sequence[Pixels]) -> Sequence[Pixels]:
        return [central_view(image, self.known.image_size) for image in images]

    def gather_files(self, files: Iterable[str], workers: int) -> Iterator[Group]:
        return decode_batches(files, self.decode_file, self, workers)

    def views(self, gathered: Sequence[Pixels]) -> Sequence[Pixels]:
        return gathered
