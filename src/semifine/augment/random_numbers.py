"""Random numbers as a pure function of (seed, step, name): no generator state to save."""

from __future__ import annotations

from hashlib import blake2b

import numpy as np

from semifine.augment.image_batch import FloatArray, IntArray


def generator(seed: int, step: int, name: str) -> np.random.Generator:
    """A generator of its own for each (seed, step, name)."""
    key = int.from_bytes(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest(), "little")
    # The step fills the highest word of the counter, so the steps' number streams never overlap.
    return np.random.Generator(np.random.Philox(key=key, counter=[0, 0, 0, step]))


class BatchRandom:
    """Draws for a global batch, of which this rank sees its own part.

    The global batch is the ranks' parts one after the other, all of length ``local``. Every rank draws
    for all of them, so that the numbers of a sample do not depend on how the batch is split.
    """

    def __init__(self, numbers: np.random.Generator, local: int, rank: int = 0, world_size: int = 1) -> None:
        """``numbers`` has the same state on all ranks; ``local`` is the number of samples of a rank."""
        self.local = local
        self._generator = numbers
        self._total = local * world_size
        self._mine = slice(rank * local, (rank + 1) * local)

    def uniform(self, *shape: int) -> FloatArray:
        """(local, *shape) numbers in [0, 1)."""
        return self._generator.random((self._total, *shape))[self._mine]

    def integers(self, high: int, *shape: int) -> IntArray:
        """(local, *shape) whole numbers in 0 .. high - 1."""
        return self._generator.integers(high, size=(self._total, *shape))[self._mine]
