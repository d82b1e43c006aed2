"""A slow, readable SoC selector in plain Python with lists, loops and fractions.

It follows the description of the method step by step and shares no code with the library.
"""

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction


def similarity(counts, m, n):
    """Twice the class similarity: C[m][n] + C[n][m]."""
    return counts[m][n] + counts[n][m]


def assign(counts, medoids, fixed, tie_starts=None):
    """Assigns each class to its most similar medoid, and each class in ``fixed`` to its position in that list."""
    k = len(medoids)
    assignment = []
    for m in range(len(counts)):
        if m in fixed:
            assignment.append(fixed.index(m))
            continue
        start = tie_starts[m] if tie_starts else 0
        best = None
        for step in range(k):
            position = (start + step) % k
            if best is None or similarity(counts, m, medoids[position]) > similarity(counts, m, medoids[best]):
                best = position
        assignment.append(best)
    return assignment


def update(counts, medoids, assignment, directed):
    """Returns the member of each cluster with the largest sum of similarities; ties: the current medoid first."""
    new_medoids = []
    for position, current in enumerate(medoids):
        members = [m for m in range(len(counts)) if assignment[m] == position]
        ordered = [current] + [m for m in members if m != current]
        sums = []
        for m in ordered:
            if directed:
                sums.append(sum(counts[m][n] for n in members))
            else:
                sums.append(sum(similarity(counts, m, n) for n in members))
        new_medoids.append(ordered[sums.index(max(sums))])
    return new_medoids


def k_medoids(counts, medoids, directed=False, stale_seeds=False, tie_starts=None, max_rounds=None):
    """Returns the final medoids and the assignment of each class to a position in their list.

    ``max_rounds=None``: until no medoid changes. With a directed update, the official code stops after its first round
    and 2,000 more.
    """
    initial = list(medoids)
    if max_rounds is None and directed:
        max_rounds = 1 + 2000
    for _ in itertools.count() if max_rounds is None else range(max_rounds):
        assignment = assign(counts, medoids, medoids, tie_starts)
        new_medoids = update(counts, medoids, assignment, directed)
        unchanged = set(new_medoids) == set(medoids)
        medoids = new_medoids
        if unchanged:
            break
    return medoids, assign(counts, medoids, initial if stale_seeds else medoids, tie_starts)


def objective(counts, medoids, assignment):
    """Twice the sum of the similarities of all non-medoids to their medoids."""
    return sum(similarity(counts, m, medoids[assignment[m]]) for m in range(len(counts)) if m not in medoids)


def linear_k(conf, num_classes, alpha):
    """ceil((conf / alpha + 2 / K) K - 1/2), exactly for fractions."""
    return math.ceil((conf / alpha + Fraction(2, num_classes)) * num_classes - Fraction(1, 2))


def official_k(conf, num_classes, alpha):
    """2 + round(conf * round(K / alpha)) with Python's rounding of halves to even."""
    return 2 + round(conf * round(num_classes / alpha))


def hash_integer(number):
    """Returns the 31-bit hash of the random draws."""
    number %= 2**31
    for _ in range(2):
        number = (number ^ number // 65536) * 73244475 % 2**31
    return number ^ number // 65536


def hash_integers(*numbers):
    state = 0
    for number in numbers:
        state = hash_integer(state + number)
    return state


@dataclass
class ReferenceSelector:
    """The complete selector; ``step`` takes lists of probability rows and dataset indices and returns soft labels."""

    num_classes: int
    num_samples: int
    window: int = 5120
    alpha: float = 5.0
    rounding: str = "paper"
    fixed_k: int | None = None
    refresh: str = "occurring"
    refresh_limit: int = 8
    directed_update: bool = False
    stale_seeds: bool = False
    medoid_init: str = "warm"
    tie: str = "first"
    max_rounds: int | None = None
    seed: int = 0
    batches: list = field(default_factory=list)
    iteration: int = 0

    def __post_init__(self):
        self.bank = [-1] * self.num_samples
        self.refreshed = {}
        self.k_values = sorted({self.k_of(0.0), *range(self.k_of(0.0), self.k_of(1.0) + 1)})
        self.medoids = {k: self.draw(k) for k in self.k_values}
        empty = [[0] * self.num_classes for _ in range(self.num_classes)]
        self.assignment = {
            k: assign(empty, self.medoids[k], self.medoids[k], self.tie_starts(k)) for k in self.k_values
        }

    def draw(self, k):
        hashes = [hash_integers(self.seed, self.iteration, k, c) for c in range(self.num_classes)]
        return sorted(range(self.num_classes), key=lambda c: (hashes[c], c))[:k]

    def tie_starts(self, k):
        if self.tie == "first":
            return None
        return [hash_integers(self.seed, self.iteration, k, c, 1) % k for c in range(self.num_classes)]

    def k_of(self, conf):
        if self.fixed_k is not None:
            return self.fixed_k
        if self.rounding == "official":
            return official_k(conf, self.num_classes, self.alpha)
        return linear_k(Fraction(conf), self.num_classes, Fraction(self.alpha))

    def counts(self):
        """Returns the dense sum over the last ``window`` batches."""
        total = [[0] * self.num_classes for _ in range(self.num_classes)]
        for batch in self.batches[-self.window :]:
            for m, n in batch:
                total[m][n] += 1
        return total

    def track(self, indices, predictions):
        transitions = []
        for d, prediction in zip(indices, predictions, strict=True):
            if self.bank[d] == -1:
                self.bank[d] = prediction
            elif self.bank[d] != prediction:
                transitions.append((self.bank[d], prediction))
                self.bank[d] = prediction
        self.batches.append(transitions)

    def refresh_clusterings(self, ks):
        if self.refresh == "all":
            due = self.k_values
        elif self.refresh == "occurring":
            due = sorted(set(ks))
        elif self.refresh == "oldest":
            due = sorted(set(ks), key=lambda k: (self.refreshed.get(k, -1), k))[: self.refresh_limit]
        elif self.iteration == 0:
            due = self.k_values
        else:
            due = [self.k_values[self.iteration % len(self.k_values)]]
        counts = self.counts()
        for k in due:
            self.refreshed[k] = self.iteration
            start = self.medoids[k] if self.medoid_init == "warm" else self.draw(k)
            self.medoids[k], self.assignment[k] = k_medoids(
                counts,
                start,
                self.directed_update,
                self.stale_seeds,
                self.tie_starts(k),
                self.max_rounds,
            )

    def step(self, probs, indices):
        predictions = [row.index(max(row)) for row in probs]
        ks = [self.k_of(max(row)) for row in probs]
        self.track(indices, predictions)
        self.refresh_clusterings(ks)
        self.iteration += 1
        return [self.select(row, p, k) for row, p, k in zip(probs, predictions, ks, strict=True)]

    def select(self, row, prediction, k):
        cluster = self.assignment[k]
        kept = [p if cluster[c] == cluster[prediction] else 0.0 for c, p in enumerate(row)]
        total = math.fsum(kept)
        return [p / total for p in kept]
