"""Class centroids from features, and clusterings by their similarity."""

import torch
from torch.nn.functional import normalize

from semifine.soft_labels import ClassCentroids, SoftLabelSelector, k_medoids

K, D = 5, 7


def slow_centroids(batches, decay):
    """One class, one batch after the other."""
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


def followed(batches, decay=0.99):
    centroids = ClassCentroids(K, D, decay)
    for features, label in batches:
        centroids.update(features, label)
    return centroids


def test_centroids_equal_a_slow_running_mean():
    batches = random_batches(20)
    centroids, expected = followed(batches, 0.9), slow_centroids(batches, 0.9)
    for c in range(K):
        torch.testing.assert_close(centroids.mean[c], expected[c])


def test_similarity_is_the_cosine_without_the_diagonal():
    centroids = followed(random_batches(20))
    similarity = centroids.similarity()
    assert similarity.dtype == torch.float64
    assert torch.equal(similarity, similarity.t())
    assert not similarity.diagonal().any()
    cosine = torch.cosine_similarity(centroids.mean[1].double(), centroids.mean[3].double(), dim=0)
    torch.testing.assert_close(similarity[1, 3], cosine)


def test_classes_without_images_have_similarity_zero():
    centroids = followed(random_batches(20, classes=3))
    assert centroids.is_seen.tolist() == [True, True, True, False, False]
    assert not centroids.similarity()[3:].any()


def test_the_length_of_features_does_not_matter():
    batches = random_batches(5)
    louder = [(features * torch.rand(6, 1).add(1), label) for features, label in batches]
    torch.testing.assert_close(followed(louder).mean, followed(batches).mean)


def test_a_checkpoint_keeps_the_centroids():
    centroids = followed(random_batches(5))
    restored = ClassCentroids(K, D)
    restored.load_state_dict(centroids.state_dict())
    torch.testing.assert_close(restored.similarity(), centroids.similarity())


def test_the_selector_clusters_by_a_given_similarity():
    """Two families of alike classes: the candidates of a prediction are its family, whatever the transitions say."""
    family = torch.tensor([0, 1, 0, 1, 0, 1])
    alike = (family[:, None] == family).double().fill_diagonal_(0)
    selector = SoftLabelSelector(6, 30, map="fixed", k=2, seed=3)
    probs = torch.rand(12, 6).softmax(1)
    selector.medoids.copy_(torch.tensor([[0, 1]]))
    soft = selector(probs, torch.arange(12), alike)
    assert torch.equal(soft > 0, family[probs.argmax(1)][:, None] == family)
    found = k_medoids(alike, torch.tensor([[0, 1]]))
    assert torch.equal(selector.clusters(2), found.assignment[0])
