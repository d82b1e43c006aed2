"""From any number of images to their logits, in order and in bounded memory. Needs numpy and Pillow alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

from semifine.data.in_order import map_in_order
from semifine.inference.calibration import Logits
from semifine.inference.gathering import Group, several
from semifine.inference.sight import Sight

BATCH = 64
GROUPS_AHEAD = 8
"""Groups of decoded images whose views are under way."""
BATCHES_AHEAD = 2
"""Batches that the network may be ahead of what is made of their logits."""


class Answered(NamedTuple):
    """Some images in their order: (n, K) logits of the readable ones, and why the others are not."""

    logits: Logits
    problems: dict[int, str]
    """By place in the batch."""
    size: int


def answer(
    network: Callable[[Sequence[Any]], Logits], sight: Sight, groups: Iterable[Group], batch: int = BATCH
) -> Iterator[Answered]:
    """Batch after batch of images that were gathered in groups.

    One thread makes views, another runs the network, and the caller goes on with earlier logits meanwhile.
    """

    def look(group: Group) -> list[Any]:
        """The views of some images, and reasons in the place of those that have none."""
        views = iter(sight.views(group.gathered))
        return [next(views) if reason is None else reason for reason in group.reasons]

    def ask(some: Sequence[Any]) -> Answered:
        readable = [view for view in some if not isinstance(view, str)]
        nothing = np.zeros((0, len(sight.known.class_names)), np.float32)
        problems = {place: view for place, view in enumerate(some) if isinstance(view, str)}
        return Answered(network(readable) if readable else nothing, problems, len(some))

    views = chain.from_iterable(map_in_order(look, groups, workers=1, in_flight=GROUPS_AHEAD))
    return map_in_order(ask, several(views, batch), workers=1, in_flight=BATCHES_AHEAD)
