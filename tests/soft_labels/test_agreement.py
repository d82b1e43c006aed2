"""The selector and the slow reference have the same soft labels and the same state after every step."""

import pytest
import torch

from semifine.soft_labels import OFFICIAL_CODE, SoftLabelSelector
from tests.soft_labels.reference import ReferenceSelector
from tests.soft_labels.streams import random_stream

K, M, BATCH, STEPS = 9, 14, 8, 12

CASES = {
    "paper": {},
    "all": {"refresh": "all"},
    "oldest": {"refresh": "oldest", "refresh_limit": 2},
    "round_robin": {"refresh": "round_robin"},
    "official": {**OFFICIAL_CODE, "window": 4},
    "official_finest": {**OFFICIAL_CODE, "window": 4, "alpha": K / (K - 2)},
    "directed": {"directed_update": True, "max_rounds": 2001},
    "stale": {"stale_seeds": True, "refresh": "all"},
    "random_init": {"medoid_init": "random", "seed": 7},
    "random_init_all": {"medoid_init": "random", "refresh": "all"},
    "random_tie": {"tie": "random", "seed": 3},
    "few_rounds": {"max_rounds": 1},
    "finest": {"alpha": K / (K - 2), "seed": 2},
    "fixed": {"map": "fixed", "k": 4},
    "soft": {"map": "fixed", "k": 1},
    "hard": {"map": "fixed", "k": K},
}


def create_reference(num_classes, num_samples, options):
    options = dict(options)
    if options.get("max_rounds") == OFFICIAL_CODE["max_rounds"]:
        del options["max_rounds"]  # the reference has its own limit
    fixed_k = options.pop("k", None)
    options.pop("map", None)
    return ReferenceSelector(num_classes, num_samples, fixed_k=fixed_k, **options)


def assert_same_state(selector, reference):
    assert selector.tracker.bank.tolist() == reference.bank
    assert selector.counts.tolist() == reference.counts()
    for k in reference.k_values:
        assert selector.medoids[k - selector.k_min, :k].tolist() == reference.medoids[k], k
        assert selector.clusters(k).tolist() == reference.assignment[k], k


@pytest.mark.parametrize("host_sync", [True, False])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("case", CASES)
def test_selector_equals_the_reference(case, seed, host_sync):
    options = {"window": 5, "alpha": 2.0, **CASES[case]}
    generator = torch.Generator().manual_seed(seed)
    selector = SoftLabelSelector(K, M, host_sync=host_sync, **options)
    reference = create_reference(K, M, options)
    assert_same_state(selector, reference)
    for probs, index in random_stream(STEPS, BATCH, M, K, generator):
        soft = selector(probs, index)
        expected = reference.step(probs.tolist(), index.tolist())
        assert_same_state(selector, reference)
        torch.testing.assert_close(soft, torch.tensor(expected))


@pytest.mark.parametrize("host_sync", [True, False])
def test_selector_equals_the_reference_with_more_k_than_samples(host_sync):
    options = {"window": 5, "alpha": 30 / 28}
    selector = SoftLabelSelector(30, 20, host_sync=host_sync, **options)
    reference = ReferenceSelector(30, 20, **options)
    assert selector.k_max == 30
    for probs, index in random_stream(5, 6, 20, 30, torch.Generator().manual_seed(0)):
        soft = selector(probs, index)
        torch.testing.assert_close(soft, torch.tensor(reference.step(probs.tolist(), index.tolist())))
    assert_same_state(selector, reference)


def test_selector_equals_the_reference_with_varying_batch_size():
    selector = SoftLabelSelector(K, M, window=3)
    reference = ReferenceSelector(K, M, window=3)
    generator = torch.Generator().manual_seed(0)
    for size in (3, 9, 1, 5, 12, 2, 7):
        ((probs, index),) = random_stream(1, size, M, K, generator)
        torch.testing.assert_close(selector(probs, index), torch.tensor(reference.step(probs.tolist(), index.tolist())))
        assert_same_state(selector, reference)


def test_official_code_has_51200_equal_rows_at_alpha_2_5():
    """Transitions are few and random, so that medoids cycle: with at most 20 rounds, rows differ."""
    num_classes, num_samples = 8, 51_200
    options = {**OFFICIAL_CODE, "window": 2, "alpha": 2.5}
    selector = SoftLabelSelector(num_classes, num_samples, **options)
    capped = SoftLabelSelector(num_classes, num_samples, **{**options, "max_rounds": 20})
    reference = create_reference(num_classes, num_samples, options)
    generator = torch.Generator().manual_seed(0)
    rows = different = capped_different = 0
    for _ in range(320):
        index = torch.randint(0, num_samples, (160,), generator=generator)
        probs = (3 * torch.randn((160, num_classes), generator=generator)).softmax(dim=1)
        expected = torch.tensor(reference.step(probs.tolist(), index.tolist()))
        rows += len(expected)
        different += int((selector(probs, index) - expected).abs().amax(dim=1).gt(1e-6).sum())
        capped_different += int((capped(probs, index) - expected).abs().amax(dim=1).gt(1e-6).sum())
    assert (rows, different) == (51_200, 0)
    assert capped_different > 0
    assert_same_state(selector, reference)
