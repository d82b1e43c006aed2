"""k-medoids on class similarity, for many k at once.

The similarity of two classes is S(m, n) = (C[m, n] + C[n, m]) / 2. This module works on the integers
S2 = C + C^T = 2 S: halving or averaging changes no comparison, but floating-point rounding would flip ties.

One row per k: ``medoids`` (rows, k_max) lists each row's medoid classes, padded with -1; ``assignment`` (rows, K)
holds for each class the place of its medoid in that list.
"""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

PAD = -1

Form = Literal["auto", "dense", "pairs"]

# Rows are processed in chunks of about this many intermediate elements, which bounds the memory: few enough for
# the cache of a CPU, enough to fill a GPU.
_CHUNK_ELEMENTS_CPU = 1 << 20
_CHUNK_ELEMENTS_GPU = 1 << 24

# Reading a pair from the list costs about as much as sweeping over this many cells of the matrix.
_PAIR_COST_IN_CELLS = 10

# Beyond so many classes a GPU is better asked than kept busy, see ``may_host_look``.
_CLASSES_WORTH_A_WAIT = 512

# A key so low that no similarity makes up for it; the sum of two of them still fits 64 bits.
_NEVER = -(1 << 61)


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
    max_pairs: int | None = None,
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
    max_pairs: an upper bound of the number of non-zero counts, for when the host may not look.
    form: how similarities are read, as a "dense" matrix or as the list of non-zero "pairs" (integers only); "auto"
        takes the cheaper one. The result is the same.
    """
    may_look = may_host_look(counts.device, len(counts)) if host_sync is None else host_sync
    similarity = _similarity(counts, directed_update, may_look, max_pairs, form)
    rows = _padded_rows(medoids, tie_start)
    settle = _settle_looking if may_look else _settle
    final, assignment = settle(similarity, rows, max_rounds)
    if stale_seeds:
        assignment = similarity.nearest(rows._replace(medoids=final)).scatter_(1, rows.medoids, rows.places)
    return Clustering(final.masked_fill(rows.is_padding, PAD), assignment)


def may_host_look(device: torch.device, num_classes: int) -> bool:
    """Whether stopping early is worth a look of the host at the values, where the caller leaves it open.

    On a CPU it costs nothing. On a GPU the host would wait, so with some hundred classes all rounds run instead; with
    thousands of classes the rounds cost far more than the wait. A CUDA graph being captured allows no look.
    """
    if device.type == "cpu":
        return True
    is_capturing = device.type == "cuda" and torch.cuda.is_current_stream_capturing()
    return num_classes > _CLASSES_WORTH_A_WAIT and not is_capturing


class _Rows(NamedTuple):
    """Medoid lists whose padding repeats the first medoid, and its place.

    So the padding needs no masks: the first wins ties against its repetitions, and writing its place again changes
    nothing.
    """

    medoids: Tensor  # (rows, k_max)
    places: Tensor  # (rows, k_max) 0, 1, 2, …, and 0 in the padding
    is_padding: Tensor  # (rows, k_max)
    k: Tensor  # (rows, 1)
    tie_start: Tensor | None  # (rows, K)

    def at(self, index: Tensor) -> "_Rows":
        """Some of the rows."""

        def some(part: Tensor) -> Tensor:
            return part.index_select(0, index)

        ties = None if self.tie_start is None else some(self.tie_start)
        return _Rows(some(self.medoids), some(self.places), some(self.is_padding), some(self.k), ties)


def _padded_rows(medoids: Tensor, tie_start: Tensor | None) -> _Rows:
    is_padding = medoids == PAD
    places = torch.arange(medoids.shape[1], device=medoids.device).expand_as(medoids).masked_fill(is_padding, 0)
    repeated = torch.where(is_padding, medoids[:, :1], medoids).long()
    return _Rows(repeated, places, is_padding, (~is_padding).sum(dim=1, keepdim=True), tie_start)


def _assign(similarity: "_Similarity", rows: _Rows) -> Tensor:
    """(rows, K) each class to its most similar medoid, each medoid to itself."""
    return similarity.nearest(rows).scatter_(1, rows.medoids, rows.places)


def _update(similarity: "_Similarity", rows: _Rows, assignment: Tensor) -> _Rows:
    """Each cluster's best member becomes its medoid."""
    medoids = best_members(similarity.sum_within(assignment), assignment, rows.medoids)
    return rows._replace(medoids=torch.where(rows.is_padding, medoids[:, :1], medoids))


