from inspect import signature

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from semifine.soft_labels import OFFICIAL_CODE, clustering
from semifine.soft_labels.clustering import cluster_classes, draw_medoids, k_medoids, objective
from tests.soft_labels import reference
from tests.soft_labels.streams import block_counts, random_counts, random_medoids

# Implementations with the same result.
VARIANTS = [
    {"form": "dense", "host_sync": True},
    {"form": "dense", "host_sync": False},
    {"form": "pairs", "host_sync": True},
    {"form": "pairs", "host_sync": False},
]
OFFICIAL_OPTIONS = [
    {},
    {"directed_update": True},
    {"stale_seeds": True},
    {"directed_update": True, "stale_seeds": True},
]


@st.composite
def problems(draw):
    """Counts with many ties and zero rows, and initial medoids for several k."""
    num_classes = draw(st.integers(2, 11))
    sizes = draw(st.lists(st.integers(1, num_classes), min_size=1, max_size=4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    largest, density = draw(st.sampled_from([(1, 0.3), (2, 0.6), (9, 0.2), (1000, 1.0)]))
    counts = random_counts(num_classes, largest, generator, density)
    return counts, sizes, random_medoids(sizes, num_classes, generator)


@st.composite
def tie_starts(draw, sizes, num_classes):
    """None, or (rows, K) positions at which the search for the first tied medoid starts."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**32)))
    starts = torch.stack([torch.randint(0, k, (num_classes,), generator=generator) for k in sizes])
    return draw(st.sampled_from([None, starts]))


def rows_of(clustering, sizes):
    medoids = [row[:k].tolist() for row, k in zip(clustering.medoids, sizes, strict=True)]
    return medoids, clustering.assignment.tolist()


@pytest.mark.parametrize("options", OFFICIAL_OPTIONS, ids=lambda options: "+".join(options) or "paper")
@settings(max_examples=60, deadline=None)
@given(problem=problems(), max_rounds=st.integers(1, 6), data=st.data())
def test_all_variants_equal_the_reference(options, problem, max_rounds, data):
    counts, sizes, medoids = problem
    starts = data.draw(tie_starts(sizes, len(counts)))
    expected_medoids, expected_assignment = [], []
    for row, k in enumerate(sizes):
        found = reference.k_medoids(
            counts.tolist(),
            medoids[row, :k].tolist(),
            directed=options.get("directed_update", False),
            stale_seeds=options.get("stale_seeds", False),
            tie_starts=None if starts is None else starts[row].tolist(),
            max_rounds=max_rounds,
        )
        expected_medoids.append(found[0])
        expected_assignment.append(found[1])
    for variant in VARIANTS:
        found = k_medoids(counts, medoids, tie_start=starts, max_rounds=max_rounds, **options, **variant)
        assert rows_of(found, sizes) == (expected_medoids, expected_assignment), variant


# Counts from which the directed update alternates between two lists of medoids.
CYCLE = torch.tensor(
    [
        [0, 1, 2, 1, 0, 0],
        [2, 0, 1, 2, 2, 2],
        [2, 1, 0, 0, 2, 2],
        [1, 1, 2, 0, 1, 2],
        [0, 0, 1, 2, 0, 0],
        [2, 1, 1, 2, 2, 0],
    ],
    dtype=torch.int32,
)
OFFICIAL_CLUSTERING = {name: OFFICIAL_CODE[name] for name in signature(k_medoids).parameters if name in OFFICIAL_CODE}


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_cycle_ends_in_the_last_round_of_the_official_code(variant):
    found = k_medoids(CYCLE, torch.tensor([[1, 5]]), **OFFICIAL_CLUSTERING, **variant)
    assert found.medoids.tolist() == [[1, 3]]
    assert found.assignment.tolist() == [[0, 0, 0, 0, 1, 1]]


@settings(max_examples=80, deadline=None)
@given(st.integers(5, 8), st.integers(0, 2**32), st.sampled_from([7, 12, 30, 33, None]), st.booleans())
def test_directed_updates_equal_the_reference_after_many_rounds(num_classes, seed, max_rounds, stale_seeds):
    generator = torch.Generator().manual_seed(seed)
    counts = random_counts(num_classes, 2, generator)  # every tenth of these has a cycle
    sizes = range(2, num_classes)
    medoids = random_medoids(sizes, num_classes, generator)
    expected = [
        reference.k_medoids(
            counts.tolist(), medoids[row, :k].tolist(), directed=True, stale_seeds=stale_seeds, max_rounds=max_rounds
        )
        for row, k in enumerate(sizes)
    ]
    for variant in VARIANTS:
        found = k_medoids(
            counts,
            medoids,
            directed_update=True,
            stale_seeds=stale_seeds,
            max_rounds=max_rounds or OFFICIAL_CODE["max_rounds"],
            **variant,
        )
        assert rows_of(found, sizes) == tuple(list(part) for part in zip(*expected, strict=True)), variant


@pytest.mark.parametrize(("host_sync", "most"), [(True, 8), (False, 64)])
def test_few_rounds_of_a_cycle_are_computed(host_sync, most, monkeypatch):
    update, computed = clustering._update, []
    monkeypatch.setattr(clustering, "_update", lambda *args: computed.append(1) or update(*args))
    found = k_medoids(CYCLE, torch.tensor([[1, 5]]), directed_update=True, max_rounds=1_000_001, host_sync=host_sync)
    assert found.medoids.tolist() == [[1, 3]]
    assert len(computed) <= most


@settings(max_examples=60, deadline=None)
@given(problems())
def test_result_is_a_partition_with_each_medoid_in_its_own_cluster(problem):
    counts, sizes, medoids = problem
    found = k_medoids(counts, medoids)
    for row, k in enumerate(sizes):
        own = found.medoids[row, :k]
        assert len(set(own.tolist())) == k
        assert (found.medoids[row, k:] == -1).all()
        assert found.assignment[row, own].tolist() == list(range(k))
        assert set(found.assignment[row].tolist()) == set(range(k))


@settings(max_examples=60, deadline=None)
@given(problems())
def test_converged_medoids_are_a_fixed_point(problem):
    counts, _, medoids = problem
    found = k_medoids(counts, medoids, max_rounds=100)
    again = k_medoids(counts, found.medoids, max_rounds=1)
    assert torch.equal(found.medoids, again.medoids)
    assert torch.equal(found.assignment, again.assignment)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_objective_never_decreases(problem):
    counts, sizes, medoids = problem
    by_rounds = torch.stack([objective(counts, k_medoids(counts, medoids, max_rounds=r)) for r in range(6)])
    assert (by_rounds.diff(dim=0) >= 0).all()
    found = k_medoids(counts, medoids, max_rounds=5)
    for row, k in enumerate(sizes):
        expected = reference.objective(counts.tolist(), found.medoids[row, :k].tolist(), found.assignment[row].tolist())
        assert int(by_rounds[-1, row]) == expected


@settings(max_examples=40, deadline=None)
@given(problems())
def test_transposed_counts_give_the_same_clusters(problem):
    counts, _, medoids = problem
    assert all(
        torch.equal(a, b)
        for a, b in zip(k_medoids(counts, medoids), k_medoids(counts.t().contiguous(), medoids), strict=True)
    )


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(2, 50))
def test_scaled_counts_give_the_same_clusters(problem, factor):
    counts, _, medoids = problem
    for variant in VARIANTS:
        plain, scaled = k_medoids(counts, medoids, **variant), k_medoids(counts * factor, medoids, **variant)
        assert torch.equal(plain.medoids, scaled.medoids)
        assert torch.equal(plain.assignment, scaled.assignment)


@settings(max_examples=40, deadline=None)
@given(st.integers(3, 12), st.integers(0, 2**32))
def test_permuted_classes_give_permuted_clusters(num_classes, seed):
    generator = torch.Generator().manual_seed(seed)
    counts = random_counts(num_classes, 1 << 24, generator).long() + 1  # large values, so that no two sums are equal
    counts.fill_diagonal_(0)
    sizes = list(range(2, num_classes))
    medoids = random_medoids(sizes, num_classes, generator)
    order = torch.randperm(num_classes, generator=generator)
    new_index = order.argsort()  # class order[i] becomes class i
    reindexed = torch.where(medoids >= 0, new_index[medoids.clamp(min=0)], -1)
    plain = k_medoids(counts, medoids)
    permuted = k_medoids(counts[order][:, order], reindexed)
    assert torch.equal(permuted.assignment, plain.assignment[:, order])


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_zero_counts_assign_every_class_to_the_first_cluster(variant):
    num_classes, sizes = 20, [1, 2, 7, 20]
    medoids = random_medoids(sizes, num_classes, torch.Generator().manual_seed(0))
    found = k_medoids(torch.zeros(num_classes, num_classes, dtype=torch.int32), medoids, **variant)
    assert torch.equal(found.medoids, medoids)
    for row, k in enumerate(sizes):
        assert found.assignment[row].bincount().tolist() == [num_classes - k + 1] + [1] * (k - 1)


def test_k_equal_to_the_number_of_classes_gives_singletons():
    counts = random_counts(9, 5, torch.Generator().manual_seed(0))
    medoids = torch.randperm(9, generator=torch.Generator().manual_seed(1))[None]
    found = k_medoids(counts, medoids)
    assert torch.equal(found.medoids, medoids)
    assert torch.equal(found.assignment[0], medoids[0].argsort())


@pytest.mark.parametrize("noise", [0, 3])
@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_blocks_are_found_from_one_medoid_per_block(noise, variant):
    generator = torch.Generator().manual_seed(0)
    counts = block_counts(20, 10, generator, noise)
    one_each = torch.arange(20) * 10 + torch.randint(0, 10, (20,), generator=generator)
    found = k_medoids(counts, one_each[None], **variant)
    assert torch.equal(found.assignment[0], torch.arange(200) // 10)


def test_float_similarity_gives_the_clusters_of_equal_integers():
    generator = torch.Generator().manual_seed(0)
    counts = random_counts(30, 50, generator)
    symmetric = counts + counts.t()
    medoids = random_medoids([2, 5, 11], 30, generator)
    exact = k_medoids(symmetric, medoids)
    for host_sync in (True, False):
        floating = k_medoids(symmetric.double() / 1024, medoids, host_sync=host_sync)  # no rounding
        assert torch.equal(floating.medoids, exact.medoids)
        assert torch.equal(floating.assignment, exact.assignment)


def test_negative_similarity_gives_a_partition():
    generator = torch.Generator().manual_seed(0)
    features = torch.nn.functional.normalize(torch.randn(30, 8, generator=generator, dtype=torch.float64))
    cosine = (features @ features.t()).fill_diagonal_(0)
    found = k_medoids(cosine, random_medoids([3, 6], 30, generator), max_rounds=50)
    for row, k in enumerate([3, 6]):
        assert found.assignment[row, found.medoids[row, :k]].tolist() == list(range(k))


def test_chunks_of_rows_do_not_change_the_result(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    counts = random_counts(25, 6, generator, density=0.5)
    medoids = random_medoids(range(2, 20), 25, generator)
    whole = [k_medoids(counts, medoids, **variant) for variant in VARIANTS]
    monkeypatch.setattr("semifine.soft_labels.similarity._CHUNK_ELEMENTS_CPU", 1000)
    for variant, expected in zip(VARIANTS, whole, strict=True):
        found = k_medoids(counts, medoids, **variant)
        assert torch.equal(found.medoids, expected.medoids)
        assert torch.equal(found.assignment, expected.assignment)


def test_cluster_classes_finds_blocks_with_restarts():
    counts = block_counts(4, 6, torch.Generator().manual_seed(0), noise=2)
    assignment = cluster_classes(counts, 4, restarts=30, generator=torch.Generator().manual_seed(0))
    blocks = [set(assignment[start : start + 6].tolist()) for start in range(0, 24, 6)]
    assert all(len(block) == 1 for block in blocks)
    assert len(set.union(*blocks)) == 4


def test_cluster_classes_returns_the_best_objective():
    counts = random_counts(15, 9, torch.Generator().manual_seed(3), density=0.4)
    chosen = cluster_classes(counts, 4, restarts=12, generator=torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    starts = torch.stack([torch.randperm(15, generator=generator)[:4] for _ in range(12)])
    found = k_medoids(counts, starts, max_rounds=100)
    best = max(range(12), key=lambda row: (int(objective(counts, found)[row]), -row))
    assert torch.equal(chosen, found.assignment[best])


@pytest.mark.parametrize(("k", "restarts", "setting"), [(0, 3, "k"), (16, 3, "k"), (3, 0, "restarts")])
def test_cluster_classes_rejects_invalid_settings(k, restarts, setting):
    with pytest.raises(ValueError, match=setting):
        cluster_classes(torch.zeros(15, 15, dtype=torch.int32), k, restarts)


def test_drawn_medoids_are_distinct_and_depend_on_seed_step_and_k():
    sizes = torch.tensor([2, 30, 100])
    drawn = draw_medoids(sizes, 100, 100, seed=0, step=0)
    for row, k in zip(drawn, sizes.tolist(), strict=True):
        assert len(set(row[:k].tolist())) == k
        assert (row[k:] == -1).all()
        assert row[:k].min() >= 0
    assert not torch.equal(drawn, draw_medoids(sizes, 100, 100, seed=1, step=0))
    assert not torch.equal(drawn, draw_medoids(sizes, 100, 100, seed=0, step=1))
    assert not torch.equal(drawn[1, :2], drawn[0, :2])


def test_drawn_medoids_are_uniform():
    drawn = draw_medoids(torch.full((1,), 5), 5, 20, seed=0, step=torch.arange(4000)[:, None])
    frequency = drawn.flatten().bincount(minlength=20) / 4000
    assert (frequency - 5 / 20).abs().max() < 0.03
