"""Whatever is given, a mistake is one sentence and exit code 2: never a traceback, never a hang.

Hypothesis drives the cases here; benchmarks/fuzz.py runs many more of the same.
"""

from __future__ import annotations

import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults import bad_inputs

FEW = settings(
    max_examples=25,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A place that a user without rights can reach, unlike pytest's own."""
    place = Path(tempfile.mkdtemp(prefix="semifine-bad-input-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place)


@pytest.mark.parametrize("kind", bad_inputs.KINDS)
@FEW
@given(rng=st.randoms(use_true_random=False))
def test_bad_input_is_told_in_one_sentence(kind: str, rng: random.Random, folder: Path) -> None:
    bad_inputs.try_case(kind, rng, folder)


@pytest.mark.parametrize("kind", bad_inputs.KINDS)
def test_many_of_the_cases_are_bad(kind: str, folder: Path) -> None:
    """A generator that makes only valid input would test nothing."""
    codes = [bad_inputs.try_case(kind, random.Random(seed), folder) for seed in range(20)]
    assert codes.count(2) >= 3