def _settle(similarity: "_Similarity", rows: _Rows, max_rounds: int) -> tuple[Tensor, Tensor]:
    """All rounds, because nobody may look whether they are needed; a settled row stays as it is."""
    assignment = _assign(similarity, rows)
    for _ in range(max_rounds):
        rows = _update(similarity, rows, assignment)
        assignment = _assign(similarity, rows)
    return rows.medoids, assignment


def _settle_looking(similarity: "_Similarity", rows: _Rows, max_rounds: int) -> tuple[Tensor, Tensor]:
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
    rows = _padded_rows(medoids, tie_start)
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


class _Similarity(Protocol):
    """The two questions that k-medoids asks."""

    def nearest(self, rows: _Rows) -> Tensor:
        """(rows, K) place of the medoid that each class is most similar to, a medoid too (which is 0 to itself)."""

    def sum_within(self, assignment: Tensor) -> Tensor:
        """(rows, K) sum of each class's similarities to the members of its cluster."""


def _similarity(
    counts: Tensor, directed_update: bool, may_look: bool, max_pairs: int | None, form: Form
) -> _Similarity:
    bound = counts.numel() if max_pairs is None else min(max_pairs, counts.numel())
    if form == "auto":
        form = _cheaper_form(counts, may_look, bound)
    if form == "dense":
        return _DenseSimilarity(counts, directed_update)
    pairs = counts.nonzero() if may_look else _padded_nonzero(counts, bound)
    return _PairSimilarity(counts, pairs, directed_update)


def _cheaper_form(counts: Tensor, may_look: bool, bound: int) -> Form:
    if counts.is_floating_point():
        return "dense"
    num_pairs = int(counts.count_nonzero()) if may_look else bound
    return "pairs" if num_pairs * _PAIR_COST_IN_CELLS < counts.numel() else "dense"


def _padded_nonzero(counts: Tensor, size: int) -> Tensor:
    """(size, 2) the non-zero cells, then cells of the diagonal, which counts nothing.

    All of the diagonal in turn: thousands of additions to one and the same place would hold up a GPU.
    """
    pairs = torch.nonzero_static(counts, size=size, fill_value=PAD)
    diagonal = torch.arange(size, device=counts.device).remainder(len(counts)).unsqueeze(1)
    return torch.where(pairs == PAD, diagonal, pairs)


