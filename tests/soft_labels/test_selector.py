import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy

from semifine.soft_labels import OFFICIAL_CODE, SoftLabelSelector, k_medoids, select_candidates
from semifine.soft_labels.selector import check_probabilities
from tests.soft_labels.streams import random_stream

K, M, BATCH = 12, 30, 10


def trained_selector(steps=15, seed=0, **options):
    """Returns a selector after some batches, and the next batch."""
    selector = SoftLabelSelector(K, M, **{"window": 6, "alpha": 2.0, **options})
    stream = random_stream(steps + 1, BATCH, M, K, torch.Generator().manual_seed(seed))
    for probs, index in stream[:-1]:
        selector(probs, index)
    return selector, *stream[-1]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([{}, dict(OFFICIAL_CODE), {"tie": "random"}, {"map": "exponential"}]))
def test_soft_labels_are_the_renormalized_probabilities_of_the_cluster(seed, options):
    selector, probs, index = trained_selector(5, seed, **{**options, "window": 6})
    soft = selector(probs, index)
    selection = selector.select(probs)
    assert torch.equal(selection.target, soft)
    assert (soft >= 0).all()
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(BATCH))
    assert torch.equal(soft > 0, selection.candidates)  # softmax outputs are positive
    assert torch.equal(soft.argmax(dim=1), probs.argmax(dim=1))
    assert (soft[selection.candidates] >= probs[selection.candidates] * (1 - 1e-6)).all()
    for row in range(BATCH):
        cluster = selector.clusters(int(selection.k[row]))
        assert torch.equal(selection.candidates[row], cluster == cluster[selection.prediction[row]])


def test_no_gradient_flows_through_the_soft_labels():
    selector, probs, index = trained_selector()
    logits = probs.log().requires_grad_()
    soft = selector(logits.softmax(dim=1), index)
    assert not soft.requires_grad
    strong_logits = torch.randn(BATCH, K, requires_grad=True)
    cross_entropy(strong_logits, soft).backward()
    assert logits.grad is None
    assert strong_logits.grad is not None


def test_one_class_per_cluster_equals_fixmatch_without_threshold():
    selector, probs, index = trained_selector(map="fixed", k=K)
    strong_logits = torch.randn(BATCH, K)
    soft = selector(probs, index)
    assert torch.equal(soft, torch.nn.functional.one_hot(probs.argmax(dim=1), K).float())
    torch.testing.assert_close(cross_entropy(strong_logits, soft), cross_entropy(strong_logits, probs.argmax(dim=1)))


def test_one_cluster_gives_the_probabilities():
    selector, probs, index = trained_selector(map="fixed", k=1)
    torch.testing.assert_close(selector(probs, index), probs)
    torch.testing.assert_close(select_candidates(probs, torch.ones_like(probs, dtype=torch.bool)), probs)


@pytest.mark.parametrize(
    "probs",
    [
        torch.tensor([[2.0, -1.0] + [0.0] * (K - 2)]),  # logits that sum to 1
        torch.full((3, K), 0.5),  # sigmoid outputs
        torch.zeros(1, K),
    ],
)
def test_values_other_than_probabilities_raise_an_error(probs):
    selector = SoftLabelSelector(K, M)
    with pytest.raises(ValueError, match="apply softmax to the logits"):
        selector(probs, torch.arange(len(probs)))
    with pytest.raises(ValueError, match="probs must be probabilities"):
        selector.select(probs)
    assert selector.step == 0, "the selector must not observe the batch"


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("classes", [2, 200, 5000])
def test_rounded_probabilities_and_nan_are_accepted(dtype, classes):
    generator = torch.Generator().manual_seed(0)
    for spread in (0.0, 1.0, 8.0):
        probs = (spread * torch.randn(20, classes, generator=generator)).softmax(dim=1).to(dtype)
        check_probabilities(probs.float())
    check_probabilities(torch.full((2, classes), torch.nan))
    check_probabilities(torch.empty(0, classes))


