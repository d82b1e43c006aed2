"""Sampler of training batches: endless, seeded, resumable and aware of ranks; and class balance of labeled images."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.errors import UserError

MAX_CLASS_RATIO = 5
"""Classes are balanced if the largest has more than this many times the labels of the smallest."""


def is_long_tailed(counts: NDArray[np.int64]) -> bool:
    """Returns whether classes with these numbers of labels are to be balanced; classes without labels do not count.

    Example:
        >>> is_long_tailed(np.array([10, 2, 0])), is_long_tailed(np.array([11, 2, 0]))
        (False, True)
    """
    present = counts[counts > 0]
    return len(present) > 0 and int(present.max()) > MAX_CLASS_RATIO * int(present.min())


def balanced_samples(label: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Returns indices of images in which each class occurs equally often; its images differ by one occurrence at most.

    Args:
        label: Class ids ``(n,)``.
        seed: Seed that selects the images that occur once more than others of their class.

    Example:
        >>> balanced_samples(np.array([0, 0, 0, 0, 1]), seed=0).tolist()
        [0, 1, 2, 3, 4, 4, 4, 4]
    """
    random = np.random.default_rng(seed)
    size = int(np.bincount(label).max())
    of_class = (random.permutation(np.flatnonzero(label == name)) for name in np.unique(label))
    return np.sort(np.concatenate([np.resize(rows, size) for rows in of_class]))


class IndexSampler:
    """Samples the indices of each batch as a pure function of the seed and the step.

    The sequence of samples is a concatenation of random permutations, cut into batches. Each sample occurs once per
    epoch and none is dropped. A batch may contain the end of one permutation and the beginning of the next, and so the
    same index twice. Two samplers with the same length and seed return the same batches, so the labeled and the
    unlabeled images need different seeds.

    Args:
        num_samples: Number of samples; indices are 0 to ``num_samples - 1``.
        batch_size: Global batch size, a multiple of ``world_size``. Each rank receives its slice of the global batch.
        seed: Seed of the permutations.
        rank: Rank of this process.
        world_size: Number of processes.

    Raises:
        UserError: If there are no samples, or ``batch_size`` is not a multiple of ``world_size``.

    Example:
        >>> sampler = IndexSampler(num_samples=5, batch_size=2, seed=0)
        >>> first_epoch = torch.cat([sampler.batch(step) for step in range(3)])[:5]
        >>> sorted(first_epoch.tolist())
        [0, 1, 2, 3, 4]
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
        """Returns the `(batch_size / world_size,)` int64 indices of this rank at a step, counted from 0."""
        if step < 0:
            raise AssertionError("steps count from 0")
        share = self.batch_size // self.world_size
        start = step * self.batch_size + self.rank * share
        return torch.from_numpy(self._samples(start, start + share))

    def _samples(self, start: int, stop: int) -> NDArray[np.int64]:
        """Samples ``start`` to ``stop - 1`` of the endless sequence; keeps only the permutations of this batch."""
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
