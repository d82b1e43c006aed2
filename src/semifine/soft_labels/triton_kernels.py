"""k-medoids as Triton kernels that never wait for the host.

The PyTorch version in ``clustering`` either synchronizes with the host after each round or runs all rounds. Here a flag
in device memory marks the rows (clusterings) that changed, and later rounds skip the other rows. Both versions return
the same integers.

Kernels run over (pairs or classes or clusters) x rows. Keys combine several criteria in one 64-bit integer, so that an
atomic maximum also resolves ties.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 1024
_NO_KEY = -1
_LIMIT = 1 << 20  # above the largest number of classes


class Pairs(NamedTuple):
    """Ordered pairs of classes, see ``similarity.list_pairs``; each (pairs,) int32."""

    source: Tensor
    target: Tensor
    similarity: Tensor
    """C[source, target] + C[target, source]."""
    term: Tensor
    """Term of the pair in the sum of ``source`` if both classes are in one cluster."""


class Rows(NamedTuple):
    """State of all rows (clusterings)."""

    medoids: Tensor
    """(rows, k_max) int32."""
    assignment: Tensor
    """(rows, num_classes) int32; a medoid is always in its own cluster."""
    k: Tensor
    """(rows,) int32."""
    nearest_key: Tensor
    """(rows, num_classes) int64 best key of each class."""
    sums: Tensor
    """(rows, num_classes) int32."""
    member_key: Tensor
    """(rows, k_max) int64 best key of each cluster."""
    is_active: Tensor
    """(max_rounds + 1, rows) int32: whether the medoids of the row changed before round r."""


def cluster(pairs: Pairs, medoids: Tensor, positions: Tensor, k: Tensor, num_classes: int, max_rounds: int) -> Rows:
    """Assigns and updates until no medoid changes; ``medoids``, ``positions`` and ``k`` as in ``MedoidRows``."""
    num_rows, k_max = medoids.shape
    classes = (num_rows, num_classes)
    rows = Rows(
        medoids=medoids.int(),
        assignment=medoids.new_zeros(classes, dtype=torch.int32).scatter_(1, medoids, positions.int()),
        k=k.view(-1).int(),
        nearest_key=medoids.new_full(classes, _NO_KEY, dtype=torch.int64),
        sums=medoids.new_zeros(classes, dtype=torch.int32),
        member_key=medoids.new_full((num_rows, k_max), _NO_KEY, dtype=torch.int64),
        is_active=medoids.new_zeros((max_rounds + 1, num_rows), dtype=torch.int32),
    )
    rows.is_active[0] = 1
    _assign(pairs, rows, rows.is_active[0])
    for active, active_next in zip(rows.is_active, rows.is_active[1:], strict=False):
        _update(pairs, rows, active, active_next)
        _assign(pairs, rows, active_next)
    return rows


def _assign(pairs: Pairs, rows: Rows, is_active: Tensor) -> None:
    """Assigns each class to its most similar medoid in active rows."""
    source, target, similarity, _ = pairs
    (num_rows, num_classes), k_max = rows.assignment.shape, rows.medoids.shape[1]
    state = (is_active, rows.medoids, rows.assignment, rows.nearest_key)
    _find_nearest[_grid(len(source), num_rows)](
        source, target, similarity, len(source), *state, num_classes, k_max, BLOCK=_BLOCK
    )
    _join_nearest[_grid(num_classes, num_rows)](*state, rows.sums, rows.member_key, num_classes, k_max, BLOCK=_BLOCK)


def _update(pairs: Pairs, rows: Rows, is_active: Tensor, is_active_next: Tensor) -> None:
    """Makes the best member of each cluster its medoid; marks the rows that changed in ``is_active_next``."""
    source, target, _, term = pairs
    (num_rows, num_classes), k_max = rows.assignment.shape, rows.medoids.shape[1]
    _sum_within[_grid(len(source), num_rows)](
        source, target, term, len(source), is_active, rows.assignment, rows.sums, num_classes, BLOCK=_BLOCK
    )
    _find_best_members[_grid(num_classes, num_rows)](
        is_active,
        rows.medoids,
        rows.assignment,
        rows.sums,
        rows.member_key,
        num_classes,
        k_max,
        LIMIT=_LIMIT,
        BLOCK=_BLOCK,
    )
    _replace_medoids[_grid(k_max, num_rows)](
        is_active, is_active_next, rows.medoids, rows.k, rows.member_key, k_max, LIMIT=_LIMIT, BLOCK=_BLOCK
    )


def _grid(length: int, num_rows: int) -> tuple[int, int]:
    return triton.cdiv(length, _BLOCK), num_rows


@triton.jit
def _find_nearest(
    source,
    target,
    similarity,
    num_pairs,
    is_active,
    medoids,
    assignment,
    nearest_key,
    num_classes,
    k_max,
    BLOCK: tl.constexpr,
):
    """nearest_key[source] = max over targets that are medoids of (similarity, earliest position)."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(is_active + row) == 0:
        return
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(similarity + pair, mask=pair < num_pairs, other=0)
    counts = value > 0
    candidate = tl.load(target + pair, mask=counts, other=0)
    # A class is a medoid if it is the medoid of its previous cluster.
    position = tl.load(assignment + row * num_classes + candidate, mask=counts, other=0)
    is_medoid = counts & (tl.load(medoids + row * k_max + position, mask=counts, other=-1) == candidate)
    key = value.to(tl.int64) * k_max + (k_max - 1 - position)
    tl.atomic_max(
        nearest_key + row * num_classes + tl.load(source + pair, mask=is_medoid, other=0), key, mask=is_medoid
    )


