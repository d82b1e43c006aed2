"""The Triton kernels of the augmentation in Triton's interpreter on the CPU; test_gpu.py runs them compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from tests.augment.helpers import make_batch, make_crop, make_params, smooth_image

PROGRAM = """
import sys
import torch
from tests.augment.kernel_comparison import COMPARISONS
COMPARISONS[sys.argv[1]](torch.device("cpu"))
"""


@pytest.mark.parametrize("comparison", ["sampling", "single operations", "random operations", "contrastive"])
def test_interpreted_kernels_agree_with_torch(comparison: str) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, comparison]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_reference_is_kept_until_the_last_step_that_needs_it() -> None:
    pytest.importorskip("triton")
    from semifine.augment.triton import randaugment as kernels  # optional: imports Triton

    names = [
        ["Equalize", "Color", "Contrast"],
        ["Color", "AutoContrast", "Rotate"],
        ["Contrast", "Rotate", "Identity"],
        ["Rotate", "Color", "Solarize"],
    ]
    table = make_batch([smooth_image(30, 40)] * 4).table
    params = make_params(names, [[0.5] * 3] * 4, table)
    packed = kernels.pack_params(params, make_crop([(0, 0, 40, 30)] * 4), table, 16, 16)
    assert packed.images[:, kernels.NEEDS_REFERENCE].tolist() == [1, 1, 1, 0]
    assert packed.steps[..., kernels.KEEPS_REFERENCE].T.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert np.array_equal(packed.steps[..., kernels.OPERATION].T, params.codes)
