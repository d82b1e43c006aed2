"""k-medoids as Triton kernels: a GPU clusters without ever waiting for the host.

The torch version in ``clustering`` either asks the host after each round whether a row still moves, or runs all
rounds in full. Here a row that has settled says so in device memory, and the kernels of its later rounds return at
once. The result is the same, integer for integer.

Similarities come as links: (here, there, similarity, amount) for each ordered pair of classes, those without
transitions ad libitum. Kernels run over (links or classes or places) x rows; keys put several criteria into one
64-bit integer, so that an atomic maximum settles ties as well.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_NO_KEY = -1
_LIMIT = 1 << 20  # more than there can be classes


class Links(NamedTuple):
    """Ordered pairs of classes, each (links,) int32."""

    here: Tensor
    there: Tensor
    similarity: Tensor
    """C[here, there] + C[there, here]"""
    amount: Tensor
    """what the pair adds to the sum of ``here`` when both are in one cluster"""


class Rows(NamedTuple):
    """The state of all rows (clusterings) while they settle."""

    medoids: Tensor  # (rows, k_max) int32
    assignment: Tensor  # (rows, K) int32, a medoid always at its own place
    k: Tensor  # (rows,) int32
    nearest: Tensor  # (rows, K) int64 best key of each class
    sums: Tensor  # (rows, K) int32
    votes: Tensor  # (rows, k_max) int64 best key of each cluster
    moves: Tensor  # (max_rounds + 1, rows) int32: whether round r has anything to do


def settle(links: Links, medoids: Tensor, places: Tensor, k: Tensor, num_classes: int, max_rounds: int) -> Rows:
    """Assigns and updates until no medoid moves. ``medoids`` and ``places`` are those of ``MedoidRows``."""
    num_rows, k_max = medoids.shape
    classes = (num_rows, num_classes)
    rows = Rows(
        medoids=medoids.int(),
        assignment=medoids.new_zeros(classes, dtype=torch.int32).scatter_(1, medoids, places.int()),
        k=k.view(-1).int(),
        nearest=medoids.new_full(classes, _NO_KEY, dtype=torch.int64),
        sums=medoids.new_zeros(classes, dtype=torch.int32),
        votes=medoids.new_full((num_rows, k_max), _NO_KEY, dtype=torch.int64),
        moves=medoids.new_zeros((max_rounds + 1, num_rows), dtype=torch.int32),
    )
    rows.moves[0] = 1
    _assign(links, rows, rows.moves[0])
    for done, after in zip(rows.moves, rows.moves[1:], strict=False):
        _update(links, rows, done, after)
        _assign(links, rows, after)
    return rows


def _assign(links: Links, rows: Rows, moves: Tensor) -> None:
    """Each class to its most similar medoid, where the row moves."""
    here, there, similarity, _ = links
    (num_rows, num_classes), k_max = rows.assignment.shape, rows.medoids.shape[1]
    seats = (moves, rows.medoids, rows.assignment, rows.nearest)
    _find_nearest[_grid(len(here), num_rows)](
        here, there, similarity, len(here), *seats, num_classes, k_max, BLOCK=_BLOCK
    )
    _join_nearest[_grid(num_classes, num_rows)](*seats, rows.sums, rows.votes, num_classes, k_max, BLOCK=_BLOCK)


def _update(links: Links, rows: Rows, moves: Tensor, moves_on: Tensor) -> None:
    """Each cluster's best member becomes its medoid; ``moves_on`` learns which rows that changed."""
    here, there, _, amount = links
    (num_rows, num_classes), k_max = rows.assignment.shape, rows.medoids.shape[1]
    _sum_within[_grid(len(here), num_rows)](
        here, there, amount, len(here), moves, rows.assignment, rows.sums, num_classes, BLOCK=_BLOCK
    )
    _vote[_grid(num_classes, num_rows)](
        moves, rows.medoids, rows.assignment, rows.sums, rows.votes, num_classes, k_max, LIMIT=_LIMIT, BLOCK=_BLOCK
    )
    _seat[_grid(k_max, num_rows)](moves, moves_on, rows.medoids, rows.k, rows.votes, k_max, LIMIT=_LIMIT, BLOCK=_BLOCK)


def _grid(length: int, num_rows: int) -> tuple[int, int]:
    return triton.cdiv(length, _BLOCK), num_rows


