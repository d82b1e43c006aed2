"""How well two partitions of the same things agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence


def adjusted_rand_index(first: Sequence[Hashable], second: Sequence[Hashable]) -> float:
    """1 for the same partition, about 0 for chance, below 0 for less than chance (Hubert and Arabie, 1985).

    ARI = (I - E) / (M - E), where I counts the pairs that lie together in both partitions, a and b those of
    each one, T all pairs, E = a b / T and M = (a + b) / 2. Labels are names only: any hashable value will do.
    """
    if len(first) != len(second):
        raise ValueError(f"Both partitions must label the same things, got {len(first)} and {len(second)} labels.")
    together = _pairs_together(zip(first, second, strict=True))
    in_first, in_second = _pairs_together(first), _pairs_together(second)
    total = len(first) * (len(first) - 1) // 2
    # Multiplied by 2 T, so that everything but the last division is exact.
    above_chance = 2 * (total * together - in_first * in_second)
    largest = total * (in_first + in_second) - 2 * in_first * in_second
    # Zero only where both are one block or both are all singletons: then they are the same partition.
    return above_chance / largest if largest else 1.0


def _pairs_together(labels: Iterable[Hashable]) -> int:
    """How many pairs of things carry the same label."""
    return sum(size * (size - 1) // 2 for size in Counter(labels).values())
