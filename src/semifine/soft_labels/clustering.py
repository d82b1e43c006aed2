"""k-medoids clustering of classes by their similarity, for many k at once.

The similarity of two classes is S(m, n) = (C[m, n] + C[n, m]) / 2. This module uses the integers C + C^T = 2 S: the
factor does not change the result, and integers have no rounding errors that break ties.

Each k has a row: ``medoids`` (rows, k_max) contains the medoid classes, padded with -1, and ``assignment`` (rows, K)
the cluster of each class, which is the index of its medoid in the row.
"""

import functools
import importlib.util
from typing import NamedTuple

import torch
from torch import Tensor

from semifine.soft_labels.similarity import PAD, Form, MedoidRows, Similarity, create_similarity, list_pairs, pad_rows

MAX_ROUNDS = 20
"""Default number of rounds after which k-medoids stops."""
_UNROLLED_ROUNDS = 64
"""Largest number of rounds without ``host_sync``. Enough to converge or to find a cycle, see :class:`_Cycles`."""
_MIN_CLASSES_FOR_SYNC = 512
"""With more classes on a GPU without Triton, the rounds cost more than waiting for the GPU."""


def draw_medoids(sizes: Tensor, k_max: int, num_classes: int, seed: int, step: Tensor | int) -> Tensor:
    """Draws k classes without replacement for each k in ``sizes``: the classes with the smallest hashes.

    With hashes instead of a random generator, all ranks and devices draw the same classes at the same step without
    communication, also in a CUDA graph, and a checkpoint needs no generator state.
    Shapes: sizes (rows,) -> (rows, k_max), padded with -1.
    """
    classes = torch.arange(num_classes, device=sizes.device)
    key = hash_integers(seed, step, sizes.unsqueeze(1), classes) * num_classes + classes  # unique, so no ties
    order = key.argsort(dim=1)[:, :k_max]
    return order.masked_fill(torch.arange(k_max, device=sizes.device) >= sizes.unsqueeze(1), PAD)


def hash_integers(*values: Tensor | int) -> Tensor:
    """Hashes several integers to 31 bits, identically on all devices. Shapes: broadcast -> int64."""
    state: Tensor | int = 0
    for value in values:
        state = _mix(state + value)
    return torch.as_tensor(state)


def _mix(value: Tensor | int) -> Tensor | int:
    """Mixes 31 bits by xor-shift and multiplication; products stay below 2^58 and do not overflow."""
    value = value & 0x7FFFFFFF
    for _ in range(2):
        value = ((value ^ (value >> 16)) * 0x45D9F3B) & 0x7FFFFFFF
    return value ^ (value >> 16)


class Clustering(NamedTuple):
    """One clustering of the classes per row.

    Example:
        >>> clustering = Clustering(torch.tensor([[0, 2]]), torch.tensor([[0, 0, 1]]))
        >>> clustering.medoids.gather(1, clustering.assignment).tolist()  # the medoid of each class
        [[0, 0, 2]]
    """

    medoids: Tensor
    """(rows, k_max) classes, padded with -1."""
    assignment: Tensor
    """(rows, K) cluster of each class: the index of its medoid in the row."""


