"""Triton kernels in the interpreter of Triton on a CPU have the same results as the PyTorch version.

test_gpu.py runs the compiled kernels. Triton selects the interpreter at import, so the test starts another process.
"""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")

PROGRAM = """
import torch
from semifine.soft_labels.clustering import k_medoids
from tests.soft_labels.streams import random_counts, random_medoids

generator = torch.Generator().manual_seed(0)
for num_classes, largest, density in [(2, 3, 1.0), (7, 1, 0.3), (12, 2, 0.6), (25, 40, 1.0)]:
    counts = random_counts(num_classes, largest, generator, density)
    sizes = range(1, num_classes + 1)
    medoids = random_medoids(sizes, num_classes, generator)
    for directed in (False, True):
        nonzero = (counts.view(-1) > 0).nonzero().squeeze(1)
        for candidates in (None, torch.cat([torch.tensor([-1]), nonzero.flip(0), nonzero[:1]])):
            for max_rounds in (1, 4):
                options = {"directed_update": directed, "max_rounds": max_rounds}
                expected = k_medoids(counts, medoids, form="dense", **options)
                found = k_medoids(counts, medoids, form="kernels", candidate_pairs=candidates, **options)
                assert torch.equal(found.medoids, expected.medoids)
                assert torch.equal(found.assignment, expected.assignment)
"""


def test_interpreted_kernels_equal_pytorch():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    process = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
