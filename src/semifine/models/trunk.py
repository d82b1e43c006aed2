"""Splits a backbone into a frozen trunk, whose activations can be computed once, and a trainable tail.

Both parts share their parameters with the backbone, so that its state dict stays the same.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.models.classifier import Classifier
from semifine.models.forward import Output

SEQUENCES = ("blocks", "stages", "layers")
"""Attributes under which timm's backbones keep their stages."""
RESNET_STAGES = ("layer1", "layer2", "layer3", "layer4")
TOLERANCE = 1e-3


class SplitBackbone(NamedTuple):
    """The two parts of a backbone: ``tail(trunk(images)) == backbone(images)``."""

    trunk: nn.Module
    """Images to activations."""
    tail: nn.Module
    """Activations to pooled features."""
    frozen: list[nn.Module]
    """The modules of the trunk."""


def split_backbone(backbone: nn.Module, trainable_stages: int, image_size: int) -> SplitBackbone:
    """Splits a backbone before its last stages.

    Args:
        backbone: A timm network without classifier.
        trainable_stages: Number of stages in the tail. With 0, the trunk is the whole backbone.
        image_size: Side of the images, for a check that the parts equal the whole.

    Raises:
        UserError: If the backbone has too few stages or cannot be split.

    Example:
        >>> import timm
        >>> backbone = timm.create_model("resnet10t", num_classes=0).eval()
        >>> split = split_backbone(backbone, trainable_stages=1, image_size=64)
        >>> split.trunk(torch.zeros(1, 3, 64, 64)).shape
        torch.Size([1, 256, 4, 4])
    """
    if trainable_stages == 0:
        return SplitBackbone(_Trunk(backbone), nn.Identity(), [backbone])
    name = type(backbone).__name__
    stages = find_stages(backbone)
    if not 0 < trainable_stages < len(stages):
        raise UserError(
            f"The backbone {name} has {len(stages)} stages: train_stages must be at least 1 and below {len(stages)}."
        )
    cut = len(stages) - trainable_stages
    last_frozen = stages[cut - 1]
    trunk = _Trunk(backbone, last_frozen)
    tail, frozen = _create_tail(backbone, stages, cut)
    split = SplitBackbone(trunk, tail, frozen)
    if not _equals(split, backbone, image_size):
        raise UserError(f"The backbone {name} cannot be split into frozen and trained stages; omit --train-stages.")
    return split


class TailClassifier(nn.Module):
    """A classifier that takes the activations of its frozen trunk instead of images. It shares all parameters.

    Args:
        classifier: The whole classifier.
        tail: The part of its backbone after the trunk.
    """

    def __init__(self, classifier: Classifier, tail: nn.Module) -> None:
        super().__init__()
        self.tail = tail
        self.head = classifier.head
        self.heads = classifier.heads

    def forward(self, activations: Tensor) -> Output:
        features = self.tail(activations)
        return Output(self.head(features), features, {name: head(features) for name, head in self.heads.items()})


def find_stages(backbone: nn.Module) -> list[nn.Module]:
    """Returns the stages of a backbone from the input to the output; empty for an unknown structure.

    Example:
        >>> import timm
        >>> len(find_stages(timm.create_model("resnet10t", num_classes=0)))
        4
    """
    for attribute in SEQUENCES:
        sequence = getattr(backbone, attribute, None)
        if isinstance(sequence, nn.Sequential | nn.ModuleList) and len(sequence) > 1:
            return list(sequence)
    return [getattr(backbone, stage) for stage in RESNET_STAGES if hasattr(backbone, stage)]


class _Reached(Exception):
    """Carries the activations out of the forward pass, so that later layers do not run."""

    def __init__(self, activations: Tensor) -> None:
        super().__init__()
        self.activations = activations


def _stop(_: nn.Module, __: object, output: Tensor) -> None:
    raise _Reached(output)


class _Trunk(nn.Module):
    """Runs a backbone up to one stage, or to its end, in evaluation mode and without gradient."""

    def __init__(self, backbone: nn.Module, last: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self._last = (backbone if last is None else last,)  # a tuple, so that the stage is not registered twice

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        was_training = self.backbone.training
        self.backbone.eval()
        handle = self._last[0].register_forward_hook(_stop)
        try:
            self.backbone(images)
        except _Reached as reached:
            return reached.activations
        finally:
            handle.remove()
            self.backbone.train(was_training)
        raise AssertionError("the stage did not run")


def _create_tail(backbone: nn.Module, stages: list[nn.Module], cut: int) -> tuple[nn.Module, list[nn.Module]]:
    """Returns a shallow copy of the backbone that starts at a stage, and the modules that it skips."""
    tail = copy.copy(backbone)
    tail._modules = dict(backbone._modules)
    frozen: list[nn.Module] = []
    for name, child in backbone.named_children():
        if isinstance(child, nn.Sequential | nn.ModuleList) and list(child) == stages:
            frozen += stages[:cut]
            layers = [nn.Identity() if index < cut else stage for index, stage in enumerate(stages)]
            tail._modules[name] = nn.Sequential(*layers) if isinstance(child, nn.Sequential) else nn.ModuleList(layers)
            break
        frozen.append(child)
        tail._modules[name] = nn.Identity()
        if child is stages[cut - 1]:
            break
    if hasattr(tail, "_pos_embed"):
        tail._pos_embed = _identity  # type: ignore[assignment]
    return tail, frozen


def _identity(tokens: Tensor) -> Tensor:
    return tokens


@torch.no_grad()
def _equals(split: SplitBackbone, backbone: nn.Module, image_size: int) -> bool:
    device = next(backbone.parameters()).device
    images = torch.rand(2, 3, image_size, image_size, generator=torch.Generator().manual_seed(0)).to(device)
    training = [(module, module.training) for module in backbone.modules()]
    backbone.eval()
    split.tail.training = False
    try:
        expected, found = backbone(images), split.tail(split.trunk(images))
    except (RuntimeError, TypeError, AttributeError):
        return False
    finally:
        for module, mode in training:
            module.training = mode
    return expected.shape == found.shape and torch.allclose(expected, found, rtol=TOLERANCE, atol=TOLERANCE)
