"""From any number of images to their logits, in order and in bounded memory. Needs numpy and Pillow alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image

from semifine.data.in_order import InOrder, map_in_order, usable_cores
from semifine.inference.calibration import Logits
from semifine.inference.sight import Sight
from semifine.inference.view import Pixels

BATCH = 64
GROUPS_AHEAD = 2
"""Groups of decoded images whose views are under way."""
BATCHES_AHEAD = 2
"""Batches that the network may be ahead of what is made of their logits."""

ItemT = TypeVar("ItemT")


class Answered(NamedTuple):
    """Some images in their order: (n, K) logits of the readable ones, and why the others are not."""

    logits: Logits
    problems: dict[int, str]
    """By place in the batch."""
    size: int


def answer(
    network: Callable[[Sequence[Any]], Logits],
    sight: Sight,
    items: Iterable[ItemT],
    decode: Callable[[ItemT], Pixels | str],
    batch: int = BATCH,
    workers: int | None = None,
    in_order: InOrder = map_in_order,
) -> Iterator[Answered]:
    """Batch after batch; ``decode`` gives an item's pixels, or the reason why it cannot.

    ``in_order`` has all cores decode, one thread makes views, another runs the network, and the caller goes on with
    earlier logits.
    """
    Image.init()  # loads Pillow's formats once, before threads could meet over it

    def gather(some: Sequence[ItemT]) -> tuple[Any, list[str | None]]:
        """Some items decoded; and of each the reason why it is not among them, if so."""
        decoded = [decode(item) for item in some]
        readable = [pixels for pixels in decoded if not isinstance(pixels, str)]
        return sight.gather(readable), [pixels if isinstance(pixels, str) else None for pixels in decoded]

    def look(gathered: tuple[Any, list[str | None]]) -> list[Any]:
        """The views of some items, and reasons in the place of those that have none."""
        views = iter(sight.views(gathered[0]))
        return [next(views) if reason is None else reason for reason in gathered[1]]

    def ask(some: Sequence[Any]) -> Answered:
        readable = [view for view in some if not isinstance(view, str)]
        nothing = np.zeros((0, len(sight.known.class_names)), np.float32)
        problems = {place: view for place, view in enumerate(some) if isinstance(view, str)}
        return Answered(network(readable) if readable else nothing, problems, len(some))

    groups = _several(items, min(sight.together, batch))
    gathered = in_order(gather, groups, workers or usable_cores())
    views = chain.from_iterable(map_in_order(look, gathered, workers=1, in_flight=GROUPS_AHEAD))
    return map_in_order(ask, _several(views, batch), workers=1, in_flight=BATCHES_AHEAD)


def _several(items: Iterable[ItemT], count: int) -> Iterator[list[ItemT]]:
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some
