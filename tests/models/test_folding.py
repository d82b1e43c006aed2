"""Folding batch norms into convolutions keeps the outputs."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import nn

from semifine.models.folding import fold_batch_norms


def randomize(network: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.5, 0.5)  # type: ignore[union-attr, operator]
            module.running_var.uniform_(0.5, 2.0)  # type: ignore[union-attr, operator]
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return network.eval()


def count_norms(network: nn.Module) -> int:
    return sum(isinstance(module, nn.BatchNorm2d) for module in network.modules())


@pytest.mark.parametrize("name", ["test_resnet", "test_efficientnet", "test_convnext", "resnet10t", "ghostnet_050"])
def test_outputs_are_equal(name: str) -> None:
    network = randomize(timm.create_model(name, num_classes=5))
    images = torch.rand(3, 3, 64, 64)
    folded = fold_batch_norms(network, images[:1])
    with torch.no_grad():
        torch.testing.assert_close(folded(images), network(images), rtol=1e-3, atol=1e-3)
    if count_norms(network):
        assert count_norms(folded) < count_norms(network)


class SharedOutput(nn.Module):
    """The output of the convolution has a second use."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.bn = nn.BatchNorm2d(3)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        made = self.conv(images)
        normalized: torch.Tensor = self.bn(made)
        return normalized + made


def test_a_second_use_of_the_convolution_prevents_folding() -> None:
    network = randomize(SharedOutput())
    assert fold_batch_norms(network, torch.rand(1, 3, 4, 4)) is network


def test_networks_that_are_not_finite_stay_as_they_are() -> None:
    network = randomize(timm.create_model("test_resnet", num_classes=5))
    with torch.no_grad():
        network.conv1[0].weight.fill_(float("nan"))
    assert fold_batch_norms(network, torch.rand(1, 3, 32, 32)) is network
