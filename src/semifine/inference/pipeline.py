"""From images to logits: decoding in threads, batches in order, bounded memory."""

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

from semifine.data.decode import Pixels, decode_array, orientation_of, to_rgb, turned
from semifine.data.parallel import map_in_order
from semifine.data.sources.scan import images_below
from semifine.errors import UserError
from semifine.inference.calibration import Logits
from semifine.inference.preprocess import Group, Preprocessor, decode_batches, several

ImageInput = str | Path | Image.Image | NDArray[np.uint8]


def gather_given(preprocessor: Preprocessor, images: Iterable[ImageInput]) -> Iterator[Group]:
    """Decoded and gathered, in order."""
    return decode_batches(images, partial(_decode, preprocessor), preprocessor)


def _decode(preprocessor: Preprocessor, image: ImageInput) -> Pixels | str:
    """The pixels that a view is made of, or the reason why there are none."""
    if isinstance(image, str | Path):
        return preprocessor.decode_file(str(image))
    try:
        if isinstance(image, Image.Image):
            image = np.asarray(turned(to_rgb(image), orientation_of(image)))
        pixels = np.asarray(image)
        return decode_array(pixels, preprocessor.known.stored_side).pixels
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__


STANDARD_INPUT = "-"


def some_files(paths: Sequence[str], separator: bytes = b"\n") -> Iterator[str]:
    """As ``find_files``, but at least one, and of paths that are there: a mistyped one is no unreadable image."""
    for path in paths:
        _check_exists(path)
    files = find_files(paths, separator)
    first = next(files, None)
    if first is None:
        places = ", ".join("standard input" if path == STANDARD_INPUT else path for path in paths)
        raise UserError(f"No images found in {places}.")
    return chain([first], files)


def _check_exists(path: str) -> None:
    """A link to something missing is there; whatever else is wrong with a path is said when it is read."""
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
    """The files that are meant, in the order given; of a folder all images in it and below, sorted.

    A file that does not exist is given back as well: reading it will say so.
    """
    for path in paths:
        if path == STANDARD_INPUT:
            yield from find_files(_names(sys.stdin.buffer, separator))
        elif os.path.isdir(path):
            found = images_below(Path(path), ".", with_closed=True)
            yield from (os.path.join(path, inside.removeprefix("./")) for inside in found)
        else:
            yield path


def _names(stream: BinaryIO, separator: bytes) -> Iterator[str]:
    """Names as they come, so that a long list is never held; a name may be of any bytes but the separator."""
    rest = b""
    while chunk := stream.read1(65536) if hasattr(stream, "read1") else stream.read(65536):
        *whole, rest = (rest + chunk).split(separator)
        yield from (_name(name) for name in whole if name.strip(b"\r"))
    if rest.strip(b"\r\n"):
        yield _name(rest)


def _name(raw: bytes) -> str:
    if b"\0" in raw:
        raise UserError("The names on standard input end with a NUL, as find -print0 writes them: add --null.")
    name = os.fsdecode(raw.removesuffix(b"\r"))
    if name == STANDARD_INPUT:
        raise UserError("Standard input names '-' among the files: write './-' for a file of that name.")
    return name


BATCH = 64
GROUPS_AHEAD = 8
"""Groups of decoded images whose views are under way."""
BATCHES_AHEAD = 2
"""Batches that the network may be ahead of what is made of their logits."""


class LogitBatch(NamedTuple):
    """Some images in their order: (n, K) logits of the readable ones, and why the others are not."""

    logits: Logits
    problems: dict[int, str]
    """By place in the batch."""
    size: int


def answer(
    network: Callable[[Sequence[Any]], Logits], preprocessor: Preprocessor, groups: Iterable[Group], batch: int = BATCH
) -> Iterator[LogitBatch]:
    """Batch after batch of images that were gathered in groups.

    One thread makes views, another runs the network, and the caller goes on with earlier logits meanwhile.
    """

    def look(group: Group) -> list[Any]:
        """The views of some images, and reasons in the place of those that have none."""
        views = iter(preprocessor.views(group.gathered))
        return [next(views) if reason is None else reason for reason in group.reasons]

    def ask(some: Sequence[Any]) -> LogitBatch:
        readable = [view for view in some if not isinstance(view, str)]
        nothing = np.zeros((0, len(preprocessor.known.class_names)), np.float32)
        problems = {place: view for place, view in enumerate(some) if isinstance(view, str)}
        return LogitBatch(network(readable) if readable else nothing, problems, len(some))

    views = chain.from_iterable(map_in_order(look, groups, workers=1, in_flight=GROUPS_AHEAD))
    return map_in_order(ask, several(views, batch), workers=1, in_flight=BATCHES_AHEAD)
