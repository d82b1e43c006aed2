"""Meters of training steps, and the history of predictions."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from semifine.methods.base import PseudoLabels
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.meters import AverageMeter, LabelHistory, PseudoLabelMeter
from semifine.training.progress import Display
from semifine.training.sample_stats import entropy, keep_sample_stats
from tests.conftest import tiny_settings


def test_average_meter_returns_means_and_resets() -> None:
    meter = AverageMeter()
    meter.update({"loss": torch.tensor(1.0)})
    meter.update({"loss": torch.tensor(3.0)})
    assert meter.read() == {"loss": 2.0}
    assert meter.read() == {}


def test_pseudo_label_meter_ignores_unknown_and_out_of_class_truth() -> None:
    meter = PseudoLabelMeter(truth=torch.tensor([0, 1, -1, 7]), num_classes=3)
    probs = torch.tensor([[0.8, 0.1, 0.1], [0.6, 0.3, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    target = torch.tensor([[1.0, 0, 0], [0.7, 0.3, 0], [0, 0, 1.0], [0.3, 0.4, 0.3]])
    meter.update(PseudoLabels(probs, target, torch.tensor([1.0, 0.0, 1.0, 1.0])), torch.arange(4))
    numbers = meter.read()
    assert numbers.pop("entropy_before") == pytest.approx(float(entropy(probs).mean()))
    assert numbers.pop("entropy_after") == pytest.approx(float(entropy(target).mean()))
    assert numbers.pop("predicted_classes") == pytest.approx(math.exp(1.5 * math.log(2))), "2, 1 and 1 of 4"
    assert numbers == {
        "candidates": 7 / 4,
        "accepted": 3 / 4,
        "single_candidate": 2 / 4,
        "entropy_raised": 1 / 4,
        "pseudo_label_accuracy": 50.0,
        "candidate_hit_rate": 100.0,
        "z_obj1": pytest.approx((0.8 + 0.3) / 2),
        "accepted_accuracy": 100.0,
    }
    assert meter.read() == {}


def labels(prediction: torch.Tensor, accepted: torch.Tensor, num_classes: int) -> PseudoLabels:
    probs = torch.nn.functional.one_hot(prediction, num_classes).float()
    return PseudoLabels(probs, probs, accepted)


def test_label_history_equals_a_plain_count() -> None:
    random = np.random.default_rng(0)
    history = LabelHistory(num_samples=20, num_classes=4)
    last: dict[int, int] = {}
    changes, predicted, accepted = [0] * 20, [0] * 4, [0] * 4
    for _ in range(30):
        index = random.permutation(20)[:6]
        prediction, taken = random.integers(0, 4, 6), random.integers(0, 2, 6)
        history.update(labels(torch.from_numpy(prediction), torch.from_numpy(taken), 4), torch.from_numpy(index))
        for image, label, is_taken in zip(index.tolist(), prediction.tolist(), taken.tolist(), strict=True):
            changes[image] += image in last and last[image] != label
            last[image] = label
            predicted[label] += 1
            accepted[label] += is_taken
    assert history.changes.tolist() == changes
    assert history.pop_class_counts() == {"predicted": predicted, "accepted": accepted}
    assert history.pop_class_counts() == {"predicted": [0] * 4, "accepted": [0] * 4}
    assert history.changes.tolist() == changes, "reading the class counts keeps the changes of images"


def test_later_occurrence_in_a_batch_counts() -> None:
    history = LabelHistory(num_samples=2, num_classes=3)
    history.update(labels(torch.tensor([0]), torch.ones(1), 3), torch.tensor([1]))
    history.update(labels(torch.tensor([0, 2]), torch.ones(2), 3), torch.tensor([1, 1]))
    assert history.changes.tolist() == [0, 1]
    assert history.last.tolist() == [-1, 2]


def test_run_writes_class_counts_and_sample_stats_at_every_evaluation(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    fit(tiny_settings(keep_sample_stats="every"), folder.path, display=Display(quiet=True))
    records = [record for record in folder.read_metrics() if record["kind"] == "classes"]
    assert [record["step"] for record in records] == [6, 12]
    assert all(sum(record["predicted"]) == 6 * 8 for record in records), "6 steps of 8 unlabeled images each"
    evaluations = [record for record in folder.read_metrics() if record["kind"] == "evaluation"]
    assert [record["unlabeled"]["images"] for record in evaluations] == [54, 54]
    last = pq.read_table(folder.samples_at(12))
    assert last.equals(pq.read_table(folder.samples))
    assert not last.equals(pq.read_table(folder.samples_at(6)))
    assert sum(last["changes"].to_pylist()) > 0


@pytest.mark.parametrize(
    ("wanted", "unlabeled", "learns", "kept"),
    [
        ("auto", 9_600, True, True),  # 500 steps of 32 + 160 images
        ("auto", 9_601, True, False),
        ("auto", 1_600, False, True),  # of 32
        ("auto", 1_601, False, False),
        ("every", 10**9, True, True),
        ("last", 1, True, False),
    ],
)
def test_auto_keeps_sample_stats_if_they_cost_little(wanted: str, unlabeled: int, learns: bool, kept: bool) -> None:
    settings = tiny_settings(keep_sample_stats=wanted, iterations=5000, evaluate_every=500, batch_size=32, mu=5).train
    assert keep_sample_stats(settings, unlabeled, learns) == kept


def test_run_keeps_sample_stats_by_default(tmp_path: Path) -> None:
    """54 unlabeled images, 48 steps of 12 images between evaluations."""
    folder = RunFolder(tmp_path / "run")
    settings = tiny_settings(iterations=96, evaluate_every=48, save_every=96, image_size=16, store_size=18)
    fit(settings, folder.path, display=Display(quiet=True))
    assert pq.read_table(folder.samples_at(48)).num_rows == 54
    assert pq.read_table(folder.samples_at(96)).equals(pq.read_table(folder.samples))
