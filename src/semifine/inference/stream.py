"""From any number of images to their logits, in order and in bounded memory. Needs numpy and Pillow alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image

from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.reading import Decoded
from semifine.inference.calibration import Logits
from semifine.inference.knowledge import Knowledge
from semifine.inference.view import Pixels, central_view

BATCH = 64

ItemT = TypeVar("ItemT")


class Answered(NamedTuple):
    """Some images in their order: (n, K) logits of the readable ones, and why the others are not."""

    logits: Logits
    problems: dict[int, str]
    """By place in the batch."""
    size: int


def answer(
    network: Callable[[Pixels], Logits],
    known: Knowledge,
    items: Iterable[ItemT],
    decode: Callable[[ItemT, int], Decoded | str],
    batch: int = BATCH,
    workers: int | None = None,
) -> Iterator[Answered]:
    """Batch after batch; ``decode`` gives an item's image of a wanted shorter side, or the reason why it cannot."""
    Image.init()  # loads Pillow's formats once, before threads could meet over it

    def view(item: ItemT) -> Pixels | str:
        decoded = decode(item, known.stored_side)
        return decoded if isinstance(decoded, str) else central_view(decoded.pixels, known.image_size)

    views = map_in_order(view, items, workers or usable_cores())
    while some := list(islice(views, batch)):
        readable = [view for view in some if not isinstance(view, str)]
        logits = network(np.stack(readable)) if readable else np.zeros((0, len(known.class_names)), np.float32)
        yield Answered(logits, {i: view for i, view in enumerate(some) if isinstance(view, str)}, len(some))