@triton.jit
def _find_nearest(
    here, there, similarity, num_links, moves, medoids, assignment, nearest, K, k_max, BLOCK: tl.constexpr
):
    """nearest[here] = max over medoids ``there`` of (similarity, earliness in the list)."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(moves + row) == 0:
        return
    link = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    alike = tl.load(similarity + link, mask=link < num_links, other=0)
    counts = alike > 0
    candidate = tl.load(there + link, mask=counts, other=0)
    # A class is a medoid when it is the medoid of the cluster that it was in.
    place = tl.load(assignment + row * K + candidate, mask=counts, other=0)
    is_medoid = counts & (tl.load(medoids + row * k_max + place, mask=counts, other=-1) == candidate)
    key = alike.to(tl.int64) * k_max + (k_max - 1 - place)
    tl.atomic_max(nearest + row * K + tl.load(here + link, mask=is_medoid, other=0), key, mask=is_medoid)


@triton.jit
def _join_nearest(moves, medoids, assignment, nearest, sums, votes, K, k_max, BLOCK: tl.constexpr):
    """A medoid stays, another class joins its nearest medoid, or the first one where none is alike.

    Also clears what the next round adds up.
    """
    row = tl.program_id(1).to(tl.int64)
    if tl.load(moves + row) == 0:
        return
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = column < K
    cell = row * K + column
    place = tl.load(assignment + cell, mask=exists, other=0)
    is_medoid = tl.load(medoids + row * k_max + place, mask=exists, other=-1) == column
    key = tl.load(nearest + cell, mask=exists, other=-1)
    joined = tl.where(key < 0, 0, k_max - 1 - key % k_max).to(tl.int32)
    tl.store(assignment + cell, tl.where(is_medoid, place, joined), mask=exists)
    tl.store(nearest + cell, tl.full((BLOCK,), -1, tl.int64), mask=exists)
    tl.store(sums + cell, tl.zeros((BLOCK,), tl.int32), mask=exists)
    tl.store(votes + row * k_max + column, tl.full((BLOCK,), -1, tl.int64), mask=column < k_max)


@triton.jit
def _sum_within(here, there, amount, num_links, moves, assignment, sums, K, BLOCK: tl.constexpr):
    """sums[here] += amount where both classes are in one cluster."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(moves + row) == 0:
        return
    link = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    added = tl.load(amount + link, mask=link < num_links, other=0)
    counts = added > 0
    one = tl.load(here + link, mask=counts, other=0)
    other = tl.load(there + link, mask=counts, other=0)
    own = tl.load(assignment + row * K + one, mask=counts, other=0)
    together = counts & (own == tl.load(assignment + row * K + other, mask=counts, other=-1))
    tl.atomic_add(sums + row * K + one, added, mask=together)


@triton.jit
def _vote(moves, medoids, assignment, sums, votes, K, k_max, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """votes[cluster] = max over members of (sum, being the medoid now, smallness of the class)."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(moves + row) == 0:
        return
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = column < K
    place = tl.load(assignment + row * K + column, mask=exists, other=0)
    total = tl.load(sums + row * K + column, mask=exists, other=0).to(tl.int64)
    is_medoid = (tl.load(medoids + row * k_max + place, mask=exists, other=-1) == column).to(tl.int64)
    key = (total * 2 + is_medoid) * LIMIT + (LIMIT - 1 - column)
    tl.atomic_max(votes + row * k_max + place, key, mask=exists)


@triton.jit
def _seat(moves, moves_on, medoids, k, votes, k_max, LIMIT: tl.constexpr, BLOCK: tl.constexpr):
    """Each cluster's winner becomes its medoid; the padding repeats the first."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(moves + row) == 0:
        return
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = place < k_max
    is_cluster = place < tl.load(k + row)
    key = tl.load(votes + row * k_max + tl.where(is_cluster, place, 0), mask=exists, other=0)
    winner = (LIMIT - 1 - key % LIMIT).to(tl.int32)
    before = tl.load(medoids + row * k_max + place, mask=exists, other=0)
    tl.store(medoids + row * k_max + place, winner, mask=exists)
    changed = (exists & is_cluster & (winner != before)).to(tl.int32)
    if tl.max(changed, axis=0) > 0:
        tl.store(moves_on + row, 1)
