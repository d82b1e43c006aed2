"""Class centroids from features, and clusterings by centroid similarity."""

import torch
from torch.nn.functional import normalize

from semifine.soft_labels import ClassCentroids, SoftLabelSelector, k_medoids

K, D = 5, 7


def slow_centroids(batches, decay):
    """Computes the running means class by class and batch by batch."""
    mean = {}
    for features, label in batches:
        for c in range(K):
            members = [normalize(f, dim=0) for f, y in zip(features, label.tolist(), strict=True) if y == c]
            if members:
                batch_mean = torch.stack(members).mean(dim=0)
                mean[c] = batch_mean if c not in mean else decay * mean[c] + (1 - decay) * batch_mean
    return mean


def random_batches(count, classes=K):
    generator = torch.Generator().manual_seed(0)
    return [
        (torch.randn(6, D, generator=generator), torch.randint(0, classes, (6,), generator=generator))
        for _ in range(count)
    ]


def updated_centroids(batches, decay=0.99):
    centroids = ClassCentroids(K, D, decay)
    for features, label in batches:
        centroids.update(features, label)
    return centroids


def test_centroids_equal_a_slow_version():
    batches = random_batches(20)
    centroids, expected = updated_centroids(batches, 0.9), slow_centroids(batches, 0.9)
    for c in range(K):
        torch.testing.assert_close(centroids.mean[c], expected[c])


def test_similarity_is_the_cosine_with_zero_diagonal():
    centroids = updated_centroids(random_batches(20))
    similarity = centroids.similarity()
    assert similarity.dtype == torch.float64
    assert torch.equal(similarity, similarity.t())
    assert not similarity.diagonal().any()
    cosine = torch.cosine_similarity(centroids.mean[1].double(), centroids.mean[3].double(), dim=0)
    torch.testing.assert_close(similarity[1, 3], cosine)


def test_classes_without_images_have_similarity_zero():
    centroids = updated_centroids(random_batches(20, classes=3))
    assert centroids.is_seen.tolist() == [True, True, True, False, False]
    assert not centroids.similarity()[3:].any()


def test_scale_of_features_does_not_change_the_centroids():
    batches = random_batches(5)
    rescaled = [(features * torch.rand(6, 1).add(1), label) for features, label in batches]
    torch.testing.assert_close(updated_centroids(rescaled).mean, updated_centroids(batches).mean)


def test_checkpoint_keeps_the_centroids():
    centroids = updated_centroids(random_batches(5))
    restored = ClassCentroids(K, D)
    restored.load_state_dict(centroids.state_dict())
    torch.testing.assert_close(restored.similarity(), centroids.similarity())


def test_selector_uses_a_given_similarity():
    """The candidates are the classes of the same group for any transitions."""
    group = torch.tensor([0, 1, 0, 1, 0, 1])
    similarity = (group[:, None] == group).double().fill_diagonal_(0)
    selector = SoftLabelSelector(6, 30, map="fixed", k=2, seed=3)
    probs = torch.rand(12, 6).softmax(1)
    selector.medoids.copy_(torch.tensor([[0, 1]]))
    soft = selector(probs, torch.arange(12), similarity)
    assert torch.equal(soft > 0, group[probs.argmax(1)][:, None] == group)
    found = k_medoids(similarity, torch.tensor([[0, 1]]))
    assert torch.equal(selector.clusters(2), found.assignment[0])
