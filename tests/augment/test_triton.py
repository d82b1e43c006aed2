"""The Triton kernels of the views on a CPU, by Triton's interpreter; test_views_gpu.py runs them compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

from semifine.augment.randaugment import HAS_THUMBNAIL, IS_ASKED, OPERATION, make_kernel_params
from tests.augment.view_helpers import make_batch, make_crop, make_plan, smooth_picture

PROGRAM = """
import sys
import torch
from tests.augment.kernel_comparison import COMPARISONS
COMPARISONS[sys.argv[1]](torch.device("cpu"))
"""


@pytest.mark.parametrize("comparison", ["sampling", "single operations", "random plans", "contrastive"])
def test_interpreted_kernels_agree_with_torch(comparison: str) -> None:
    pytest.importorskip("triton")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", PROGRAM, comparison]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_thumbnail_goes_on_while_a_later_slot_asks_for_it() -> None:
    names = [
        ["Equalize", "Color", "Contrast"],
        ["Color", "AutoContrast", "Rotate"],
        ["Contrast", "Rotate", "Identity"],
        ["Rotate", "Color", "Solarize"],
    ]
    table = make_batch([smooth_picture(30, 40)] * 4).table
    plan = make_plan(names, [[0.5] * 3] * 4, table)
    frame, steps = make_kernel_params(plan, make_crop([(0, 0, 40, 30)] * 4), table, 16, 16)
    assert frame[:, HAS_THUMBNAIL].tolist() == [1, 1, 1, 0]
    assert steps[..., IS_ASKED].T.tolist() == [[1, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert np.array_equal(steps[..., OPERATION].T, plan.codes)
