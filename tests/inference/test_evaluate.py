"""Accuracy, the confusion matrix, and the forward pass over stored images."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semifine.inference.evaluate import Evaluator, accuracy, confusion_matrix
from semifine.inference.network import ImageClassifier
from semifine.models import forward
from semifine.models.classifier import create_classifier


def test_accuracy_counts_first_and_first_five() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.1, 0.1, 0.06, 0.04], [0.04, 0.06, 0.1, 0.1, 0.2, 0.5]])
    assert accuracy(probs, torch.tensor([0, 0])) == {"top1": 50.0, "top5": 50.0}
    assert accuracy(probs, torch.tensor([1, 1])) == {"top1": 0.0, "top5": 100.0}


def test_percentages_are_free_of_rounding() -> None:
    label = torch.arange(1000)
    label[561:] = 0
    assert accuracy(torch.eye(1000), label)["top1"] == 56.1


def test_top5_of_few_classes_counts_all() -> None:
    assert accuracy(torch.tensor([[0.6, 0.4]]), torch.tensor([1]))["top5"] == 100.0


def test_confusion_matrix_rows_are_true_classes() -> None:
    probs = torch.eye(3)[[0, 1, 1, 2]]
    expected = torch.tensor([[1, 1, 0], [0, 1, 0], [0, 0, 1]])
    assert torch.equal(confusion_matrix(probs, torch.tensor([0, 0, 1, 2])), expected)


def test_micro_batches_on_the_cpu_do_not_change_the_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (23, 32, 32, 3), dtype=torch.uint8)
    network = create_classifier("test_resnet", 5, 32).eval()
    with torch.no_grad():
        _, logits, features = ImageClassifier(network)(images)
    sizes: list[int] = []
    network.register_forward_pre_hook(lambda _, given: sizes.append(len(given[0])))
    monkeypatch.setattr(forward, "CPU_PIXELS", 4 * 32 * 32)
    preprocessor = SimpleNamespace(transform_stored=lambda _store, rows: list(images[torch.from_numpy(rows)]))
    evaluator = Evaluator(None, preprocessor, torch.device("cpu"), batch_size=10)  # type: ignore[arg-type]
    outputs = list(evaluator.outputs(network, np.arange(23)))
    assert [len(output.logits) for output in outputs] == [10, 10, 3]
    assert sizes[:3] == [1, 1, 1], "folding the batch norms runs one image three times"
    assert sizes[3:] == [4, 4, 2, 4, 4, 2, 3]
    torch.testing.assert_close(torch.cat([output.logits for output in outputs]), logits)
    torch.testing.assert_close(torch.cat([output.features for output in outputs]), features)


@pytest.mark.parametrize(
    ("device", "side", "at_once"), [("cpu", 224, 8), ("cpu", 32, 392), ("cpu", 4096, 1), ("cuda", 224, 999)]
)
def test_micro_batches_are_small_on_a_cpu_only(device: str, side: int, at_once: int) -> None:
    assert forward.micro_batch_size(999, side, torch.device(device)) == at_once