def test_select_and_clusters_do_not_change_the_state():
    selector, probs, _ = trained_selector()
    before = copy.deepcopy(selector.state_dict())
    selector.select(probs)
    selector.clusters(3).fill_(0)
    for name, value in selector.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_observe_counts_the_transitions_of_a_batch():
    selector = SoftLabelSelector(K, M, alpha=2.0)
    index = torch.arange(BATCH)
    first = selector.medoids.clone()
    selector.observe(index, torch.zeros(BATCH, dtype=torch.int64))
    assert selector.counts.sum() == 0
    assert torch.equal(selector.medoids, first), "without transitions no medoid changes"
    selector.observe(index, index % 4)
    expected = torch.zeros(K, K, dtype=torch.int32)
    expected[0, 1:4] = torch.tensor([3, 2, 2])  # images 0..9
    assert torch.equal(selector.counts, expected)


def test_forward_is_observe_then_select():
    whole, probs, index = trained_selector()
    parts = copy.deepcopy(whole)
    soft = whole(probs, index)
    selection = parts.select(probs)
    parts.observe(index, selection.prediction, selection.k)
    assert torch.equal(parts.select(probs).target, soft)


def test_observe_without_k_updates_all_clusterings():
    occurring, probs, index = trained_selector(refresh="all")
    all_k = copy.deepcopy(occurring)
    occurring.refresh = "occurring"
    all_k(probs, index)
    occurring.observe(index, probs.argmax(dim=1))
    assert torch.equal(occurring.assignment, all_k.assignment)


@pytest.mark.parametrize("options", [{}, dict(OFFICIAL_CODE), {"medoid_init": "random", "tie": "random"}], ids=str)
def test_resume_is_bit_identical(options, tmp_path):
    options = {"alpha": 2.0, **options, "window": 6}
    stream = random_stream(24, BATCH, M, K, torch.Generator().manual_seed(1))
    uninterrupted = SoftLabelSelector(K, M, **options)
    interrupted = SoftLabelSelector(K, M, **options)
    expected = [uninterrupted(*batch) for batch in stream]
    for batch in stream[:11]:
        interrupted(*batch)
    torch.save(interrupted.state_dict(), tmp_path / "checkpoint.pt")
    resumed = SoftLabelSelector(K, M, **options)
    resumed.load_state_dict(torch.load(tmp_path / "checkpoint.pt", weights_only=True))
    for batch, soft in zip(stream[11:], expected[11:], strict=True):
        assert torch.equal(resumed(*batch), soft)
    for name, value in uninterrupted.state_dict().items():
        assert torch.equal(resumed.state_dict()[name], value), name


def test_round_robin_updates_all_clusterings_in_the_first_step_and_then_one():
    selector = SoftLabelSelector(K, M, alpha=2.0, refresh="round_robin")
    index = torch.tensor([0, 0, 1, 1, 2, 2])  # repeated, so that a batch contains transitions
    selector.observe(index, torch.tensor([0, 1, 0, 1, 2, 3]))
    all_k = SoftLabelSelector(K, M, alpha=2.0, refresh="all")
    all_k.observe(index, torch.tensor([0, 1, 0, 1, 2, 3]))
    assert torch.equal(selector.assignment, all_k.assignment)
    for k in (3, 4, 5):  # in turn after k = 2
        before = selector.assignment.clone()
        selector.observe(index, torch.tensor([5, 6, 7, 8, 9, 10]) - k)
        row = k - selector.k_min
        assert (selector.refreshed == selector.step - 1).nonzero().flatten().tolist() == [row]
        changed = (selector.assignment != before).any(dim=1).nonzero().flatten().tolist()
        assert changed == [row]


