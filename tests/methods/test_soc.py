"""Sources of SoC's class similarity, and validation of its settings."""

from __future__ import annotations

import pytest
import torch

from semifine.errors import UserError
from semifine.methods.base import Progress
from tests.methods.one_step import CLASSES, make_batch, make_linear_networks, make_method, make_networks


def test_labeled_features_update_the_centroids_of_their_labels() -> None:
    method, networks = make_method("soc", similarity="labeled_features"), make_networks("soc")
    batch = make_batch(method)
    method(networks, batch, Progress(0, 10))
    features = torch.nn.functional.normalize(networks.student(batch.labeled["weak"]).features, dim=1)
    for image, label in enumerate(batch.label):
        torch.testing.assert_close(method.centroids.mean[label], features[image])
    assert method.centroids.is_seen.sum() == len(batch.label)


def test_unlabeled_features_update_the_centroids_of_their_predictions() -> None:
    method, networks = make_method("soc", similarity="pseudo_features"), make_networks("soc")
    batch = make_batch(method)
    method(networks, batch, Progress(0, 10))
    predicted = networks.student(batch.unlabeled["weak"]).logits.argmax(dim=1)
    assert set(method.centroids.is_seen.nonzero().flatten().tolist()) == set(predicted.tolist())


def test_no_gradient_flows_through_the_similarity() -> None:
    method, networks = make_method("soc", similarity="labeled_features"), make_linear_networks()
    method.centroids = type(method.centroids)(CLASSES, 12)
    method(networks, make_batch(method), Progress(0, 10)).loss.backward()
    assert not method.centroids.mean.requires_grad


def test_default_has_no_centroids() -> None:
    assert not any("centroids" in name for name in make_method("soc").state_dict())


@pytest.mark.parametrize("invalid", [{"map": "fixed"}, {"map": "fixed", "k": CLASSES + 1}, {"alpha": 1.0}])
def test_invalid_settings_raise_a_user_error(invalid: dict[str, float | str]) -> None:
    with pytest.raises(UserError, match=r"the method 'soc': (k|alpha) must"):
        make_method("soc", **invalid)