def _row_chunks(num_rows: int, elements_per_row: int, device: torch.device) -> list[slice]:
    budget = _CHUNK_ELEMENTS_CPU if device.type == "cpu" else _CHUNK_ELEMENTS_GPU
    step = max(1, budget // max(1, elements_per_row))
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class _DenseSimilarity:
    """Sweeps over the K x K matrix for each row: best while K is some hundreds."""

    def __init__(self, counts: Tensor, directed_update: bool) -> None:
        self.both_ways = counts + counts.t()
        self.summed = counts if directed_update else self.both_ways
        self.zero = counts.new_zeros(())

    def nearest(self, rows: _Rows) -> Tensor:
        num_rows, k_max = rows.medoids.shape
        num_classes = len(self.both_ways)
        places = []
        for chunk in _row_chunks(num_rows, k_max * num_classes, rows.medoids.device):
            # S2 is symmetric: the medoids' columns are their rows, which lie together in memory.
            similarity = self.both_ways.index_select(0, rows.medoids[chunk].view(-1)).view(-1, k_max, num_classes)
            if rows.tie_start is None:
                places.append(similarity.max(dim=1).indices)  # of equal values, the first
            else:
                places.append(_first_from(similarity, rows.k[chunk], rows.tie_start[chunk]))
        return _join(places)

    def sum_within(self, assignment: Tensor) -> Tensor:
        num_rows, num_classes = assignment.shape
        sums = []
        for chunk in _row_chunks(num_rows, num_classes**2, assignment.device):
            together = assignment[chunk].unsqueeze(2) == assignment[chunk].unsqueeze(1)
            sums.append(torch.where(together, self.summed, self.zero).sum(dim=2, dtype=self.summed.dtype))
        return _join(sums)


def _first_from(similarity: Tensor, k: Tensor, tie_start: Tensor) -> Tensor:
    """Place of the most similar medoid; ties: the first from ``tie_start`` on, going round the list.

    Shapes: similarity (rows, k_max, K), k (rows, 1), tie_start (rows, K) -> (rows, K).
    """
    k_max = similarity.shape[1]
    k = k.unsqueeze(2)
    places = torch.arange(k_max, device=similarity.device).view(1, -1, 1)
    lateness = (places - tie_start.unsqueeze(1)).remainder(k)
    loses = (places >= k) | (similarity != similarity.amax(dim=1, keepdim=True))
    return lateness.masked_fill(loses, k_max).min(dim=1).indices


class _PairSimilarity:
    """Reads the list of non-zero counts for each row: time and memory follow the transitions, not K^2."""

    def __init__(self, counts: Tensor, pairs: Tensor, directed_update: bool) -> None:
        """Shapes: counts (K, K) integers; pairs (P, 2), each non-zero cell once, those of the diagonal ad libitum."""
        source, target = pairs.unbind(dim=1)
        count = counts[source, target]
        both_ways = count + counts[target, source]
        # Each count is seen from both of its ends. Two classes that change both ways are listed twice, which
        # a maximum does not notice, and which a sum of the single counts needs.
        self.num_classes = len(counts)
        self.here = torch.cat([source, target])
        self.there = torch.cat([target, source])
        self.both_ways = torch.cat([both_ways, both_ways])
        self.summed = torch.cat([count, torch.zeros_like(count) if directed_update else count])
        self.zero = counts.new_zeros(())

    def nearest(self, rows: _Rows) -> Tensor:
        num_rows, k_max = rows.medoids.shape
        nowhere = rows.medoids.new_full((num_rows, self.num_classes), -_NEVER)
        place = nowhere.scatter_(1, rows.medoids, rows.places)
        # A key has the similarity in its high digits, and the earliness in the tie order in its low one.
        earliest = (self.both_ways.long() * k_max + (k_max - 1)).masked_fill_(self.both_ways == 0, _NEVER)
        places = []
        for chunk in _row_chunks(num_rows, len(self.here), place.device):
            here = self.here.expand(len(place[chunk]), -1)
            lateness = place[chunk].gather(1, self.there.expand_as(here))
            if rows.tie_start is not None:
                around = (lateness - rows.tie_start[chunk].gather(1, here)).remainder(rows.k[chunk])
                lateness = torch.where(lateness == -_NEVER, lateness, around)
            best = torch.full_like(place[chunk], -1).scatter_reduce_(1, here, earliest - lateness, "amax")
            # Without a similar medoid all of them tie at similarity 0, and the first of the tie order wins.
            winner = (k_max - 1 - best.remainder(k_max)).masked_fill_(best < 0, 0)
            if rows.tie_start is not None:
                winner = (rows.tie_start[chunk] + winner).remainder(rows.k[chunk])
            places.append(winner)
        return _join(places)

    def sum_within(self, assignment: Tensor) -> Tensor:
        cluster = assignment.int()  # halves the reading
        sums = []
        for chunk in _row_chunks(len(cluster), len(self.here), cluster.device):
            here = self.here.expand(len(cluster[chunk]), -1)
            together = cluster[chunk].gather(1, here) == cluster[chunk].gather(1, self.there.expand_as(here))
            amount = torch.where(together, self.summed, self.zero)
            sums.append(amount.new_zeros(cluster[chunk].shape).scatter_add_(1, here, amount))
        return _join(sums)