@pytest.mark.parametrize("refresh", ["occurring", "oldest"])
def test_renewed_clusterings_are_up_to_date(refresh):
    selector, *_ = trained_selector(refresh=refresh, refresh_limit=2)
    before = copy.deepcopy(selector.state_dict())
    is_old = selector.refreshed < selector.step - 1
    assert 0 < is_old.sum() < len(is_old)
    renewed = selector.renewed()
    expected = k_medoids(selector.counts, selector.medoids)
    assert torch.equal(renewed.assignment[is_old].long(), expected.assignment[is_old])
    assert torch.equal(renewed.assignment[~is_old], selector.assignment[~is_old])
    assert not torch.equal(renewed.assignment, selector.assignment)
    for name, value in selector.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_renewed_clusterings_of_a_given_similarity():
    selector, *_ = trained_selector()
    similarity = torch.rand(K, K, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).fill_diagonal_(0)
    similarity = similarity + similarity.t()
    is_old = selector.refreshed < selector.step - 1
    expected = k_medoids(similarity, selector.medoids).assignment
    assert torch.equal(selector.renewed(similarity).assignment[is_old].long(), expected[is_old])


def test_the_official_code_renews_no_clustering():
    selector, *_ = trained_selector(**{**OFFICIAL_CODE, "window": 6})
    assert torch.equal(selector.renewed().assignment, selector.assignment)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_probabilities_are_upcast(dtype):
    selector, probs, index = trained_selector()
    soft = selector(probs.to(dtype), index)
    assert soft.dtype == torch.float32
    torch.testing.assert_close(soft.sum(dim=1), torch.ones(BATCH))


def test_double_precision_is_kept():
    selector, probs, index = trained_selector()
    assert selector(probs.double(), index).dtype == torch.float64


def test_casting_the_module_does_not_change_the_soft_labels():
    selector, probs, index = trained_selector()
    cast = copy.deepcopy(selector).to(torch.bfloat16)
    assert torch.equal(cast(probs, index), selector(probs, index))


@pytest.mark.parametrize("num_classes", [2, 3])
def test_two_and_three_classes(num_classes):
    selector = SoftLabelSelector(num_classes, M)
    for probs, index in random_stream(4, BATCH, M, num_classes, torch.Generator().manual_seed(0)):
        soft = selector(probs, index)
        torch.testing.assert_close(soft.sum(dim=1), torch.ones(BATCH))
    assert selector.k_max <= num_classes


def test_initial_clusters_equal_the_clusters_of_zero_counts():
    selector = SoftLabelSelector(K, M, alpha=2.0)
    for k in range(selector.k_min, selector.k_max + 1):
        assert selector.clusters(k).bincount().tolist() == [K - k + 1] + [1] * (k - 1)


def test_random_ties_distribute_classes_over_clusters():
    sizes = SoftLabelSelector(200, M, tie="random").clusters(20).bincount(minlength=20)
    assert sizes.min() >= 1
    assert sizes.max() <= 25  # 181 in the first cluster with tie="first"


def test_size_of_the_state():
    selector = SoftLabelSelector(200, 26_640)
    selector.observe(torch.arange(160), torch.zeros(160, dtype=torch.int64))
    megabytes = sum(value.numel() * value.element_size() for value in selector.state_dict().values()) / 2**20
    assert megabytes < 4  # the dense tensor: 781


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 1.0}, "alpha must be at least"),
        (
            {"refresh": "never"},
            "refresh must be one of 'auto', 'occurring', 'oldest', 'all', 'round_robin'; got 'never'",
        ),
        ({"medoid_init": "cold"}, "medoid_init must be one of"),
        ({"tie": "last"}, "tie must be one of"),
        ({"max_rounds": 0}, "max_rounds must be at least 1"),
        ({"window": 0}, "window must be at least 1"),
        ({"map": "fixed"}, "k must be an integer"),
    ],
)
def test_invalid_settings_raise_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        SoftLabelSelector(K, M, **options)


def test_invalid_arguments_raise_an_error():
    selector = SoftLabelSelector(K, M)
    with pytest.raises(ValueError, match=r"probs must have shape \(batch, 12\)"):
        selector(torch.ones(4, K + 1), torch.arange(4))
    with pytest.raises(ValueError, match="index must be between"):
        selector(torch.ones(1, K) / K, torch.tensor([M]))
    with pytest.raises(ValueError, match=r"k must be between 2 and 4"):
        selector.clusters(5)
