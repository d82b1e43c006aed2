"""The evaluation transform on the CPU, with numpy and Pillow alone, and decoding in batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.augment.settings import oversampling
from semifine.data.boxes import Photo
from semifine.data.decode import Pixels, try_decode_file
from semifine.data.parallel import map_in_order, usable_cores

if TYPE_CHECKING:
    from semifine.data.store import ImageStore

ItemT = TypeVar("ItemT")


class DecodedGroup(NamedTuple):
    """A few decoded images."""

    images: Any
    """The readable images, as ``Preprocessor.collate`` returned them."""
    errors: Sequence[str | None]
    """For each item None, or the reason why it cannot be read."""


class Preprocessor(Protocol):
    """The evaluation transform of a model: shrink to the stored side, then resize and crop the central square."""

    group_size: int
    """Number of images to decode and transform at a time."""
    stored_side: int
    """Larger images are first shrunk to this shorter side."""

    def decode_file(self, photo: Photo) -> Pixels | str:
        """Returns the pixels of a file or of a crop, or the reason why it cannot be read."""
        ...

    def decode_files(self, photos: Iterable[Photo], workers: int) -> Iterator[DecodedGroup]:
        """Decodes any number of files or crops in order."""
        ...

    def collate(self, images: Sequence[Pixels]) -> Any:
        """Prepares decoded images in the thread that decoded them."""
        ...

    def transform(self, collated: Any) -> Sequence[Any]:
        """Returns the transformed images, each ``(S, S, 3)`` uint8, on the device of the network."""
        ...

    def transform_stored(self, store: ImageStore, rows: NDArray[np.int64]) -> Sequence[Any]:
        """Transforms images of a store, which are decoded and shrunk already."""
        ...


def decode_batches(
    items: Iterable[ItemT],
    decode: Callable[[ItemT], Pixels | str],
    preprocessor: Preprocessor,
    workers: int | None = None,
) -> Iterator[DecodedGroup]:
    """Decodes items of any kind in threads, in order.

    Args:
        items: What to decode.
        decode: Returns the pixels of an item, or the reason why it cannot be read.
        preprocessor: Collates the images of each group.
        workers: Number of threads; by default all cores.
    """
    Image.init()  # loads Pillow's formats before threads start

    def decode_group(group: Sequence[ItemT]) -> DecodedGroup:
        decoded = [decode(item) for item in group]
        errors = [pixels if isinstance(pixels, str) else None for pixels in decoded]
        return DecodedGroup(preprocessor.collate([p for p in decoded if not isinstance(p, str)]), errors)

    workers = workers or usable_cores()
    return map_in_order(decode_group, batched(items, preprocessor.group_size), workers, in_flight=2 * workers)


def batched(items: Iterable[ItemT], size: int) -> Iterator[list[ItemT]]:
    """Lists of ``size`` items; the last one may be shorter.

    Example:
        >>> list(batched("abc", 2))
        [['a', 'b'], ['c']]
    """
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch


def center_crop_array(pixels: Pixels, size: int) -> Pixels:
    """Resizes the shorter side of an image ``(H, W, 3)`` to ``size`` and crops the central square.

    Example:
        >>> center_crop_array(np.full((40, 60, 3), 7, np.uint8), 32).shape
        (32, 32, 3)
    """
    height, width, _ = pixels.shape
    shorter = min(height, width)
    oversample = oversampling(shorter, size)
    rows = _interpolate(pixels, _sample_points(height, shorter, size, oversample))
    square = _interpolate(rows.swapaxes(0, 1), _sample_points(width, shorter, size, oversample)).swapaxes(0, 1)
    if oversample > 1:
        square = square.reshape(size, oversample, size, oversample, 3).mean(axis=(1, 3))
    return (square + np.float32(0.5)).astype(np.uint8)


def _sample_points(extent: int, shorter: int, size: int, oversample: int) -> NDArray[np.float64]:
    """Coordinates of the samples along one axis, from the center of the first pixel."""
    resized = size * extent // shorter
    scale = extent / resized
    start = np.rint((resized - size) / 2) * scale
    steps = (np.arange(size * oversample) + 0.5) / oversample
    points: NDArray[np.float64] = np.clip(start + scale * steps - 0.5, 0, extent - 1)
    return points


def _interpolate(pixels: NDArray[Any], points: NDArray[np.float64]) -> NDArray[np.float32]:
    """Linear interpolation along the first axis."""
    # Converts only the sampled part, which is small in a long image.
    first, last = int(points[0]), min(int(points[-1]) + 2, len(pixels))
    pixels, points = pixels[first:last].astype(np.float32), points - first
    lower = np.minimum(points.astype(np.intp), max(len(pixels) - 2, 0))
    weight = (points - lower).astype(np.float32)[:, None, None]
    below = pixels[lower]
    above = pixels[np.minimum(lower + 1, len(pixels) - 1)]
    result: NDArray[np.float32] = below + weight * (above - below)
    return result


class CpuPreprocessor:
    """The evaluation transform with numpy and Pillow.

    Args:
        image_size: Side of the square that the network sees.
        stored_side: Larger images are first shrunk to this shorter side.
    """

    group_size = 4  # small enough that large photos keep all threads busy to the end

    def __init__(self, image_size: int, stored_side: int) -> None:
        self.image_size = image_size
        self.stored_side = stored_side

    def decode_file(self, photo: Photo) -> Pixels | str:
        return try_decode_file(photo, self.stored_side)

    def decode_files(self, photos: Iterable[Photo], workers: int) -> Iterator[DecodedGroup]:
        return decode_batches(photos, self.decode_file, self, workers)

    def collate(self, images: Sequence[Pixels]) -> Sequence[Pixels]:
        return [center_crop_array(image, self.image_size) for image in images]

    def transform(self, collated: Sequence[Pixels]) -> Sequence[Pixels]:
        return collated

    def transform_stored(self, store: ImageStore, rows: NDArray[np.int64]) -> Sequence[Pixels]:
        return self.collate([store.image(row).numpy() for row in rows.tolist()])
