"""Representations of class similarity for k-medoids: a dense matrix, or the list of non-zero counts."""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

PAD = -1

Form = Literal["auto", "dense", "pairs", "kernels"]

# Rows are processed in chunks with about this many intermediate elements, which fit into a CPU cache or fill a GPU.
_CHUNK_ELEMENTS_CPU = 1 << 20
_CHUNK_ELEMENTS_GPU = 1 << 24

# Reading a pair from the list takes about as long as reading this many elements of the matrix.
_PAIR_COST = 10

# A key below every similarity; the sum of two of them fits into 64 bits.
_EXCLUDED = -(1 << 61)


class MedoidRows(NamedTuple):
    """Medoid lists in which the padding repeats the first medoid and its position.

    No masks are needed: the first medoid wins ties against its repetitions, and writing its position again changes
    nothing.
    """

    medoids: Tensor
    """(rows, k_max)."""
    positions: Tensor
    """(rows, k_max) 0, 1, 2, …, and 0 in the padding."""
    is_padding: Tensor
    """(rows, k_max)."""
    k: Tensor
    """(rows, 1)."""
    tie_start: Tensor | None
    """(rows, K)."""

    def select(self, index: Tensor) -> "MedoidRows":
        """Returns the rows at the given indices."""
        return MedoidRows(
            self.medoids.index_select(0, index),
            self.positions.index_select(0, index),
            self.is_padding.index_select(0, index),
            self.k.index_select(0, index),
            None if self.tie_start is None else self.tie_start.index_select(0, index),
        )


def pad_rows(medoids: Tensor, tie_start: Tensor | None) -> MedoidRows:
    """Replaces the padding -1 of medoid lists. Shapes: medoids (rows, k_max), tie_start (rows, K)."""
    is_padding = medoids == PAD
    positions = torch.arange(medoids.shape[1], device=medoids.device).expand_as(medoids).masked_fill(is_padding, 0)
    repeated = torch.where(is_padding, medoids[:, :1], medoids).long()
    return MedoidRows(repeated, positions, is_padding, (~is_padding).sum(dim=1, keepdim=True), tie_start)


class Similarity(Protocol):
    """The two operations of k-medoids."""

    def nearest_medoid(self, rows: MedoidRows) -> Tensor:
        """Returns (rows, K) position of the most similar medoid of each class; a medoid has similarity 0 to itself."""

    def sum_within_clusters(self, assignment: Tensor) -> Tensor:
        """Returns (rows, K) sum of the similarities of each class to the members of its cluster."""


def create_similarity(
    counts: Tensor, directed_update: bool, host_sync: bool, candidate_pairs: Tensor | None, form: Form
) -> Similarity:
    """Creates the representation ``form`` of a similarity, see :func:`~semifine.soft_labels.clustering.k_medoids`."""
    if form == "auto":
        form = _cheaper_form(counts, host_sync, candidate_pairs)
    if form == "dense":
        return DenseSimilarity(counts, directed_update)
    pairs = counts.nonzero() if host_sync else _unique_pairs(counts, candidate_pairs)
    return PairSimilarity(counts, pairs, directed_update)


def _cheaper_form(counts: Tensor, host_sync: bool, candidate_pairs: Tensor | None) -> Form:
    if counts.is_floating_point():
        return "dense"
    num_pairs = int(counts.count_nonzero()) if host_sync else _num_candidates(counts, candidate_pairs)
    return "pairs" if num_pairs * _PAIR_COST < counts.numel() else "dense"


def _num_candidates(counts: Tensor, candidate_pairs: Tensor | None) -> int:
    return counts.numel() if candidate_pairs is None else candidate_pairs.numel()


