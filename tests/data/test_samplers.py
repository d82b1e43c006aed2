from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from semifine.data.samplers import IndexSampler, balanced_samples
from semifine.errors import UserError

sizes = st.integers(1, 40)
seeds = st.integers(0, 2**64)


def reference(num_samples: int, batch_size: int, seed: int, steps: int) -> list[list[int]]:
    """Concatenates all permutations in one list and cuts it into batches."""
    endless: list[int] = []
    epoch = 0
    while len(endless) < steps * batch_size:
        endless += np.random.default_rng([seed, epoch]).permutation(num_samples).tolist()
        epoch += 1
    return [endless[step * batch_size : (step + 1) * batch_size] for step in range(steps)]


@given(num_samples=sizes, batch_size=sizes, seed=seeds)
def test_is_a_concatenation_of_permutations(num_samples: int, batch_size: int, seed: int) -> None:
    stream = IndexSampler(num_samples, batch_size, seed)
    batches = [stream.batch(step).tolist() for step in range(12)]
    assert batches == reference(num_samples, batch_size, seed, 12)
    drawn = [position for batch in batches for position in batch]
    for epoch in range(len(drawn) // num_samples):  # each sample once per epoch
        assert sorted(drawn[epoch * num_samples : (epoch + 1) * num_samples]) == list(range(num_samples))


@given(num_samples=sizes, batch_size=sizes, seed=seeds, step=st.integers(0, 10**9))
def test_depends_only_on_the_step(num_samples: int, batch_size: int, seed: int, step: int) -> None:
    used = IndexSampler(num_samples, batch_size, seed)
    for earlier in (step + 3, 0, step):
        used.batch(earlier)
    assert torch.equal(used.batch(step), IndexSampler(num_samples, batch_size, seed).batch(step))


@given(num_samples=sizes, share=st.integers(1, 9), world_size=st.integers(1, 5), seed=seeds, step=st.integers(0, 99))
def test_ranks_share_one_global_batch(num_samples: int, share: int, world_size: int, seed: int, step: int) -> None:
    whole = IndexSampler(num_samples, share * world_size, seed).batch(step)
    parts = [IndexSampler(num_samples, share * world_size, seed, rank, world_size) for rank in range(world_size)]
    assert torch.equal(torch.cat([part.batch(step) for part in parts]), whole)


def test_batches_are_int64_copies() -> None:
    stream = IndexSampler(10, 4, seed=1)
    first = stream.batch(0)
    assert first.dtype == torch.int64
    expected = first.clone()
    first.zero_()
    assert torch.equal(stream.batch(0), expected)


def test_epochs_and_seeds_differ() -> None:
    stream = IndexSampler(50, 50, seed=1)
    assert not torch.equal(stream.batch(0), stream.batch(1))
    assert not torch.equal(stream.batch(0), IndexSampler(50, 50, seed=2).batch(0))


def test_keeps_only_the_current_permutations() -> None:
    stream = IndexSampler(10, 15, seed=0)
    for step in range(20):
        stream.batch(step)
        assert len(stream._permutations) <= 3


def test_bad_sizes() -> None:
    with pytest.raises(UserError, match="multiple of 3"):
        IndexSampler(10, 4, seed=0, world_size=3)
    with pytest.raises(UserError, match="no images"):
        IndexSampler(0, 4, seed=0)
    with pytest.raises(AssertionError):
        IndexSampler(10, 4, seed=0, rank=2, world_size=2)
    with pytest.raises(AssertionError):
        IndexSampler(10, 4, seed=0).batch(-1)


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=6).filter(any), seed=seeds)
def test_balanced_samples_have_as_many_of_each_class(sizes: list[int], seed: int) -> None:
    label = np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))
    samples = balanced_samples(label, seed)
    present = [size for size in sizes if size]
    assert np.bincount(label[samples])[np.unique(label)].tolist() == [max(present)] * len(present)
    times = np.bincount(samples, minlength=len(label))
    for name in np.unique(label):
        assert times[label == name].max() - times[label == name].min() <= 1
        assert times[label == name].min() >= 1
