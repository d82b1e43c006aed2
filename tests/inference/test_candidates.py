"""Candidates without torch are those that the method itself would choose."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from semifine.data.catalog import Split
from semifine.inference.calibration import ClassClusters, most_probable
from semifine.inference.model import TrainedModel
from semifine.soft_labels import SoftLabelSelector


@pytest.mark.parametrize("options", [{"alpha": 3.0}, {"map": "exponential"}, {"map": "fixed", "k": 4}])
def test_clusters_choose_what_the_selector_chooses(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    selector = SoftLabelSelector(12, 50, **options)
    for _ in range(40):
        selector((3 * torch.randn(20, 12)).softmax(1), torch.randint(50, (20,)))
    probs = (4 * torch.rand(500, 1) * torch.randn(500, 12)).softmax(1)
    clusters = ClassClusters(selector.assignment.numpy(), selector.granularity.min_confidences().numpy())
    assert np.array_equal(clusters.candidates(probs.numpy()), selector.select(probs).candidates.numpy())


def test_min_confidences_are_exact_to_the_last_bit() -> None:
    selector = SoftLabelSelector(30, 5, alpha=2.0)
    first = selector.granularity.min_confidences()
    assert (selector.granularity(first) == selector.sizes).all()
    below = torch.nextafter(first[1:], torch.zeros(()).double())
    assert (selector.granularity(below) == selector.sizes[:-1]).all()


def test_most_probable_classes_hold_the_mass_and_none_is_spare() -> None:
    probs = np.random.default_rng(0).dirichlet(np.full(8, 0.4), 200)
    chosen = most_probable(probs, 0.8)
    held = (probs * chosen).sum(1)
    least = np.where(chosen, probs, np.inf).min(1)
    assert (held >= 0.8 - 1e-12).all()
    assert (held - least < 0.8).all()
    assert chosen[np.arange(200), probs.argmax(1)].all()


def test_outputs_contain_features_and_logits_of_the_rows(soc_model: TrainedModel) -> None:
    rows = soc_model.run.dataset.catalog.rows(Split.UNLABELED)
    (output,) = soc_model.outputs(rows)
    assert output.features.shape == (len(rows), soc_model.network.feature_dim)
    head = soc_model.network.head
    with torch.inference_mode():
        torch.testing.assert_close(output.logits, head(output.features), atol=1e-4, rtol=0)
    probs = output.logits.softmax(1).numpy()
    chosen = soc_model.candidates(probs)
    assert chosen[np.arange(len(rows)), probs.argmax(1)].all()
    assert soc_model.clusters is not None
