"""How k-medoids reads the similarity of classes: as a dense matrix, or as the list of its non-zero counts."""

from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor

PAD = -1

Form = Literal["auto", "dense", "pairs", "kernels"]

# Rows are processed in chunks of about this many intermediate elements, which bounds the memory: few enough for
# the cache of a CPU, enough to fill a GPU.
_CHUNK_ELEMENTS_CPU = 1 << 20
_CHUNK_ELEMENTS_GPU = 1 << 24

# Reading a pair from the list costs about as much as sweeping over this many cells of the matrix.
_PAIR_COST_IN_CELLS = 10

# A key so low that no similarity makes up for it; the sum of two of them still fits 64 bits.
_NEVER = -(1 << 61)


class MedoidRows(NamedTuple):
    """Medoid lists whose padding repeats the first medoid, and its place.

    So the padding needs no masks: the first wins ties against its repetitions, and writing its place again changes
    nothing.
    """

    medoids: Tensor  # (rows, k_max)
    places: Tensor  # (rows, k_max) 0, 1, 2, …, and 0 in the padding
    is_padding: Tensor  # (rows, k_max)
    k: Tensor  # (rows, 1)
    tie_start: Tensor | None  # (rows, K)

    def at(self, index: Tensor) -> "MedoidRows":
        """Some of the rows."""

        def some(part: Tensor) -> Tensor:
            return part.index_select(0, index)

        ties = None if self.tie_start is None else some(self.tie_start)
        return MedoidRows(some(self.medoids), some(self.places), some(self.is_padding), some(self.k), ties)


def padded_rows(medoids: Tensor, tie_start: Tensor | None) -> MedoidRows:
    is_padding = medoids == PAD
    places = torch.arange(medoids.shape[1], device=medoids.device).expand_as(medoids).masked_fill(is_padding, 0)
    repeated = torch.where(is_padding, medoids[:, :1], medoids).long()
    return MedoidRows(repeated, places, is_padding, (~is_padding).sum(dim=1, keepdim=True), tie_start)


class Similarity(Protocol):
    """The two questions that k-medoids asks."""

    def nearest(self, rows: MedoidRows) -> Tensor:
        """(rows, K) place of the medoid that each class is most similar to, a medoid too (which is 0 to itself)."""

    def sum_within(self, assignment: Tensor) -> Tensor:
        """(rows, K) sum of each class's similarities to the members of its cluster."""


def read_similarity(
    counts: Tensor, directed_update: bool, may_look: bool, cells: Tensor | None, form: Form
) -> Similarity:
    if form == "auto":
        form = _cheaper_form(counts, may_look, cells)
    if form == "dense":
        return DenseSimilarity(counts, directed_update)
    pairs = counts.nonzero() if may_look else _listed_pairs(counts, cells)
    return PairSimilarity(counts, pairs, directed_update)


def _cheaper_form(counts: Tensor, may_look: bool, cells: Tensor | None) -> Form:
    if counts.is_floating_point():
        return "dense"
    num_pairs = int(counts.count_nonzero()) if may_look else _length(counts, cells)
    return "pairs" if num_pairs * _PAIR_COST_IN_CELLS < counts.numel() else "dense"


def _length(counts: Tensor, cells: Tensor | None) -> int:
    return counts.numel() if cells is None else cells.numel()


def _listed_pairs(counts: Tensor, cells: Tensor | None) -> Tensor:
    """(P, 2) each listed cell once, and in the place of its repetitions and of no cell, cells of the diagonal.

    The diagonal counts nothing. All of it in turn: thousands of additions to one and the same place would hold up
    a GPU.
    """
    num_classes = len(counts)
    if cells is None:
        cells = torch.arange(counts.numel(), device=counts.device)
    ordered = cells.sort().values
    is_spare = ordered < 0
    is_spare[1:] |= ordered[1:] == ordered[:-1]
    diagonal = torch.arange(len(ordered), device=counts.device).remainder(num_classes)
    cell = torch.where(is_spare, diagonal * (num_classes + 1), ordered)
    return torch.stack([cell // num_classes, cell % num_classes], dim=1)


def list_links(counts: Tensor, directed_update: bool, cells: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Ordered pairs of classes (here, there), their similarity, and what they add to the sum of ``here``; all int32.

    Each pair that changes occurs, once or as two halves; pairs that do not change may occur, too.
    """
    num_classes = len(counts)
    if 2 * _length(counts, cells) >= counts.numel():
        both_ways = (counts + counts.t()).view(-1)
        cell = torch.arange(counts.numel(), device=counts.device, dtype=torch.int32)
        amount = counts.view(-1) if directed_update else both_ways
        return cell // num_classes, cell % num_classes, both_ways, amount
    pairs = PairSimilarity(counts, _listed_pairs(counts, cells), directed_update)
    return pairs.here.int(), pairs.there.int(), pairs.both_ways, pairs.summed


def _row_chunks(num_rows: int, elements_per_row: int, device: torch.device) -> list[slice]:
    budget = _CHUNK_ELEMENTS_CPU if device.type == "cpu" else _CHUNK_ELEMENTS_GPU
    step = max(1, budget // max(1, elements_per_row))
    return [slice(start, start + step) for start in range(0, num_rows, step)]


def _join(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


class DenseSimilarity:
    """Sweeps over the K x K matrix for each row: best while K is some hundreds."""

    def __init__(self, counts: Tensor, directed_update: bool) -> None:
        self.both_ways = counts + counts.t()
        self.summed = counts if directed_update else self.both_ways
        self.zero = counts.new_zeros(())

    def nearest(self, rows: MedoidRows) -> Tensor:
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
    """StorageDevice of the most similar medoid; ties: the first from ``tie_start`` on, going round the list.

    Shapes: similarity (rows, k_max, K), k (rows, 1), tie_start (rows, K) -> (rows, K).
    """
    k_max = similarity.shape[1]
    k = k.unsqueeze(2)
    places = torch.arange(k_max, device=similarity.device).view(1, -1, 1)
    lateness = (places - tie_start.unsqueeze(1)).remainder(k)
    loses = (places >= k) | (similarity != similarity.amax(dim=1, keepdim=True))
    return lateness.masked_fill(loses, k_max).min(dim=1).indices


class PairSimilarity:
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

    def nearest(self, rows: MedoidRows) -> Tensor:
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
