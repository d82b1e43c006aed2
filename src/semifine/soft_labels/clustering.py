"""k-medoids on class similarity, for many k at once.

The similarity of two classes is S(m, n) = (C[m, n] + C[n, m]) / 2. This module works on the integers
S2 = C + C^T = 2 S: halving or averaging changes no comparison, but floating-point rounding would flip ties.

One row per k: ``medoids`` (rows, k_max) lists each row's medoid classes, padded with -1; ``assignment`` (rows, K)
holds for each class the place of its medoid in that list.
"""

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from semifine.soft_labels.similarity import PAD, Form, MedoidRows, Similarity, list_links, padded_rows, read_similarity


def draw_medoids(sizes: Tensor, k_max: int, num_classes: int, seed: int, step: Tensor | int) -> Tensor:
    """k classes without replacement for each k in ``sizes``: those with the smallest hashes.

    A hash and no random generator: all ranks and devices draw the same classes at the same step without exchanging
    anything, inside a CUDA graph too, and a restart needs no generator state.
    Shapes: sizes (rows,) -> (rows, k_max), padded with -1.
    """
    classes = torch.arange(num_classes, device=sizes.device)
    key = hashed(seed, step, sizes.unsqueeze(1), classes) * num_classes + classes  # unique, so no ties
    order = key.argsort(dim=1)[:, :k_max]
    return order.masked_fill(torch.arange(k_max, device=sizes.device) >= sizes.unsqueeze(1), PAD)


def hashed(*values: Tensor | int) -> Tensor:
    """A 31-bit hash of several integers, the same on every device. Shapes: broadcast -> int64."""
    state: Tensor | int = 0
    for value in values:
        state = _mix(state + value)
    return torch.as_tensor(state)


