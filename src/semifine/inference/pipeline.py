"""From files to logits, in order: decoding in threads, batches for the network, bounded memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from semifine.data.decode import Pixels, apply_orientation, decode_array, exif_orientation
from semifine.data.image_files import find_images
from semifine.data.parallel import map_in_order
from semifine.data.rgb import to_rgb
from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.inference.preprocess import DecodedGroup, Preprocessor, batched, decode_batches

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


def decode_inputs(preprocessor: Preprocessor, images: Iterable[ImageInput]) -> Iterator[DecodedGroup]:
    """Decodes paths, Pillow images and arrays in order."""
    return decode_batches(images, partial(_decode_input, preprocessor), preprocessor)


def _decode_input(preprocessor: Preprocessor, image: ImageInput) -> Pixels | str:
    if isinstance(image, str | Path):
        return preprocessor.decode_file(str(image))
    try:
        if isinstance(image, Image.Image):
            image = np.asarray(apply_orientation(to_rgb(image), exif_orientation(image)))
        return decode_array(np.asarray(image), preprocessor.stored_side).pixels
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__


STANDARD_INPUT = "-"


def list_files(paths: Sequence[str], separator: bytes = b"\n") -> Iterator[str]:
    """The files of ``find_files``.

    Raises:
        UserError: If a path does not exist, or no image is found.
    """
    for path in paths:
        _check_exists(path)
    files = find_files(paths, separator)
    first = next(files, None)
    if first is None:
        places = ", ".join("standard input" if path == STANDARD_INPUT else path for path in paths)
        raise UserError(f"No images found in {places}.")
    return chain([first], files)


def _check_exists(path: str) -> None:
    """Accepts broken links and paths without permission: reading them reports what is wrong."""
    try:
        if path != STANDARD_INPUT:
            os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(
            f"{path or 'An empty PATH'} does not exist; 'semifine predict --help' says what a PATH can be."
        ) from None
    except OSError:
        pass


def find_files(paths: Iterable[str], separator: bytes = b"\n") -> Iterator[str]:
    """Files in the given order; a folder stands for all images in it and below, sorted.

    A file that does not exist is included, because reading it reports the error.

    Args:
        paths: Files, folders, or ``-`` for names on standard input.
        separator: Byte between names on standard input.
    """
    for path in paths:
        if path == STANDARD_INPUT:
            yield from find_files(_read_names(sys.stdin.buffer, separator))
        elif os.path.isdir(path):
            found = find_images(Path(path), ".", keep_unreadable_folders=True)
            yield from (os.path.join(path, inside.removeprefix("./")) for inside in found)
        else:
            yield path


def _read_names(stream: BinaryIO, separator: bytes) -> Iterator[str]:
    """Yields names while they arrive; a name may contain any bytes except the separator."""
    rest = b""
    while chunk := stream.read1(65536) if hasattr(stream, "read1") else stream.read(65536):
        *complete, rest = (rest + chunk).split(separator)
        yield from (_decode_name(name) for name in complete if name.strip(b"\r"))
    if rest.strip(b"\r\n"):
        yield _decode_name(rest)


def _decode_name(raw: bytes) -> str:
    if b"\0" in raw:
        raise UserError("The names on standard input end with a NUL, as find -print0 writes them: add --null.")
    name = os.fsdecode(raw.removesuffix(b"\r"))
    if name == STANDARD_INPUT:
        raise UserError("Standard input names '-' among the files: write './-' for a file of that name.")
    return name


BATCH_SIZE = 64
MAX_GROUPS_AHEAD = 8
"""Number of decoded groups that are transformed ahead of the network."""
MAX_BATCHES_AHEAD = 2
"""Number of batches that the network is ahead of the caller."""


class LogitBatch(NamedTuple):
    """Logits of consecutive images."""

    logits: Logits
    """Logits of the readable images ``(n, K)``."""
    errors: dict[int, str]
    """Why an image cannot be read, by its position in the batch."""
    size: int
    """Number of images, with the unreadable ones."""


def run_inference(
    network: Callable[[Sequence[Any]], Logits],
    preprocessor: Preprocessor,
    groups: Iterable[DecodedGroup],
    num_classes: int,
    batch_size: int = BATCH_SIZE,
) -> Iterator[LogitBatch]:
    """Runs a network over decoded images, in order.

    One thread transforms images and another runs the network while the caller processes earlier logits.

    Args:
        network: Maps transformed images to logits ``(n, K)``.
        preprocessor: Transforms the groups.
        groups: Groups of decoded images.
        num_classes: K.
        batch_size: Number of images in a batch.
    """

    def transform(group: DecodedGroup) -> list[Any]:
        """The transformed images of a group, with a reason in the place of each unreadable image."""
        images = iter(preprocessor.transform(group.images))
        return [next(images) if error is None else error for error in group.errors]

    def predict(batch: Sequence[Any]) -> LogitBatch:
        readable = [image for image in batch if not isinstance(image, str)]
        errors = {index: image for index, image in enumerate(batch) if isinstance(image, str)}
        logits = network(readable) if readable else np.zeros((0, num_classes), np.float32)
        return LogitBatch(logits, errors, len(batch))

    images = chain.from_iterable(map_in_order(transform, groups, workers=1, in_flight=MAX_GROUPS_AHEAD))
    return map_in_order(predict, batched(images, batch_size), workers=1, in_flight=MAX_BATCHES_AHEAD)
