"""A timm backbone with a linear classification head, and projection heads."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
import yaml
from torch import Tensor, nn
from torch.nn.functional import normalize

from semifine.errors import UserError
from semifine.models import wide_resnet  # noqa: F401  # registers its networks with timm
from semifine.models.forward import Output

PROJECTION = "projection"
"""Name of the projection head; methods share it, so that one can start from the weights of another."""


def linear_projection(feature_dim: int, dim: int) -> nn.Module:
    """Returns one linear layer (MoCo v1)."""
    return nn.Linear(feature_dim, dim)


def mlp_projection(feature_dim: int, dim: int) -> nn.Module:
    """Returns two linear layers with a ReLU between them (MoCo v2, SimMatch)."""
    return nn.Sequential(nn.Linear(feature_dim, feature_dim), nn.ReLU(inplace=True), nn.Linear(feature_dim, dim))


def l2_normalize(projected: Tensor) -> Tensor:
    """Scales the rows (B, D) to length 1, in float32."""
    return normalize(projected.float(), dim=1)


Channels = tuple[float, float, float]
"""One value for each of red, green and blue."""


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of the color channels that a backbone expects, for values in 0..1."""

    mean: Channels
    std: Channels


class Classifier(nn.Module):
    """A backbone with a linear classification head and any other heads on the pooled features.

    Args:
        backbone: images (B, 3, S, S) -> pooled features (B, D).
        feature_dim: Length D of the features.
        num_classes: Number of classes K. With 0, the logits are the features, as in timm.
        heads: Heads of a method by name, features (B, D) -> any.
    """

    def __init__(
        self, backbone: nn.Module, feature_dim: int, num_classes: int, heads: nn.ModuleDict | None = None
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.feature_dim = feature_dim
        self.num_classes = num_classes
        self.head: nn.Module = nn.Linear(feature_dim, num_classes) if num_classes else nn.Identity()
        self.heads = heads if heads is not None else nn.ModuleDict()

    def forward(self, images: Tensor) -> Output:
        features = self.backbone(images)
        return Output(self.head(features), features, {name: head(features) for name, head in self.heads.items()})


def create_classifier(
    backbone: str,
    num_classes: int,
    image_size: int,
    heads: Callable[[int], nn.ModuleDict] | None = None,
    *,
    backbone_args: str | None = None,
    mean: Channels | None = None,
    std: Channels | None = None,
    drop_path: float = 0.0,
) -> Classifier:
    """Creates a classifier with random weights.

    Args:
        backbone: Name of a timm model.
        num_classes: Number of classes; 0 for no classification head.
        image_size: Side of the images in pixels.
        heads: Function that creates the heads of a method from the length of the features.
        backbone_args: Further arguments of the timm model, see :func:`parse_backbone_args`.
        mean: Mean of the color channels; default: from timm's configuration.
        std: Standard deviation of the color channels; default: from timm's configuration.
        drop_path: Largest probability with which a residual branch is skipped in training.

    Raises:
        UserError: If timm has no model of this name, or the model does not have these arguments.

    Example:
        >>> classifier = create_classifier("test_resnet", num_classes=5, image_size=32)
        >>> classifier(torch.zeros(2, 3, 32, 32)).logits.shape
        torch.Size([2, 5])
    """
    check_backbone_name(backbone)
    network = create_backbone(backbone, image_size, backbone_args, drop_path)
    given = {name: tuple(values) for name, values in (("mean", mean), ("std", std)) if values is not None}
    network.pretrained_cfg = {**getattr(network, "pretrained_cfg", {}), **given}  # type: ignore[assignment]
    classifier = Classifier(network, _feature_dim(network), num_classes)
    if heads is not None:  # last, so that the heads of a method do not change the other random weights
        classifier.heads = heads(classifier.feature_dim)
    return classifier.to(memory_format=torch.channels_last)  # makes convolutions 25 % faster on a CPU


def create_backbone(
    name: str, image_size: int, backbone_args: str | None = None, drop_path: float = 0.0, *, pretrained: bool = False
) -> nn.Module:
    """Creates a timm network without classifier.

    Args:
        name: Name of a timm model.
        image_size: Side of the images in pixels.
        backbone_args: Further arguments of the timm model, see :func:`parse_backbone_args`.
        drop_path: Largest probability with which a residual branch is skipped in training.
        pretrained: Load timm's weights, possibly from its hub.

    Raises:
        UserError: If the model does not have these arguments.
    """
    options: dict[str, Any] = {"img_size": image_size} if _has_fixed_input_size(name) else {}
    options |= {"drop_path_rate": drop_path} if drop_path else {}
    options |= parse_backbone_args(backbone_args)
    strided_first = options.pop(STRIDE_IN_CONV1, False)
    try:
        network: nn.Module = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
    except TypeError as error:
        problem = f"--backbone-args {backbone_args}" if backbone_args else f"--drop-path {drop_path}"
        if not backbone_args and not drop_path:
            raise
        raise UserError(f"The backbone '{name}' does not accept {problem}: omit or correct it ({error}).") from error
    if strided_first:
        _move_strides_to_conv1(network)
    return network


STRIDE_IN_CONV1 = "stride_in_conv1"
"""Argument of ResNets in addition to timm's arguments: bottlenecks reduce the resolution in their first convolution."""


def _move_strides_to_conv1(network: nn.Module) -> None:
    for block in network.modules():
        first, second = getattr(block, "conv1", None), getattr(block, "conv2", None)
        if isinstance(first, nn.Conv2d) and isinstance(second, nn.Conv2d) and hasattr(block, "conv3"):
            first.stride, second.stride = second.stride, first.stride


def parse_backbone_args(text: str | None) -> dict[str, Any]:
    """Returns the arguments in a text such as ``pad_type=same,class_token=false``.

    Example:
        >>> parse_backbone_args("pad_type=same,depths=[1, 2],layer_scale=1e-5")
        {'pad_type': 'same', 'depths': [1, 2], 'layer_scale': 1e-05}
    """
    try:
        # YAML needs a point in a number with an exponent.
        numbers = re.sub(r"(?<![\w.])(\d+)(e[-+]?\d)", r"\1.0\2", text or "")
        parsed = yaml.safe_load("{" + numbers.replace("=", ": ") + "}")
    except yaml.YAMLError:
        parsed = None
    if not isinstance(parsed, dict) or None in parsed.values():
        raise UserError(f"backbone_args must look like 'pad_type=same,class_token=false', not '{text}'.")
    return {str(name): value for name, value in parsed.items()}


def is_mostly_linear(backbone: str) -> bool:
    """Whether most weights of a timm model are in linear layers, as in transformers and ConvNeXt.

    Example:
        >>> is_mostly_linear("test_vit"), is_mostly_linear("test_resnet")
        (True, False)
    """
    with torch.device("meta"):  # computes and stores no weights
        network = timm.create_model(backbone, pretrained=False, num_classes=0)
    linear = sum(layer.weight.numel() for layer in network.modules() if isinstance(layer, nn.Linear))
    return linear > sum(parameter.numel() for parameter in network.parameters()) / 2


@torch.no_grad()
def fill_zero_scales(network: nn.Module) -> None:
    """Sets the scale of all normalization layers that start with zeros to one, as in torchvision's ResNets.

    Example:
        >>> network = nn.BatchNorm2d(3)
        >>> _ = nn.init.zeros_(network.weight)
        >>> fill_zero_scales(network)
        >>> network.weight.tolist()
        [1.0, 1.0, 1.0]
    """
    for module in network.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm | nn.GroupNorm) and module.weight is not None:
            module.weight.copy_(torch.where((module.weight == 0).all(), 1.0, module.weight))


