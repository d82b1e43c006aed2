"""On a GPU: the same results as on a CPU, no host synchronization, and capture in a CUDA graph."""

import pytest
import torch

from semifine.soft_labels import OFFICIAL_CODE, SoftLabelSelector
from semifine.soft_labels.clustering import k_medoids
from tests.soft_labels.streams import block_counts, random_counts, random_medoids, random_stream

pytestmark = pytest.mark.gpu

K, M, BATCH = 24, 60, 32
CASES = {
    "paper": {},
    "all": {"refresh": "all"},
    "oldest": {"refresh": "oldest", "refresh_limit": 2},
    "round_robin": {"refresh": "round_robin"},
    "official": dict(OFFICIAL_CODE),
    "official_finest": {**OFFICIAL_CODE, "alpha": K / (K - 2)},
    "random_init": {"medoid_init": "random"},
    "random_tie": {"tie": "random"},
    "exponential": {"map": "exponential"},
    "host_sync": {"host_sync": True},
    "more_k_than_samples": {"alpha": K / (K - 2)},
}


def options_of(case):
    return {"alpha": 2.0, **CASES[case], "window": 5}


def stream(steps=12, batch_size=BATCH, seed=0):
    return random_stream(steps, batch_size, M, K, torch.Generator().manual_seed(seed))


def on_gpu(batch):
    return tuple(part.cuda() for part in batch)


def assert_same_state(selector, expected):
    for name, value in expected.state_dict().items():
        assert torch.equal(selector.state_dict()[name].cpu(), value), name


@pytest.mark.parametrize("case", CASES)
def test_gpu_and_cpu_have_the_same_state(case):
    batch_size = 10 if case == "more_k_than_samples" else BATCH
    cpu, gpu = SoftLabelSelector(K, M, **options_of(case)), SoftLabelSelector(K, M, **options_of(case)).cuda()
    for batch in stream(batch_size=batch_size):
        expected = cpu(*batch)
        torch.testing.assert_close(gpu(*on_gpu(batch)).cpu(), expected)
        assert_same_state(gpu, cpu)


@pytest.mark.parametrize("form", ["dense", "pairs", "kernels"])
@pytest.mark.parametrize("num_classes", [7, 50, 200])
def test_k_medoids_on_gpu_equals_cpu(form, num_classes):
    generator = torch.Generator().manual_seed(0)
    for largest, density in [(1, 0.2), (3, 0.7), (5000, 1.0)]:
        counts = random_counts(num_classes, largest, generator, density)
        medoids = random_medoids(range(2, min(num_classes, 43)), num_classes, generator)
        expected = k_medoids(counts, medoids)
        for host_sync in (True, False):
            found = k_medoids(counts.cuda(), medoids.cuda(), form=form, host_sync=host_sync)
            assert torch.equal(found.medoids.cpu(), expected.medoids)
            assert torch.equal(found.assignment.cpu(), expected.assignment)


def test_chunks_of_rows_do_not_change_the_result(monkeypatch):
    counts = block_counts(20, 10, torch.Generator().manual_seed(0), noise=4)
    medoids = random_medoids(range(2, 43), 200, torch.Generator().manual_seed(1))
    whole = k_medoids(counts.cuda(), medoids.cuda())
    monkeypatch.setattr("semifine.soft_labels.similarity._CHUNK_ELEMENTS_GPU", 200_000)
    for form in ("dense", "pairs"):
        found = k_medoids(counts.cuda(), medoids.cuda(), form=form)
        assert torch.equal(found.assignment, whole.assignment)


@pytest.mark.parametrize("case", [case for case in CASES if case != "host_sync"])
def test_step_does_not_synchronize(case):
    selector = SoftLabelSelector(K, M, **options_of(case)).cuda()
    batches = [on_gpu(batch) for batch in stream()]
    selector(*batches[0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        for batch in batches[1:]:
            selector(*batch)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("form", ["dense", "pairs", "kernels"])
def test_clustering_does_not_synchronize(form):
    counts = block_counts(5, 4, torch.Generator().manual_seed(0), noise=2).cuda()
    medoids = random_medoids([2, 5, 9], 20, torch.Generator().manual_seed(1)).cuda()
    torch.cuda.set_sync_debug_mode("error")
    try:
        k_medoids(counts, medoids, form=form, candidate_pairs=torch.arange(400, device="cuda"))
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("case", [case for case in CASES if case != "host_sync"])
def test_step_can_be_captured_in_a_cuda_graph(case):
    cpu, gpu = SoftLabelSelector(K, M, **options_of(case)), SoftLabelSelector(K, M, **options_of(case)).cuda()
    batches = stream(steps=10)
    probs, index = on_gpu(batches[0])

    side_stream = torch.cuda.Stream()
    side_stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side_stream):
        gpu(probs, index)  # allocates the ring
    torch.cuda.current_stream().wait_stream(side_stream)
    cpu(*batches[0])

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        soft = gpu(probs, index)
    for batch in batches[1:]:
        probs.copy_(batch[0])
        index.copy_(batch[1])
        graph.replay()
        torch.testing.assert_close(soft.cpu(), cpu(*batch))
    assert_same_state(gpu, cpu)


def test_state_moves_to_the_device_of_the_probabilities():
    selector = SoftLabelSelector(K, M)
    probs, index = stream(steps=1)[0]
    assert selector(probs.cuda(), index).is_cuda  # the index may still be on the CPU
    assert selector.counts.is_cuda


def test_checkpoint_loads_on_another_device():
    batches = stream(steps=8)
    uninterrupted, gpu = SoftLabelSelector(K, M, window=5), SoftLabelSelector(K, M, window=5).cuda()
    for batch in batches[:4]:
        uninterrupted(*batch)
        gpu(*on_gpu(batch))
    resumed = SoftLabelSelector(K, M, window=5)
    resumed.load_state_dict(gpu.state_dict())
    for batch in batches[4:]:
        assert torch.equal(resumed(*batch), uninterrupted(*batch))
    assert_same_state(resumed, uninterrupted)
