"""Properties of the supervised baseline and of the oracle."""

from __future__ import annotations

import pytest
import torch

from semifine.data.catalog import Split
from semifine.data.sources import load_catalog
from semifine.losses import supervised_cross_entropy
from semifine.training.optim import learning_rate_factor
from tests.conftest import tiny_settings


def test_labels_of_minus_one_are_ignored() -> None:
    logits = torch.randn(6, 4)
    label = torch.tensor([0, -1, 2, -1, 3, 1])
    labeled = label >= 0
    torch.testing.assert_close(
        supervised_cross_entropy(logits, label), supervised_cross_entropy(logits[labeled], label[labeled])
    )


@pytest.mark.parametrize(("unlabeled", "remaining"), [("in", 0), ("inout", 2 * 9)])
def test_oracle_trains_on_labeled_and_in_class_unlabeled_images(unlabeled: str, remaining: int) -> None:
    settings = tiny_settings("oracle", data__unlabeled=unlabeled, data__ood_genera=1)
    catalog = load_catalog(settings.data, settings.data_settings)
    revealed = catalog.with_truth_revealed()
    assert len(revealed.rows(Split.LABELED)) == 6 * (3 + 9)
    assert len(revealed.rows(Split.UNLABELED)) == remaining
    assert len(revealed.rows(Split.TEST)) == len(catalog.rows(Split.TEST))


def test_half_cosine_reaches_zero_at_the_last_step() -> None:
    settings = tiny_settings("supervised", schedule="half_cosine", iterations=100).train
    assert learning_rate_factor(0, settings) == 1
    assert learning_rate_factor(100, settings) == 0
