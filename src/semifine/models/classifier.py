"""A timm backbone with a linear classification head, and projection heads."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from semifine.errors import UserError
from semifine.models.forward import Output

PROJECTION = "projection"
"""The name of a projection among a classifier's heads; methods share it, so that one can start from another's."""


def linear_projection(feature_dim: int, dim: int) -> nn.Module:
    """One linear layer (MoCo v1)."""
    return nn.Linear(feature_dim, dim)


def mlp_projection(feature_dim: int, dim: int) -> nn.Module:
    """Two layers with a ReLU between them (MoCo v2, SimMatch)."""
    return nn.Sequential(nn.Linear(feature_dim, feature_dim), nn.ReLU(inplace=True), nn.Linear(feature_dim, dim))


def l2_normalize(projected: Tensor) -> Tensor:
    """(B, D) rows of length 1, in float32."""
    return normalize(projected.float(), dim=1)


@dataclass(frozen=True)
class Normalization:
    """Mean and standard deviation of the color channels that a backbone expects, in 0..1."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


class Classifier(nn.Module):
    """images (B, 3, S, S) -> logits (B, K), pooled features (B, D), and the outputs of ``heads`` on the features.

    With no classes there is no classifying head, and the logits are the features, as timm does it.
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
    backbone: str, num_classes: int, image_size: int, heads: Callable[[int], nn.ModuleDict] | None = None
) -> Classifier:
    """A classifier with fresh weights; ``backbone`` is any timm name, ``heads`` makes more heads for a feature size."""
    check_backbone_name(backbone)
    options: dict[str, Any] = {"img_size": image_size} if _has_fixed_input_size(backbone) else {}
    body = timm.create_model(backbone, pretrained=False, num_classes=0, **options)
    classifier = Classifier(body, _feature_dim(body), num_classes)
    if heads is not None:  # last, so that a method's heads do not change the random weights of the rest
        classifier.heads = heads(classifier.feature_dim)
    return classifier.to(memory_format=torch.channels_last)  # convolutions are faster so, on a CPU by a quarter


@torch.inference_mode()
def check_image_size(classifier: Classifier, backbone: str, image_size: int) -> None:
    """Raises where the images are too small for the network to have anything left after its last layer."""
    was_training = classifier.training
    try:
        classifier.eval()(torch.zeros(1, 3, image_size, image_size))
    except (RuntimeError, AssertionError) as error:
        raise UserError(
            f"The backbone '{backbone}' cannot take images of {image_size} x {image_size} pixels: "
            "give another --image-size."
        ) from error
    finally:
        classifier.train(was_training)


def normalization(classifier: Classifier) -> Normalization:
    """What the backbone was made for; ImageNet's mean and deviation for most."""
    config = getattr(classifier.backbone, "pretrained_cfg", {})
    return Normalization(
        tuple(config.get("mean", (0.485, 0.456, 0.406))), tuple(config.get("std", (0.229, 0.224, 0.225)))
    )


def check_backbone_name(backbone: str) -> None:
    """Raises a helpful error when timm does not know the name."""
    if timm.is_model(backbone):
        return
    near = difflib.get_close_matches(backbone, timm.list_models(), n=3)
    hint = f" Did you mean {' or '.join(near)}?" if near else ""
    raise UserError(f"Unknown backbone '{backbone}'.{hint} 'semifine list backbones' shows them all.")


def _feature_dim(body: nn.Module) -> int:
    # some timm models pool to more channels than num_features says
    return int(getattr(body, "head_hidden_size", None) or getattr(body, "num_features"))  # noqa: B009


def _has_fixed_input_size(backbone: str) -> bool:
    """Vision transformers are built for one image size; convolutional networks take any."""
    config = timm.get_pretrained_cfg(backbone)
    return bool(config and config.fixed_input_size)