@torch.no_grad()
def k_medoids(
    counts: Tensor,
    medoids: Tensor,
    *,
    directed_update: bool = False,
    stale_seeds: bool = False,
    tie_start: Tensor | None = None,
    max_rounds: int = MAX_ROUNDS,
    host_sync: bool | None = None,
    candidate_pairs: Tensor | None = None,
    form: Form = "auto",
) -> Clustering:
    """Clusters the classes from the given medoids until no medoid changes (Algorithm 1 of the paper).

    In each round, every other class joins its most similar medoid (ties: the first in the list). Then the new medoid of
    each cluster is the member with the largest sum of similarities to the members (ties: the current medoid, then the
    smallest class). The returned assignment belongs to the final medoids.

    Args:
        counts: (K, K) integer C with zero diagonal, or a symmetric float64 similarity with zero diagonal.
        medoids: (rows, k_max) initial medoids, distinct within a row, padded with -1 at the end.
        directed_update: The update sums C instead of C + C^T, as in the official code. The medoids may then cycle. The
            result is their state after ``max_rounds`` rounds; most of them are not computed.
        stale_seeds: In the returned assignment, the initial medoids stay in their clusters and the final ones are
            assigned like other classes, as in the official code.
        tie_start: (rows, K) index in the list at which the search for the first tied medoid starts, cyclically.
            Default: 0.
        max_rounds: Largest number of rounds; 0 only assigns.
        host_sync: Whether the host may wait for values of the device, to stop early and to skip rows that have
            converged. Otherwise all rounds run, at most 64, with the same result unless a cycle is longer. Default: see
            :func:`default_host_sync`.
        candidate_pairs: (any,) codes m * K + n that include all non-zero counts, in any order, possibly repeated;
            negative codes are ignored. Used without ``host_sync``.
        form: Representation of the similarity: a "dense" matrix, the non-zero "pairs" (integers only), or the Triton
            "kernels" (without ``tie_start`` and ``stale_seeds``). "auto" takes the fastest. The result is the same.

    Example::

        >>> counts = torch.tensor([[0, 5, 0, 0], [4, 0, 1, 0], [0, 0, 0, 7], [0, 0, 6, 0]])
        >>> k_medoids(counts, torch.tensor([[0, 2]])).assignment
        tensor([[0, 0, 1, 1]])
    """
    rows = pad_rows(medoids, tie_start)
    sync = default_host_sync(counts.device, len(counts)) if host_sync is None else host_sync
    is_plain = tie_start is None and not stale_seeds and not counts.is_floating_point()
    kernels_apply = is_plain and max_rounds <= _UNROLLED_ROUNDS
    if form == "kernels" or (form == "auto" and kernels_apply and host_sync is not True and has_triton(counts.device)):
        from semifine.soft_labels import triton_kernels  # optional: imports Triton

        pairs = triton_kernels.Pairs(*list_pairs(counts, directed_update, candidate_pairs))
        found = triton_kernels.cluster(pairs, rows.medoids, rows.positions, rows.k, len(counts), max_rounds)
        return Clustering(found.medoids.long().masked_fill(rows.is_padding, PAD), found.assignment.long())
    similarity = create_similarity(counts, directed_update, sync, candidate_pairs, form)
    final, assignment = _iterate(similarity, rows, max_rounds, sync, may_cycle=directed_update)
    if stale_seeds:
        nearest = similarity.nearest_medoid(rows._replace(medoids=final))
        assignment = nearest.scatter_(1, rows.medoids, rows.positions)
    return Clustering(final.masked_fill(rows.is_padding, PAD), assignment)


def default_host_sync(device: torch.device, num_classes: int) -> bool:
    """Returns the default of ``host_sync``: whether k-medoids waits for values of the device to stop early.

    Waiting costs nothing on a CPU. On a GPU, the Triton kernels stop early without the host. Without Triton, it is
    faster to run all rounds than to wait if there are few classes, and CUDA graphs do not allow synchronization.
    """
    if device.type == "cpu":
        return True
    if has_triton(device):
        return False
    is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return num_classes > _MIN_CLASSES_FOR_SYNC and not is_capturing


@functools.cache
def has_triton(device: torch.device) -> bool:
    """Returns whether Triton kernels can run on the device."""
    return device.type == "cuda" and importlib.util.find_spec("triton") is not None


class _Cycles:
    """Finds the last round of each row by Brent's cycle detection: then it has the medoids of round ``max_rounds``.

    A round is a function of the medoids alone, so medoids that occur again repeat the rounds in between. The medoids of
    each round are compared with the medoids of one earlier round, whose number is a power of two.
    """

    def __init__(self, medoids: Tensor, max_rounds: int) -> None:
        self.max_rounds = max_rounds
        self.last_round = torch.full((len(medoids),), max_rounds, device=medoids.device)
        self.earlier = medoids
        self.earlier_round = 0

    def observe(self, number: int, medoids: Tensor) -> None:
        """Compares the medoids after a round. Shapes: medoids (rows, k_max)."""
        length = number - self.earlier_round
        last_round = number + (self.max_rounds - number) % length
        occurred = (medoids == self.earlier).all(dim=1)
        self.last_round = torch.where(occurred, self.last_round.clamp_max(last_round), self.last_round)
        if number & (number - 1) == 0:
            self.earlier, self.earlier_round = medoids, number

    def select(self, index: Tensor) -> None:
        """Keeps the rows at the given indices."""
        self.last_round = self.last_round.index_select(0, index)
        self.earlier = self.earlier.index_select(0, index)


