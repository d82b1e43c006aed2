"""Decoding all images of a catalog, in parallel and in bounded memory."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.catalog import Catalog, ImageReader, SubsetReader
from semifine.data.in_order import map_in_order
from semifine.data.perceptual_hash import SIDE, Hash, perceptual_hash
from semifine.data.reading import DIGEST_BYTES, Decoded, FileReader, decode_array, problem_in_words


@dataclass(eq=False)
class Columns:
    """What is known of each row besides its pixels."""

    offset: NDArray[np.int64]
    height: NDArray[np.int32]
    width: NDArray[np.int32]
    readable: NDArray[np.bool_]
    original_size: NDArray[np.int32]
    digest: NDArray[np.uint8]
    checksum: NDArray[np.uint32]
    look: Hash
    reasons: dict[int, str] = field(default_factory=dict)

    @classmethod
    def empty(cls, rows: int) -> Columns:
        return cls(
            offset=np.zeros(rows, np.int64),
            height=np.zeros(rows, np.int32),
            width=np.zeros(rows, np.int32),
            readable=np.zeros(rows, np.bool_),
            original_size=np.zeros((rows, 2), np.int32),
            digest=np.zeros((rows, DIGEST_BYTES), np.uint8),
            checksum=np.zeros(rows, np.uint32),
            look=np.zeros((rows, SIDE), np.uint16),
        )


def decode_all(
    catalog: Catalog,
    size: int,
    write: Callable[[NDArray[np.uint8]], object],
    progress: Callable[[int, int], None] | None,
    workers: int,
) -> Columns:
    """Decodes every row, hands the pixels to ``write`` in catalog order, and returns the columns."""
    Image.init()  # loads Pillow's formats once, before threads could meet over it
    columns = Columns.empty(len(catalog))
    offset = 0
    for row, result in enumerate(_decoded(catalog, size, workers)):
        columns.offset[row] = offset
        if isinstance(result, str):
            columns.reasons[row] = result
        else:
            image, columns.look[row] = result
            _fill(columns, row, image)
            write(image.pixels)
            offset += image.pixels.size
        if progress is not None:
            progress(row + 1, len(catalog))
    return columns


def _fill(columns: Columns, row: int, image: Decoded) -> None:
    columns.height[row], columns.width[row] = image.pixels.shape[:2]
    columns.readable[row] = True
    columns.original_size[row] = image.original_height, image.original_width
    columns.digest[row] = np.frombuffer(image.digest, np.uint8)
    columns.checksum[row] = zlib.crc32(image.pixels.data)


def _decoded(catalog: Catalog, size: int, workers: int) -> Iterator[tuple[Decoded, Hash] | str]:
    """Each row's image and what it looks like, or the reason why there is none."""

    def decode(row: int) -> tuple[Decoded, Hash] | str:
        image = try_decode(catalog.reader, row, size)
        return image if isinstance(image, str) else (image, perceptual_hash(image.pixels))

    return map_in_order(decode, range(len(catalog)), workers)


def try_decode(reader: ImageReader, row: int, size: int) -> Decoded | str:
    """The image of a row, or the reason why it cannot be read."""
    if isinstance(reader, SubsetReader):
        return try_decode(reader.base, int(reader.rows[row]), size)
    try:
        if isinstance(reader, FileReader):
            return reader.decode(row, size)
        return decode_array(reader.read(row), size)
    except (OSError, ValueError) as error:
        return problem_in_words(error)
