"""Images in one piece of memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from semifine.data.decode_worker import pack

SIZES = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=12)


@given(SIZES)
def test_every_image_is_there_beside_those_of_its_size(sizes: list[tuple[int, int]]) -> None:
    images = [np.full((*size, 3), number, np.uint8) for number, size in enumerate(sizes)]
    packed = pack(images)
    assert sorted(packed.places) == list(range(len(sizes)))
    assert packed.shapes == sorted(sizes)
    start = 0
    for place, (height, width) in zip(packed.places, packed.shapes, strict=True):
        end = start + height * width * 3
        np.testing.assert_array_equal(packed.levels[start:end].reshape(height, width, 3), images[place])
        start = end
    assert len(packed.levels) == start


def test_given_memory_is_written_to() -> None:
    memory = np.zeros(100, np.uint8)
    packed = pack([np.full((2, 2, 3), 7, np.uint8)], into=memory)
    assert packed.levels.base is memory
    assert memory.tolist() == [7] * 12 + [0] * 88
