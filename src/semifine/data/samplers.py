"""Index samplers: endless, seeded, resumable, rank-aware."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.errors import UserError


class IndexSampler:
    """Batches of positions 0..num_samples-1, as a pure function of the seed and the step.

    The stream is a concatenation of fresh permutations cut into batches: every sample comes once an epoch,
    nothing is dropped, and a batch may straddle two permutations (and so hold the same position twice).
    Only the permutations of the current batch are kept in memory. Two streams of equal length and seed run
    in step, so give the labeled and the unlabeled one different seeds.

    ``batch_size`` counts over all ranks; each rank gets its slice of the same global batch.
    """

    def __init__(self, num_samples: int, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> None:
        if num_samples < 1:
            raise UserError("There are no images to draw batches from: the split is empty.")
        if batch_size < 1 or batch_size % world_size:
            raise UserError(
                f"The batch size {batch_size} cannot be shared evenly by {world_size} processes: "
                f"choose a multiple of {world_size}."
            )
        if not 0 <= rank < world_size:
            raise AssertionError(f"rank {rank} is not one of {world_size}")
        self.num_samples = num_samples
        self.batch_size = batch_size
        self.seed = seed
        self.rank = rank
        self.world_size = world_size
        self._permutations: dict[int, NDArray[np.int64]] = {}

    def batch(self, step: int) -> torch.Tensor:
        """(batch_size / world_size,) int64 positions of this rank at one step, counted from 0."""
        if step < 0:
            raise AssertionError("steps count from 0")
        share = self.batch_size // self.world_size
        start = step * self.batch_size + self.rank * share
        return torch.from_numpy(self._positions(start, start + share))

    def _positions(self, start: int, stop: int) -> NDArray[np.int64]:
        """The part [start, stop) of the endless concatenation of permutations."""
        epochs = range(start // self.num_samples, (stop - 1) // self.num_samples + 1)
        self._permutations = {epoch: self._permutation(epoch) for epoch in epochs}
        pieces = []
        for epoch, permutation in self._permutations.items():
            begin = epoch * self.num_samples
            pieces.append(permutation[max(start - begin, 0) : stop - begin])
        return np.concatenate(pieces)

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if epoch in self._permutations:
            return self._permutations[epoch]
        return np.random.default_rng([self.seed, epoch]).permutation(self.num_samples)
