"""Weights between the probe and the trained network, and the choice among them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from semifine.data.catalog import Split
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.models.classifier import Classifier, create_classifier
from semifine.training.interpolation import WEIGHTS, Comparison, compare, interpolate
from tests.conftest import open_dataset, tiny_settings


@pytest.fixture(scope="module")
def networks() -> tuple[Classifier, Classifier]:
    torch.manual_seed(0)
    return create_classifier("test_resnet", 6, 32).eval(), create_classifier("test_resnet", 6, 32).eval()


def test_ends_are_the_two_networks(networks: tuple[Classifier, Classifier]) -> None:
    start, trained = networks
    for weight, expected in ((0.0, start), (1.0, trained)):
        found = interpolate(start, trained, weight).state_dict()
        for name, value in expected.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-7)
    quarter = interpolate(start, trained, 0.25)
    torch.testing.assert_close(quarter.head.weight, 0.75 * start.head.weight + 0.25 * trained.head.weight)


def test_comparison_evaluates_each_network(networks: tuple[Classifier, Classifier]) -> None:
    dataset = open_dataset(tiny_settings())
    device = torch.device("cpu")
    evaluator = Evaluator(dataset.store, create_preprocessor(32, 48, device), device)
    rows = dataset.catalog.rows(Split.TEST)
    label = dataset.catalog.label[rows]
    found = compare(*networks, evaluator, rows, label)
    for weight, top1 in zip(WEIGHTS, found.top1, strict=True):
        network = interpolate(*networks, weight)
        assert top1 == pytest.approx(evaluator.accuracy(network, rows, torch.from_numpy(label))["top1"])
    assert found.images == len(rows)


def test_a_network_with_infinite_weights_is_never_the_best(networks: tuple[Classifier, Classifier]) -> None:
    dataset = open_dataset(tiny_settings())
    device = torch.device("cpu")
    evaluator = Evaluator(dataset.store, create_preprocessor(32, 48, device), device)
    broken = copy.deepcopy(networks[1])
    with torch.no_grad():
        broken.head.weight.fill_(float("nan"))
    rows = dataset.catalog.rows(Split.TEST)
    assert compare(networks[0], broken, evaluator, rows, dataset.catalog.label[rows]).best == 0


def test_the_lowest_loss_is_the_best_and_the_sentence_names_it() -> None:
    found = Comparison(40, (50.0, 60.0, 70.0, 65.0, 62.5), (2.0, 1.5, 1.6, 1.7, 1.8))
    assert found.best == 0.25
    text = found.describe()
    assert "probe classified 50.0 % (35.2 to 64.8) correctly, the trained network 62.5 % (47.0 to 75.8)" in text
    assert text.endswith("weights between probe and trained network (0.25), 60.0 % (44.6 to 73.7)")
    probe = Comparison(40, found.top1, (1.0, *found.loss[1:]))
    assert probe.describe().endswith("lowest loss: the probe, 50.0 % (35.2 to 64.8)")
    assert Comparison.from_dict({"images": 40, "top1": list(found.top1), "loss": list(found.loss)}) == found


def test_ties_prefer_the_probe() -> None:
    assert Comparison(9, (1.0,) * 5, (1.0,) * 5).best == 0
    assert np.isfinite(WEIGHTS).all()