def _mix(value: Tensor | int) -> Tensor | int:
    """Mix 31 bits (xor-shift and multiply); the products stay below 2^58, so nothing overflows."""
    value = value & 0x7FFFFFFF
    for _ in range(2):
        value = ((value ^ (value >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return value ^ (value >> 16)


# Beyond so many classes a GPU is better asked than kept busy, see ``may_host_look``.
_CLASSES_WORTH_A_WAIT = 512


class Clustering(NamedTuple):
    """One clustering of the classes per row."""

    medoids: Tensor
    """(rows, k_max) classes, padded with -1."""
    assignment: Tensor
    """(rows, K) place of each class's medoid in its row's list."""


@torch.no_grad()
def k_medoids(
    counts: Tensor,
    medoids: Tensor,
    *,
    directed_update: bool = False,
    stale_seeds: bool = False,
    tie_start: Tensor | None = None,
    max_rounds: int = 20,
    host_sync: bool | None = None,
    cells: Tensor | None = None,
    form: Form = "auto",
) -> Clustering:
    """Cluster the classes, starting from the given medoids, until no medoid moves (the paper's Algorithm 1).

    A round: every class that is no medoid joins its most similar medoid (ties: the first in the list), while
    a medoid stays in its own cluster; then each cluster's new medoid is the member with the largest sum of
    similarities to the members (ties: the current one, then the smallest class). The assignment that is returned
    is the one to the final medoids.

    Shapes: counts (K, K), integer C with zero diagonal, or a symmetric float64 similarity with zero diagonal;
    medoids (rows, k_max), distinct within a row, padded with -1 at the end; tie_start (rows, K).

    directed_update: the update sums C instead of C + C^T (quirk of the official code; may cycle until the cap).
    stale_seeds: in the end the *initial* medoids keep their seats and the final ones do not (another quirk).
    tie_start: ties go to the first tied medoid from this place of the list on, going round; None means place 0.
    max_rounds: the cap; 0 only assigns.
    host_sync: whether the host may look at values, to stop early and to drop rows that have settled; see
        ``may_host_look`` for the default. Without it all rounds run; settled rows do not change, so the result is
        the same.
    cells: for when the host may not look, (any,) places m * K + n among which all non-zero counts are, in any order and
        as often as may be; a negative one is none.
    form: how similarities are read, as a "dense" matrix or as the list of non-zero "pairs" (integers only), or both by
        the "kernels" of a GPU (without tie_start and stale_seeds); "auto" takes the cheapest. The result is the same.
    """
    rows = padded_rows(medoids, tie_start)
    may_look = may_host_look(counts.device, len(counts)) if host_sync is None else host_sync
    plain = tie_start is None and not stale_seeds and not counts.is_floating_point()
    if form == "kernels" or (form == "auto" and plain and host_sync is not True and has_kernels(counts.device)):
        return _settle_by_kernels(list_links(counts, directed_update, cells), rows, len(counts), max_rounds)
    similarity = read_similarity(counts, directed_update, may_look, cells, form)
    settle = _settle_looking if may_look else _settle
    final, assignment = settle(similarity, rows, max_rounds)
    if stale_seeds:
        assignment = similarity.nearest(rows._replace(medoids=final)).scatter_(1, rows.medoids, rows.places)
    return Clustering(final.masked_fill(rows.is_padding, PAD), assignment)


def may_host_look(device: torch.device, num_classes: int) -> bool:
    """Whether stopping early is worth a look of the host at the values, where the caller leaves it open.

    On a CPU it costs nothing. On a GPU the host would wait, so with some hundred classes all rounds run instead; with
    thousands of classes the rounds cost far more than the wait, unless the kernels know by themselves when to stop.
    A CUDA graph being captured allows no look.
    """
    if device.type == "cpu":
        return True
    if has_kernels(device):
        return False
    is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return num_classes > _CLASSES_WORTH_A_WAIT and not is_capturing


@functools.cache
def has_kernels(device: torch.device) -> bool:
    """Whether Triton is there, which compiles the kernels."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


def _settle_by_kernels(links: tuple[Tensor, ...], rows: MedoidRows, num_classes: int, max_rounds: int) -> Clustering:
    from semifine.soft_labels import triton_kernels

    found = triton_kernels.settle(
        triton_kernels.Links(*links), rows.medoids, rows.places, rows.k, num_classes, max_rounds
    )
    return Clustering(found.medoids.long().masked_fill(rows.is_padding, PAD), found.assignment.long())


def _assign(similarity: Similarity, rows: MedoidRows) -> Tensor:
    """(rows, K) each class to its most similar medoid, each medoid to itself."""
    return similarity.nearest(rows).scatter_(1, rows.medoids, rows.places)


def _update(similarity: Similarity, rows: MedoidRows, assignment: Tensor) -> MedoidRows:
    """Each cluster's best member becomes its medoid."""
    medoids = best_members(similarity.sum_within(assignment), assignment, rows.medoids)
    return rows._replace(medoids=torch.where(rows.is_padding, medoids[:, :1], medoids))


def _settle(similarity: Similarity, rows: MedoidRows, max_rounds: int) -> tuple[Tensor, Tensor]:
    """All rounds, because nobody may look whether they are needed; a settled row stays as it is."""
    assignment = _assign(similarity, rows)
    for _ in range(max_rounds):
        rows = _update(similarity, rows, assignment)
        assignment = _assign(similarity, rows)
    return rows.medoids, assignment


def _settle_looking(similarity: Similarity, rows: MedoidRows, max_rounds: int) -> tuple[Tensor, Tensor]:
    """The same, with work only for the rows that still move."""
    medoids, assignment = rows.medoids.clone(), _assign(similarity, rows)
    moving = torch.arange(len(medoids), device=medoids.device)
    for _ in range(max_rounds):
        updated = _update(similarity, rows, assignment.index_select(0, moving))
        has_moved = (updated.medoids != rows.medoids).any(dim=1).nonzero().squeeze(1)
        if has_moved.numel() == 0:
            break
        moving, rows = moving.index_select(0, has_moved), updated.at(has_moved)
        medoids.index_copy_(0, moving, rows.medoids)
        assignment.index_copy_(0, moving, _assign(similarity, rows))
    return medoids, assignment


def best_members(sums: Tensor, assignment: Tensor, medoids: Tensor) -> Tensor:
    """The member of each cluster with the largest sum; ties keep the current medoid, then take the smallest class.

    Shapes: sums (rows, K), assignment (rows, K), medoids (rows, k_max), each in its own cluster -> (rows, k_max).
    """
    num_classes = sums.shape[1]
    sum_of_current = sums.gather(1, medoids)
    best = sum_of_current.scatter_reduce(1, assignment, sums, "amax")
    is_best = sums == best.gather(1, assignment)
    classes = torch.where(is_best, torch.arange(num_classes, device=sums.device), num_classes)
    smallest = torch.full_like(medoids, num_classes).scatter_reduce_(1, assignment, classes, "amin")
    return torch.where(sum_of_current == best, medoids, smallest)


def unlinked_assignment(medoids: Tensor, num_classes: int, tie_start: Tensor | None = None) -> Tensor:
    """What ``k_medoids`` gives while no transition was counted: all classes but the medoids tie.

    Shapes: medoids (rows, k_max), tie_start (rows, K) -> (rows, K).
    """
    rows = padded_rows(medoids, tie_start)
    joined = torch.zeros((len(medoids), num_classes), dtype=torch.int64) if tie_start is None else tie_start.clone()
    return joined.scatter_(1, rows.medoids, rows.places)


def objective(counts: Tensor, clustering: Clustering) -> Tensor:
    """2 F: the sum over all classes of S2(class, its medoid), where a medoid adds 0.

    Shapes: counts (K, K) -> (rows,).
    """
    medoids, assignment = (part.long() for part in clustering)
    own_medoid = medoids.gather(1, assignment)
    classes = torch.arange(len(counts), device=counts.device).expand_as(own_medoid)
    return (counts[classes, own_medoid] + counts[own_medoid, classes]).sum(dim=1)


def cluster_classes(
    counts: Tensor,
    k: int,
    restarts: int = 10,
    generator: torch.Generator | None = None,
    max_rounds: int = 100,
) -> Tensor:
    """Cluster the classes into k groups, for analysis: the best objective of several random starts.

    Shapes: counts (K, K), integers or a symmetric float64 similarity, with zero diagonal -> (K,) each class's cluster.
    ``generator`` must be one of the CPU, so that the starts are the same on every device.
    """
    num_classes = len(counts)
    if not 1 <= k <= num_classes:
        raise ValueError(f"k must lie in 1..{num_classes}, got {k}.")
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, got {restarts}.")
    starts = torch.stack([torch.randperm(num_classes, generator=generator)[:k] for _ in range(restarts)])
    found = k_medoids(counts, starts.to(counts.device), max_rounds=max_rounds, host_sync=True)
    return found.assignment[objective(counts, found).argmax()]
