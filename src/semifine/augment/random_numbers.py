"""Random numbers as a pure function of seed, step and name. There is no generator state to save."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from semifine.augment.image_batch import FloatArray, IntArray


def create_generator(seed: int, step: int, name: str) -> np.random.Generator:
    """Creates an independent generator for each (seed, step, name).

    Example::

        >>> create_generator(0, 5, "weak").random() == create_generator(0, 5, "weak").random()
        True
    """
    key = int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    # The step is the highest word of the counter, so the sequences of different steps never overlap.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, step]))


class BatchRandom:
    """Random numbers for the samples of one rank.

    Every rank draws the numbers of the global batch, which consists of the batches of all ranks in order, and keeps
    its slice. The numbers of a sample therefore do not depend on the number of ranks.

    Args:
        generator: Generator with the same state on all ranks.
        batch_size: Number of samples per rank.
        rank: Rank of this process.
        world_size: Number of processes.

    Example::

        >>> whole = BatchRandom(create_generator(0, 0, "weak"), batch_size=4).uniform()
        >>> half = BatchRandom(create_generator(0, 0, "weak"), batch_size=2, rank=1, world_size=2).uniform()
        >>> np.array_equal(whole[2:], half)
        True
    """

    def __init__(self, generator: np.random.Generator, batch_size: int, rank: int = 0, world_size: int = 1) -> None:
        self._generator = generator
        self._global_batch_size = batch_size * world_size
        self._local = slice(rank * batch_size, (rank + 1) * batch_size)

    def uniform(self, *shape: int) -> FloatArray:
        """Draws (batch_size, *shape) numbers in [0, 1)."""
        return self._generator.random((self._global_batch_size, *shape))[self._local]

    def integers(self, high: int, *shape: int) -> IntArray:
        """Draws (batch_size, *shape) integers in 0 .. high - 1."""
        return self._generator.integers(high, size=(self._global_batch_size, *shape))[self._local]
