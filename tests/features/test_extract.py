"""Features are computed once per image content, in memory and on disk."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from semifine.features.extract import FeatureCache, FeatureEvaluator
from semifine.models.classifier import create_classifier
from semifine.models.forward import Output


class CountingEvaluator:
    """Returns the row numbers as features, and counts the images."""

    def __init__(self) -> None:
        self.images = 0

    def outputs(self, _: object, rows: np.ndarray, *, flip: bool = False):  # type: ignore[no-untyped-def]
        for part in np.array_split(rows, 2):
            self.images += len(part)
            features = torch.from_numpy(np.stack([part, -part if flip else part], axis=1)).float()
            yield Output(features, features)


def make_store(contents: list[int]) -> SimpleNamespace:
    return SimpleNamespace(digest=np.array([[content] * 16 for content in contents], np.uint8))


def make_evaluator(contents: list[int], folder: Path | None = None) -> tuple[FeatureEvaluator, CountingEvaluator]:
    counting = CountingEvaluator()
    caches = (FeatureCache(folder / "a"), FeatureCache(folder / "b")) if folder else None
    return FeatureEvaluator(counting, None, make_store(contents), caches), counting  # type: ignore[arg-type]


def test_each_image_is_computed_once(tmp_path: Path) -> None:
    features, counting = make_evaluator([1, 2, 3, 4], tmp_path)
    assert features.features(np.array([2, 0])).tolist() == [[2, 2], [0, 0]]
    assert features.features(np.array([0, 1, 2])).tolist() == [[0, 0], [1, 1], [2, 2]]
    assert counting.images == 3
    assert features.features(np.array([1]), flip=True).tolist() == [[1, -1]]

    again, counting = make_evaluator([3, 9, 1], tmp_path)
    assert again.features(np.array([0, 1, 2]))[:, 0].tolist() == [2, 1, 0], "found by content, not by row"
    assert counting.images == 1


def test_damaged_cache_is_computed_again(tmp_path: Path) -> None:
    make_evaluator([1, 2], tmp_path)[0].features(np.array([0, 1]))
    (tmp_path / "a").write_bytes(b"damaged")
    features, counting = make_evaluator([1, 2], tmp_path)
    assert features.features(np.array([0, 1]))[:, 0].tolist() == [0, 1]
    assert counting.images == 2


def test_caches_depend_on_the_backbone_only(tmp_path: Path) -> None:
    torch.manual_seed(0)
    network = create_classifier("test_resnet", 3, 32)
    before = FeatureCache.of(network, "32", tmp_path).path
    with torch.no_grad():
        network.head.bias.add_(1)
    assert FeatureCache.of(network, "32", tmp_path).path == before
    assert FeatureCache.of(network, "64", tmp_path).path != before
    with torch.no_grad():
        next(network.backbone.parameters()).add_(1e-3)
    assert FeatureCache.of(network, "32", tmp_path).path != before


def test_heads_are_evaluated_on_features() -> None:
    features, _ = make_evaluator([1, 2])
    network = SimpleNamespace(head=torch.nn.Linear(2, 3))
    (output,) = features.outputs(network, np.array([1, 0]))  # type: ignore[arg-type]
    torch.testing.assert_close(output.logits, network.head(torch.tensor([[1.0, 1.0], [0.0, 0.0]])))


def test_read_only_folder_is_no_error() -> None:
    features, _ = make_evaluator([1], Path("/proc/none"))
    assert features.features(np.array([0])).shape == (1, 2)


@pytest.mark.parametrize("flip", [False, True])
def test_mirror_images_have_their_own_features(flip: bool) -> None:
    features, _ = make_evaluator([5])
    assert features.features(np.array([0]), flip=flip).shape == (1, 2)
