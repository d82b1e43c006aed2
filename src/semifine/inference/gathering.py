"""Images decoded by threads, some at a time. Needs numpy and Pillow alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from PIL import Image

from semifine.data.in_order import map_in_order, usable_cores
from semifine.data.reading import Pixels

if TYPE_CHECKING:
    from semifine.inference.sight import Sight

ItemT = TypeVar("ItemT")


class Group(NamedTuple):
    """Some images: the readable ones gathered, and of each why it is not among them, if so."""

    gathered: Any
    reasons: Sequence[str | None]


def gather_items(
    items: Iterable[ItemT], decode: Callable[[ItemT], Pixels | str], sight: Sight, workers: int | None = None
) -> Iterator[Group]:
    """Items of any kind, in order; ``decode`` gives one's pixels, or the reason why there are none."""
    Image.init()  # loads Pillow's formats once, before threads could meet over it

    def gathered(some: Sequence[ItemT]) -> Group:
        decoded = [decode(item) for item in some]
        reasons = [pixels if isinstance(pixels, str) else None for pixels in decoded]
        return Group(sight.gather([pixels for pixels in decoded if not isinstance(pixels, str)]), reasons)

    at_work = workers or usable_cores()
    return map_in_order(gathered, several(items, sight.together), at_work, in_flight=2 * at_work)


def several(items: Iterable[ItemT], count: int) -> Iterator[list[ItemT]]:
    """Lists of that many items; the last may be shorter."""
    rest = iter(items)
    while some := list(islice(rest, count)):
        yield some
