"""Arguments, normalization and half-precision weights of backbones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from semifine.errors import UserError
from semifine.models.classifier import create_classifier, is_mostly_linear, normalization, parse_backbone_args
from semifine.models.imagenet import load_imagenet_weights
from semifine.models.pretrained import load_weights_file


def test_backbone_arguments_reach_timm() -> None:
    def kinds_of_layers(args: str | None) -> set[str]:
        network = create_classifier("mobilenetv2_100", 3, 64, backbone_args=args)
        return {type(module).__name__ for module in network.modules()}

    assert "Conv2dSame" in kinds_of_layers("pad_type=same")
    assert "Conv2dSame" not in kinds_of_layers(None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1,b=0.5,c=true,d=same", {"a": 1, "b": 0.5, "c": True, "d": "same"}),
        ("lr=1.5e-3,size=[7, 7]", {"lr": 1.5e-3, "size": [7, 7]}),
        ("scale=1e-6", {"scale": 1e-6}),
        (None, {}),
    ],
)
def test_backbone_arguments_are_parsed(text: str | None, expected: dict[str, object]) -> None:
    assert parse_backbone_args(text) == expected


@pytest.mark.parametrize("text", ["pad_type", "a=[1", "=,="])
def test_malformed_backbone_arguments_are_errors(text: str) -> None:
    with pytest.raises(UserError, match="backbone_args must look like"):
        parse_backbone_args(text)


def test_unknown_backbone_arguments_are_errors() -> None:
    with pytest.raises(UserError, match="'test_resnet' does not accept --backbone-args wings=2"):
        create_classifier("test_resnet", 3, 32, backbone_args="wings=2")


def test_given_normalization_replaces_that_of_timm() -> None:
    network = create_classifier("test_resnet", 3, 32, std=(0.1, 0.2, 0.3))
    own = timm.get_pretrained_cfg("test_resnet")
    assert own is not None
    assert normalization(network).std == (0.1, 0.2, 0.3)
    assert normalization(network).mean == tuple(own.mean)


def test_stride_of_bottlenecks_moves_to_their_first_convolution() -> None:
    def strides(args: str | None) -> list[int]:
        network = create_classifier("resnet50", 3, 64, backbone_args=args).backbone
        layers = [network.get_submodule(f"layer{stage}.0.conv{i}") for stage in (1, 2, 3, 4) for i in (1, 2)]
        return [layer.stride[0] for layer in layers]  # type: ignore[union-attr,index,misc]

    assert strides(None) == [1, 1, 1, 2, 1, 2, 1, 2]
    assert strides("stride_in_conv1=true") == [1, 1, 2, 1, 2, 1, 2, 1]


def test_drop_path_is_random_in_training_only() -> None:
    torch.manual_seed(0)
    network = create_classifier("test_vit", 3, 160, drop_path=0.5)
    images = torch.rand(4, 3, 160, 160)
    with torch.no_grad():
        assert not torch.equal(network.train()(images).logits, network(images).logits)
        assert torch.equal(network.eval()(images).logits, network(images).logits)


@pytest.mark.parametrize(("name", "expected"), [("test_vit", True), ("tiny_vit_5m_224", True), ("resnet50", False)])
def test_transformers_are_recognized(name: str, expected: bool) -> None:
    assert is_mostly_linear(name) == expected


def test_weights_in_half_precision_load_as_float32(tmp_path: Path) -> None:
    theirs = create_classifier("test_efficientnet", 7, 32)
    path = tmp_path / "half.safetensors"
    half = {
        name: value.half().contiguous() if value.is_floating_point() else value
        for name, value in theirs.state_dict().items()
    }
    save_file(half, path)
    ours = create_classifier("test_efficientnet", 7, 32)
    load_weights_file(ours, path, keep_head=True)
    for name, value in ours.named_parameters():
        assert value.dtype == torch.float32
        assert torch.equal(value, half[name].float()), name


def vit_with_constant_positions(size: int) -> nn.Module:
    network = timm.create_model("test_vit", num_classes=0, img_size=size)
    with torch.no_grad():
        network.pos_embed.fill_(0.25)
        network.pos_embed[:, 0] = 3.0  # the class token
    return network


def test_position_embeddings_are_interpolated_to_the_image_size(tmp_path: Path) -> None:
    path = tmp_path / "vit.safetensors"
    save_file(vit_with_constant_positions(160).state_dict(), path)
    network = create_classifier("test_vit", 3, 96)
    report = load_weights_file(network, path, keep_head=False)
    assert report.wrong_shape == {}
    positions = network.backbone.pos_embed
    assert isinstance(positions, torch.Tensor)
    assert positions.shape[1] == 1 + (96 // 16) ** 2
    assert torch.all(positions[:, 0] == 3)
    torch.testing.assert_close(positions[:, 1:], torch.full_like(positions[:, 1:], 0.25))


def test_downloaded_weights_are_created_for_the_image_size(monkeypatch: pytest.MonkeyPatch) -> None:
    create, asked = timm.create_model, []

    def without_download(name: str, **options: Any) -> nn.Module:
        del options["pretrained"]
        asked.append(options)
        return create(name, **options)

    monkeypatch.setattr(timm, "create_model", without_download)
    network = create_classifier("test_vit", 3, 96, backbone_args="class_token=false,global_pool=avg")
    report = load_imagenet_weights(network, "test_vit", 96, "class_token=false,global_pool=avg")
    assert asked[0] == asked[1]
    assert not report.missing
    assert not report.wrong_shape


@pytest.mark.parametrize(
    ("file", "backbone", "args", "size"),
    [
        ("mobilenetv2_100_inat_birds", "mobilenetv2_100", "pad_type=same", 96),
        ("tiny_vit_5m_224_sam", "tiny_vit_5m_224", None, 224),
        ("resnet50_imagenet_keras", "resnet50", "stride_in_conv1=true", 96),
    ],
)
def test_published_weights_in_half_precision_load(
    shared_data: Path, file: str, backbone: str, args: str | None, size: int
) -> None:
    path = shared_data / "weights" / f"{file}.safetensors"
    if not path.is_file():
        pytest.skip(f"weights not found: put {path.name} into {path.parent}")
    network = create_classifier(backbone, 3, size, backbone_args=args, mean=(0.5, 0.5, 0.5)).eval()
    report = load_weights_file(network, path, keep_head=False)
    assert not report.wrong_shape
    assert not [name for name in report.missing if not name.startswith("head.")], report
    with torch.no_grad():
        logits = network(torch.rand(1, 3, size, size)).logits
    assert logits.dtype == torch.float32
    assert torch.isfinite(logits).all()
