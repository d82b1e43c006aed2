"""The frozen and the trained part of a backbone together equal the backbone."""

from __future__ import annotations

import pytest
import timm
import torch

from semifine.errors import UserError
from semifine.models.classifier import create_classifier
from semifine.models.trunk import TailClassifier, find_stages, split_backbone

NAMES = ["test_resnet", "test_efficientnet", "test_vit", "test_convnext", "resnet10t"]


@pytest.mark.parametrize("name", NAMES)
def test_parts_equal_the_whole(name: str) -> None:
    torch.manual_seed(0)
    size = timm.create_model(name).pretrained_cfg["input_size"][-1]
    backbone = timm.create_model(name, num_classes=0).eval()
    images = torch.rand(2, 3, size, size)
    for stages in range(1, len(find_stages(backbone))):
        split = split_backbone(backbone, stages, size)
        with torch.no_grad():
            torch.testing.assert_close(split.tail(split.trunk(images)), backbone(images))


def test_parts_share_the_parameters() -> None:
    classifier = create_classifier("test_resnet", 4, 32)
    names = set(classifier.state_dict())
    split = split_backbone(classifier.backbone, 1, 32)
    tail = TailClassifier(classifier, split.tail)
    assert set(classifier.state_dict()) == names, "the state dict stays the same"
    frozen = {id(parameter) for module in split.frozen for parameter in module.parameters()}
    trained = {id(parameter) for parameter in tail.parameters()}
    own = {id(parameter) for parameter in classifier.parameters()}
    assert not frozen & trained
    assert frozen | trained == own


def test_gradients_reach_the_tail_only() -> None:
    classifier = create_classifier("test_resnet", 4, 32)
    split = split_backbone(classifier.backbone, 1, 32)
    output = TailClassifier(classifier, split.tail)(split.trunk(torch.rand(2, 3, 32, 32)))
    output.logits.sum().backward()
    assert classifier.head.weight.grad is not None
    assert all(parameter.grad is None for module in split.frozen for parameter in module.parameters())


def test_impossible_splits_are_errors() -> None:
    backbone = timm.create_model("test_resnet", num_classes=0)
    with pytest.raises(UserError, match="train_stages must be at least 1 and below 4"):
        split_backbone(backbone, 4, 32)