def _unique_pairs(counts: Tensor, candidate_pairs: Tensor | None) -> Tensor:
    """Returns (P, 2) each candidate pair once; repetitions and negative codes become elements of the diagonal.

    The diagonal is zero. Its elements are used in turn, because many atomic additions to one address are slow on a GPU.
    """
    num_classes = len(counts)
    if candidate_pairs is None:
        candidate_pairs = torch.arange(counts.numel(), device=counts.device)
    ordered = candidate_pairs.sort().values
    is_ignored = ordered < 0
    is_ignored[1:] |= ordered[1:] == ordered[:-1]
    diagonal = torch.arange(len(ordered), device=counts.device).remainder(num_classes)
    code = torch.where(is_ignored, diagonal * (num_classes + 1), ordered)
    return torch.stack([code // num_classes, code % num_classes], dim=1)


def list_pairs(
    counts: Tensor, directed_update: bool, candidate_pairs: Tensor | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Lists ordered pairs of classes for the Triton kernels.

    Each pair with a non-zero similarity occurs once, or as two entries that add up; other pairs may occur.

    Returns:
        Source class, target class, similarity (C + C^T), and the term of the pair in the sum of the source class;
        each (pairs,) int32.
    """
    num_classes = len(counts)
    if 2 * _num_candidates(counts, candidate_pairs) >= counts.numel():
        symmetric = (counts + counts.t()).view(-1)
        code = torch.arange(counts.numel(), device=counts.device, dtype=torch.int32)
        term = counts.view(-1) if directed_update else symmetric
        return code // num_classes, code % num_classes, symmetric, term
    pairs = PairSimilarity(counts, _unique_pairs(counts, candidate_pairs), directed_update)
    return pairs.source.int(), pairs.target.int(), pairs.symmetric, pairs.term


def _row_chunks(num_rows: int, elements_per_row: int, device: torch.device) -> list[slice]:
    budget = _CHUNK_ELEMENTS_CPU if device.type == "cpu" else _CHUNK_ELEMENTS_GPU
    step = max(1, budget // max(1, elements_per_row))
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def _concatenate(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class DenseSimilarity:
    """Reads the K x K matrix for each row; fastest for a few hundred classes."""

    def __init__(self, counts: Tensor, directed_update: bool) -> None:
        self.symmetric = counts + counts.t()
        self.term = counts if directed_update else self.symmetric
        self.zero = counts.new_zeros(())

    def nearest_medoid(self, rows: MedoidRows) -> Tensor:
        num_rows, k_max = rows.medoids.shape
        num_classes = len(self.symmetric)
        nearest = []
        for chunk in _row_chunks(num_rows, k_max * num_classes, rows.medoids.device):
            # The matrix is symmetric: rows, which are contiguous, replace the columns of the medoids.
            similarity = self.symmetric.index_select(0, rows.medoids[chunk].view(-1)).view(-1, k_max, num_classes)
            if rows.tie_start is None:
                nearest.append(similarity.max(dim=1).indices)  # the first of equal values
            else:
                nearest.append(_first_from(similarity, rows.k[chunk], rows.tie_start[chunk]))
        return _concatenate(nearest)

    def sum_within_clusters(self, assignment: Tensor) -> Tensor:
        num_rows, num_classes = assignment.shape
        sums = []
        for chunk in _row_chunks(num_rows, num_classes**2, assignment.device):
            together = assignment[chunk].unsqueeze(2) == assignment[chunk].unsqueeze(1)
            sums.append(torch.where(together, self.term, self.zero).sum(dim=2, dtype=self.term.dtype))
        return _concatenate(sums)


def _first_from(similarity: Tensor, k: Tensor, tie_start: Tensor) -> Tensor:
    """Returns the position of the most similar medoid; ties: the first from ``tie_start`` on, cyclically.

    Shapes: similarity (rows, k_max, K), k (rows, 1), tie_start (rows, K) -> (rows, K).
    """
    k_max = similarity.shape[1]
    k = k.unsqueeze(2)
    positions = torch.arange(k_max, device=similarity.device).view(1, -1, 1)
    tie_rank = (positions - tie_start.unsqueeze(1)).remainder(k)
    loses = (positions >= k) | (similarity != similarity.amax(dim=1, keepdim=True))
    return tie_rank.masked_fill(loses, k_max).min(dim=1).indices


class PairSimilarity:
    """Reads the list of non-zero counts for each row; time and memory grow with the transitions, not with K^2."""

    def __init__(self, counts: Tensor, pairs: Tensor, directed_update: bool) -> None:
        """Shapes: counts (K, K) integers; pairs (P, 2), each non-zero element once, and any diagonal elements."""
        source, target = pairs.unbind(dim=1)
        count = counts[source, target]
        symmetric = count + counts[target, source]
        # Each count is listed for both classes. Two classes with transitions in both directions are therefore listed
        # twice, which does not change a maximum; sums add the single counts.
        self.num_classes = len(counts)
        self.source = torch.cat([source, target])
        self.target = torch.cat([target, source])
        self.symmetric = torch.cat([symmetric, symmetric])
        self.term = torch.cat([count, torch.zeros_like(count) if directed_update else count])
        self.zero = counts.new_zeros(())

    def nearest_medoid(self, rows: MedoidRows) -> Tensor:
        num_rows, k_max = rows.medoids.shape
        not_a_medoid = rows.medoids.new_full((num_rows, self.num_classes), -_EXCLUDED)
        position = not_a_medoid.scatter_(1, rows.medoids, rows.positions)
        # The key orders by similarity first and by tie rank second.
        first_key = (self.symmetric.long() * k_max + (k_max - 1)).masked_fill_(self.symmetric == 0, _EXCLUDED)
        nearest = []
        for chunk in _row_chunks(num_rows, len(self.source), position.device):
            source = self.source.expand(len(position[chunk]), -1)
            tie_rank = position[chunk].gather(1, self.target.expand_as(source))
            if rows.tie_start is not None:
                cyclic = (tie_rank - rows.tie_start[chunk].gather(1, source)).remainder(rows.k[chunk])
                tie_rank = torch.where(tie_rank == -_EXCLUDED, tie_rank, cyclic)
            best = torch.full_like(position[chunk], -1).scatter_reduce_(1, source, first_key - tie_rank, "amax")
            # Without a similar medoid all medoids tie at similarity 0, and the first of the tie order wins.
            winner = (k_max - 1 - best.remainder(k_max)).masked_fill_(best < 0, 0)
            if rows.tie_start is not None:
                winner = (rows.tie_start[chunk] + winner).remainder(rows.k[chunk])
            nearest.append(winner)
        return _concatenate(nearest)

    def sum_within_clusters(self, assignment: Tensor) -> Tensor:
        cluster = assignment.int()  # halves the memory traffic
        sums = []
        for chunk in _row_chunks(len(cluster), len(self.source), cluster.device):
            source = self.source.expand(len(cluster[chunk]), -1)
            together = cluster[chunk].gather(1, source) == cluster[chunk].gather(1, self.target.expand_as(source))
            term = torch.where(together, self.term, self.zero)
            sums.append(term.new_zeros(cluster[chunk].shape).scatter_add_(1, source, term))
        return _concatenate(sums)
