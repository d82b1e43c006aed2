"""WideResNet-28-2 for images of 32 pixels, the usual network for CIFAR; timm has none. Registered as ``wrn_28_2``."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from timm.models import register_model
from torch import Tensor, nn
from torch.nn.functional import leaky_relu

SLOPE = 0.1
"""Slope of the leaky ReLU for negative inputs."""
BN_MOMENTUM = 0.01
CIFAR_MEAN = (0.4914, 0.4822, 0.4465)
CIFAR_STD = (0.2471, 0.2435, 0.2616)


class Block(nn.Module):
    """Two convolutions, each after batch norm and activation, and a shortcut.

    If the number of channels changes, the shortcut is a convolution of the activated input.
    """

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(channels_in, momentum=BN_MOMENTUM)
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out, momentum=BN_MOMENTUM)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        changes = channels_in != channels_out
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False) if changes else None

    def forward(self, x: Tensor) -> Tensor:
        activated = leaky_relu(self.bn1(x), SLOPE)
        skipped = x if self.shortcut is None else self.shortcut(activated)
        inner = leaky_relu(self.bn2(self.conv1(activated)), SLOPE)
        result: Tensor = skipped + self.conv2(inner)
        return result


class WideResNet(nn.Module):
    """A wide residual network with blocks in three stages of 16, 32 and 64 times ``width`` channels.

    Args:
        depth: Number of convolutions on the longest path, 6 n + 4 for n blocks in each stage.
        width: Factor of the number of channels.

    Example::

        >>> import torch
        >>> WideResNet(depth=10, width=1)(torch.zeros(2, 3, 32, 32)).shape
        torch.Size([2, 64])
    """

    def __init__(self, depth: int = 28, width: int = 2) -> None:
        super().__init__()
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.num_features = channels[-1]
        self.pretrained_cfg: dict[str, Any] = {"mean": CIFAR_MEAN, "std": CIFAR_STD}
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.stages = nn.ModuleList()
        for stage, (before, after) in enumerate(pairwise(channels)):
            blocks = [
                Block(after if place else before, after, 2 if stage and not place else 1)
                for place in range((depth - 4) // 6)
            ]
            self.stages.append(nn.Sequential(*blocks))
        self.bn = nn.BatchNorm2d(channels[-1], momentum=BN_MOMENTUM)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        x = self.stem(images)
        for stage in self.stages:
            x = stage(x)
        return leaky_relu(self.bn(x), SLOPE).mean(dim=(2, 3))


@register_model
def wrn_28_2(pretrained: bool = False, **_: Any) -> WideResNet:  # noqa: ARG001
    """WideResNet-28-2 without a classification head; there are no pretrained weights."""
    return WideResNet(depth=28, width=2)
