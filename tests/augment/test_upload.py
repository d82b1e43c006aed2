"""Many arrays in one copy."""

from __future__ import annotations

import numpy as np
import torch

from semifine.augment.image_batch import ALIGNMENT, pack_bytes, unpack_bytes, upload
from tests.augment.helpers import CPU

ARRAYS = {
    "bytes": np.arange(5, dtype=np.uint8),
    "floats": np.linspace(0, 1, 6, dtype=np.float32).reshape(2, 3),
    "none": np.zeros((0, 4), dtype=np.int64),
    "long": np.array([[2**40], [-7]]),
    "exact": np.array([0.1, 0.2]),
}


def test_packed_arrays_come_out_as_they_were() -> None:
    like = {key: torch.from_numpy(array) for key, array in ARRAYS.items()}
    unpacked = unpack_bytes(pack_bytes(ARRAYS), like)
    assert tuple(unpacked) == tuple(ARRAYS)
    for key, tensor in unpacked.items():
        assert tensor.dtype == like[key].dtype
        assert torch.equal(tensor, like[key])
        assert tensor.data_ptr() % ALIGNMENT == unpacked["bytes"].data_ptr() % ALIGNMENT or not len(tensor)


def test_doubles_are_narrowed_unless_they_matter() -> None:
    assert upload(ARRAYS, CPU)["exact"].dtype == torch.float32
    assert upload(ARRAYS, CPU, narrow=False)["exact"].dtype == torch.float64


def test_columns_of_an_array_may_be_sent() -> None:
    table = np.arange(12.0).reshape(3, 4)
    assert upload({"column": table[:, 1]}, CPU)["column"].tolist() == [1, 5, 9]