def accepts_drop_path(backbone: str) -> bool:
    """Whether a timm model can skip its residual branches in training.

    Example:
        >>> accepts_drop_path("test_vit"), accepts_drop_path("vgg11")
        (True, False)
    """
    try:
        with torch.device("meta"):
            timm.create_model(backbone, pretrained=False, num_classes=0, drop_path_rate=0.1)
    except TypeError:
        return False
    return True


@torch.inference_mode()
def check_image_size(classifier: Classifier, backbone: str, image_size: int) -> None:
    """Raises UserError if the network cannot process images of this size, for example because they are too small."""
    was_training = classifier.training
    try:
        classifier.eval()(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"The backbone '{backbone}' cannot process images of {image_size} x {image_size} pixels: "
            "choose another --image-size."
        ) from error
    finally:
        classifier.train(was_training)


def normalization(classifier: Classifier) -> Normalization:
    """Returns the normalization that was given for the backbone, or with which timm's weights were trained.

    Example:
        >>> normalization(create_classifier("test_resnet", 5, 32, mean=(0.5, 0.5, 0.5))).mean
        (0.5, 0.5, 0.5)
    """
    config = getattr(classifier.backbone, "pretrained_cfg", {})
    return Normalization(
        tuple(config.get("mean", (0.485, 0.456, 0.406))), tuple(config.get("std", (0.229, 0.224, 0.225)))
    )


def check_backbone_name(backbone: str) -> None:
    """Raises UserError with similar names if timm has no model of this name."""
    if timm.is_model(backbone):
        return
    near = difflib.get_close_matches(backbone, timm.list_models(), n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UserError(f"Unknown backbone '{backbone}'.{hint} 'semifine list backbones' shows all names.")


def _feature_dim(backbone: nn.Module) -> int:
    # Some timm models pool to more channels than num_features.
    return int(getattr(backbone, "head_hidden_size", None) or getattr(backbone, "num_features"))  # noqa: B009


def _has_fixed_input_size(backbone: str) -> bool:
    """Whether the network is built for one image size, such as a vision transformer."""
    config = timm.get_pretrained_cfg(backbone)
    return bool(config and config.fixed_input_size)
