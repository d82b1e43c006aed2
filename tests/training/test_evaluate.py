from __future__ import annotations

import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from semifine.methods.base import PseudoLabels
from semifine.models import forward
from semifine.models.classifier import create_classifier
from semifine.training.evaluate import Evaluator, accuracy, confusion_matrix
from semifine.training.fit import summarize_evaluations
from semifine.training.meters import AverageMeter, PseudoLabelMeter
from semifine.training.sample_stats import entropy


def test_accuracy_counts_first_and_first_five() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.06, 0.04], [0.04, 0.06, 0.1, 0.1, 0.2, 0.5]])
    assert accuracy(probs, torch.tensor([0, 0])) == {"top1": 50.0, "top5": 50.0}
    assert accuracy(probs, torch.tensor([1, 1])) == {"top1": 0.0, "top5": 100.0}


def test_percentages_are_free_of_rounding() -> None:
    label = torch.arange(1000)
    label[561:] = 0
    assert accuracy(torch.eye(1000), label)["top1"] == 56.1


def test_few_classes_have_a_top5_of_all() -> None:
    assert accuracy(torch.tensor([[0.6, 0.4]]), torch.tensor([1]))["top5"] == 100.0


def test_confusion_matrix_rows_are_true_classes() -> None:
    probs = torch.eye(3)[[0, 1, 1, 2]]
    expected = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    assert torch.equal(confusion_matrix(probs, torch.tensor([0, 0, 1, 2])), expected)


class Images:
    """Stands in for a AugmentPipeline: row i is image i."""

    def __init__(self, images: torch.Tensor) -> None:
        self.images = images

    def augment(self, rows: NDArray[np.int64], *_: object) -> dict[str, torch.Tensor]:
        return {"test": self.images[torch.from_numpy(rows)]}


def test_a_cpu_evaluates_few_images_at_a_time_to_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images = torch.randn(23, 3, 32, 32)
    network = create_classifier("test_resnet", 5, 32).eval()
    with torch.no_grad():
        expected = network(images)
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(forward, "CPU_PIXELS", 4 * 32 * 32)
    evaluator = Evaluator(Images(images), nullcontext, 10)  # type: ignore[arg-type]
    outputs = list(evaluator.outputs(network, np.arange(23)))
    assert [len(output.logits) for output in outputs] == [10, 10, 3]
    assert sizes == [4, 4, 2, 4, 4, 2, 3]
    torch.testing.assert_close(torch.cat([output.logits for output in outputs]), expected.logits)
    torch.testing.assert_close(torch.cat([output.features for output in outputs]), expected.features)


@pytest.mark.parametrize(
    ("device", "side", "at_once"), [("cpu", 224, 8), ("cpu", 32, 392), ("cpu", 4096, 1), ("cuda", 224, 999)]
)
def test_a_gpu_takes_all_images_at_once_and_a_cpu_few(device: str, side: int, at_once: int) -> None:
    assert forward.micro_batch_size(999, side, torch.device(device)) == at_once


def test_number_meter_gives_means_and_starts_anew() -> None:
    meter = AverageMeter()
    meter.update({"loss": torch.tensor(1.0)})
    meter.update({"loss": torch.tensor(3.0)})
    assert meter.read() == {"loss": 2.0}
    assert meter.read() == {}


def test_pseudo_label_meter_leaves_unknown_and_out_of_class_truths_out() -> None:
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


def test_results_are_named_for_how_they_were_selected() -> None:
    rows = [(1, 50.0, 40.0, 80.0), (2, 70.0, 55.0, 85.0), (3, 60.0, 60.0, 82.0)]
    evaluations = [
        {"step": step, "val_top1": val, "val_top5": 99.0, "test_top1": top1, "test_top5": top5}
        for step, val, top1, top5 in rows
    ]
    result = summarize_evaluations(evaluations)
    assert (result["top1"], result["top5"]) == (60.0, 82.0), "the last, never the best on test"
    assert result["selected_on_val"] == {"step": 2, "top1": 55.0, "top5": 85.0}
    assert (result["best_on_test"]["top1"], result["best_on_test"]["top5"]) == (60.0, 85.0)


def test_results_without_validation_or_test_images() -> None:
    assert "selected_on_val" not in summarize_evaluations([{"step": 1, "test_top1": 1.0, "test_top5": 2.0}])
    assert summarize_evaluations([{"step": 1, "val_top1": 1.0, "val_top5": 2.0}])["top1"] is None
    assert summarize_evaluations([]) == {}
