"""The Triton kernel of the views on a CPU, by Triton's interpreter; test_views_gpu.py runs it compiled."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import torch
from semifine.views import kernels
from semifine.views.sampling import sample_view
from tests.views.view_helpers import make_batch, smooth_picture

pictures = [smooth_picture(20, 31, seed=0), smooth_picture(9, 1, seed=1), smooth_picture(1, 12, seed=2)]
x_line = torch.tensor([[2.0, 1.1, 2.5, 29.5], [0.0, 0.05, 0.5, 0.5], [12.0, -0.5, 0.5, 11.5]])
y_line = torch.tensor([[1.0, 0.7, 1.5, 18.5], [0.0, 0.4, 0.5, 8.5], [0.0, 0.05, 0.5, 0.5]])
turn = torch.tensor([[[0.9, 0.3, -2.0], [-0.3, 0.9, 4.0]]]).expand(3, 2, 3).contiguous()
for oversample in (1, 2):
    images = make_batch(pictures, oversample)
    for maps in (None, turn):
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.uint8, 1)):
            expected = sample_view(images, x_line, y_line, maps, 24, dtype)
            found = kernels.sample(images, x_line, y_line, maps, 24, dtype)
            assert found.dtype == dtype
            difference = (found.float() - expected.float()).abs()
            assert difference.max() <= tolerance, (oversample, maps is None, dtype, difference.max())
            assert difference.mean() < 0.01
"""


def test_the_interpreted_kernel_samples_like_torch() -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