@triton.jit
def _join_nearest(
    is_active, medoids, assignment, nearest_key, sums, member_key, num_classes, k_max, BLOCK: tl.constexpr
):
    """Assigns each class except medoids to its nearest medoid, or to the first one if none is similar.

    Also resets keys and sums for the next round.
    """
    row = tl.program_id(1).to(tl.int64)
    if tl.load(is_active + row) == 0:
        return
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = column < num_classes
    cell = row * num_classes + column
    position = tl.load(assignment + cell, mask=exists, other=0)
    is_medoid = tl.load(medoids + row * k_max + position, mask=exists, other=-1) == column
    key = tl.load(nearest_key + cell, mask=exists, other=-1)
    joined = tl.where(key < 0, 0, k_max - 1 - key % k_max).to(tl.int32)
    tl.store(assignment + cell, tl.where(is_medoid, position, joined), mask=exists)
    tl.store(nearest_key + cell, tl.full((BLOCK,), -1, tl.int64), mask=exists)
    tl.store(sums + cell, tl.zeros((BLOCK,), tl.int32), mask=exists)
    tl.store(member_key + row * k_max + column, tl.full((BLOCK,), -1, tl.int64), mask=column < k_max)


@triton.jit
def _sum_within(source, target, term, num_pairs, is_active, assignment, sums, num_classes, BLOCK: tl.constexpr):
    """sums[source] += term for pairs within one cluster."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(is_active + row) == 0:
        return
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    added = tl.load(term + pair, mask=pair < num_pairs, other=0)
    counts = added > 0
    first = tl.load(source + pair, mask=counts, other=0)
    second = tl.load(target + pair, mask=counts, other=0)
    own = tl.load(assignment + row * num_classes + first, mask=counts, other=0)
    together = counts & (own == tl.load(assignment + row * num_classes + second, mask=counts, other=-1))
    tl.atomic_add(sums + row * num_classes + first, added, mask=together)


@triton.jit
def _find_best_members(
    is_active, medoids, assignment, sums, member_key, num_classes, k_max, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    """member_key[cluster] = max over members of (sum, is the current medoid, smallest class)."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(is_active + row) == 0:
        return
    column = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = column < num_classes
    position = tl.load(assignment + row * num_classes + column, mask=exists, other=0)
    total = tl.load(sums + row * num_classes + column, mask=exists, other=0).to(tl.int64)
    is_medoid = (tl.load(medoids + row * k_max + position, mask=exists, other=-1) == column).to(tl.int64)
    key = (total * 2 + is_medoid) * LIMIT + (LIMIT - 1 - column)
    tl.atomic_max(member_key + row * k_max + position, key, mask=exists)


@triton.jit
def _replace_medoids(
    is_active, is_active_next, medoids, k, member_key, k_max, LIMIT: tl.constexpr, BLOCK: tl.constexpr
):
    """Makes the best member of each cluster its medoid; the padding repeats the first."""
    row = tl.program_id(1).to(tl.int64)
    if tl.load(is_active + row) == 0:
        return
    position = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    exists = position < k_max
    is_cluster = position < tl.load(k + row)
    key = tl.load(member_key + row * k_max + tl.where(is_cluster, position, 0), mask=exists, other=0)
    winner = (LIMIT - 1 - key % LIMIT).to(tl.int32)
    before = tl.load(medoids + row * k_max + position, mask=exists, other=0)
    tl.store(medoids + row * k_max + position, winner, mask=exists)
    changed = (exists & is_cluster & (winner != before)).to(tl.int32)
    if tl.max(changed, axis=0) > 0:
        tl.store(is_active_next + row, 1)
