"""WideResNet-28-2 as a backbone."""

from __future__ import annotations

import timm
import torch
from torch import nn

from semifine.models.classifier import create_classifier, normalization
from semifine.models.trunk import find_stages
from semifine.models.wide_resnet import CIFAR_MEAN, WideResNet


def test_wrn_28_2_has_its_depth_width_and_published_number_of_weights() -> None:
    classifier = create_classifier("wrn_28_2", num_classes=10, image_size=32)
    convolutions = [m for m in classifier.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 3 == 28, "25 convolutions, with the shortcuts of three stages"
    assert sum(parameter.numel() for parameter in classifier.parameters()) == 1_467_610
    assert classifier(torch.zeros(2, 3, 32, 32)).logits.shape == (2, 10)
    assert classifier.feature_dim == 128
    assert "wrn_28_2" in timm.list_models()


def test_views_of_32_pixels_are_halved_twice() -> None:
    network = WideResNet()
    sizes = []
    for stage in find_stages(network):
        stage.register_forward_hook(lambda _, __, output: sizes.append(tuple(output.shape[1:])))
    network(torch.zeros(1, 3, 32, 32))
    assert sizes == [(32, 32, 32), (64, 16, 16), (128, 8, 8)]


def test_colors_are_normalized_for_cifar() -> None:
    assert normalization(create_classifier("wrn_28_2", 10, 32)).mean == CIFAR_MEAN