def _iterate(
    similarity: Similarity, rows: MedoidRows, max_rounds: int, host_sync: bool, *, may_cycle: bool
) -> tuple[Tensor, Tensor]:
    """Runs the rounds; returns medoids and assignment of all rows. Rows that have converged do not change."""
    cycles = _Cycles(rows.medoids, max_rounds) if may_cycle else None
    medoids, assignment = rows.medoids.clone(), _assign(similarity, rows)
    active = torch.arange(len(medoids), device=medoids.device)
    for number in range(1, 1 + (max_rounds if host_sync else min(max_rounds, _UNROLLED_ROUNDS))):
        updated = _update(similarity, rows, assignment.index_select(0, active))
        is_running = torch.ones_like(active, dtype=torch.bool) if cycles is None else cycles.last_round >= number
        if host_sync:
            changed = ((updated.medoids != rows.medoids).any(dim=1) & is_running).nonzero().squeeze(1)
            if changed.numel() == 0:
                break
            active, updated = active.index_select(0, changed), updated.select(changed)
            if cycles is not None:
                cycles.select(changed)
        elif cycles is not None:
            updated = updated._replace(medoids=torch.where(is_running.unsqueeze(1), updated.medoids, rows.medoids))
        rows = updated
        if cycles is not None:
            cycles.observe(number, rows.medoids)
        medoids.index_copy_(0, active, rows.medoids)
        assignment.index_copy_(0, active, _assign(similarity, rows))
    return medoids, assignment


def _assign(similarity: Similarity, rows: MedoidRows) -> Tensor:
    """Assigns each class to its most similar medoid, each medoid to itself. Shapes: -> (rows, K)."""
    return similarity.nearest_medoid(rows).scatter_(1, rows.medoids, rows.positions)


def _update(similarity: Similarity, rows: MedoidRows, assignment: Tensor) -> MedoidRows:
    """Makes the best member of each cluster its medoid."""
    medoids = best_members(similarity.sum_within_clusters(assignment), assignment, rows.medoids)
    return rows._replace(medoids=torch.where(rows.is_padding, medoids[:, :1], medoids))


def best_members(sums: Tensor, assignment: Tensor, medoids: Tensor) -> Tensor:
    """Returns the member of each cluster with the largest sum; ties: the current medoid, then the smallest class.

    Shapes: sums (rows, K), assignment (rows, K), medoids (rows, k_max), each in its own cluster -> (rows, k_max).
    """
    num_classes = sums.shape[1]
    sum_of_current = sums.gather(1, medoids)
    best = sum_of_current.scatter_reduce(1, assignment, sums, "amax")
    is_best = sums == best.gather(1, assignment)
    classes = torch.where(is_best, torch.arange(num_classes, device=sums.device), num_classes)
    smallest = torch.full_like(medoids, num_classes).scatter_reduce_(1, assignment, classes, "amin")
    return torch.where(sum_of_current == best, medoids, smallest)


def initial_assignment(medoids: Tensor, num_classes: int, tie_start: Tensor | None = None) -> Tensor:
    """Returns the assignment of ``k_medoids`` for counts of zero: all classes except the medoids tie.

    Shapes: medoids (rows, k_max), tie_start (rows, K) -> (rows, K).
    """
    rows = pad_rows(medoids, tie_start)
    joined = torch.zeros((len(medoids), num_classes), dtype=torch.int64) if tie_start is None else tie_start.clone()
    return joined.scatter_(1, rows.medoids, rows.positions)


def objective(counts: Tensor, clustering: Clustering) -> Tensor:
    """Twice the objective of the paper: the sum over all classes of (C + C^T)[class, its medoid].

    Shapes: counts (K, K) -> (rows,).

    Example:
        >>> counts = torch.tensor([[0, 3, 0], [1, 0, 0], [0, 0, 0]])
        >>> objective(counts, Clustering(torch.tensor([[0, 2]]), torch.tensor([[0, 0, 1]]))).tolist()
        [4]
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
    """Clusters the classes into k groups for analysis: the best objective of several random starts.

    Args:
        counts: (K, K) integers, or a symmetric float64 similarity, with zero diagonal.
        k: Number of clusters.
        restarts: Number of random starts.
        generator: Generator on the CPU, so that the starts are the same on every device.
        max_rounds: Largest number of rounds per start.

    Returns:
        (K,) cluster of each class.

    Example::

        >>> counts = torch.block_diag(*[torch.ones(3, 3).int().fill_diagonal_(0)] * 2)
        >>> cluster_classes(counts, k=2, generator=torch.Generator().manual_seed(0)).bincount()
        tensor([3, 3])
    """
    num_classes = len(counts)
    if not 1 <= k <= num_classes:
        raise ValueError(f"k must be between 1 and {num_classes}, got {k}.")
    if restarts < 1:
        raise ValueError(f"restarts must be at least 1, got {restarts}.")
    starts = torch.stack([torch.randperm(num_classes, generator=generator)[:k] for _ in range(restarts)])
    found = k_medoids(counts, starts.to(counts.device), max_rounds=max_rounds, host_sync=True)
    return found.assignment[objective(counts, found).argmax()]
