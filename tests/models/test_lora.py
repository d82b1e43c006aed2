"""Low-rank updates start at zero, are all that is trained, and are merged exactly."""

from __future__ import annotations

import copy

import pytest
import timm
import torch
from torch import nn
from torch.nn.utils import parametrize

from semifine.errors import UserError
from semifine.models.classifier import create_classifier
from semifine.models.lora import add_low_rank_updates, is_low_rank_update, merged_state_dict


def updated_vit() -> nn.Module:
    torch.manual_seed(0)
    backbone = timm.create_model("test_vit", num_classes=0).eval()
    add_low_rank_updates(backbone, rank=3, seed=1)
    return backbone


def test_network_does_not_change_at_the_start() -> None:
    torch.manual_seed(0)
    plain = timm.create_model("test_vit", num_classes=0).eval()
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(plain(images), updated_vit()(images))


def test_updates_are_products_of_two_matrices_on_attention_and_mlp_layers() -> None:
    backbone = updated_vit()
    for block in backbone.blocks:
        for layer in (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2):
            update = layer.parametrizations.weight[0]
            nn.init.normal_(update.up)
            expected = layer.parametrizations.weight.original + update.up.mm(update.down)
            torch.testing.assert_close(layer.weight, expected)
            assert torch.linalg.matrix_rank(layer.weight - layer.parametrizations.weight.original, tol=1e-4) == 3


def test_gradients_reach_layers_whose_weight_a_network_reads_directly() -> None:
    """EVA and BEiT call ``linear(x, self.qkv.weight, ...)`` instead of the layer."""
    backbone = timm.create_model("test_vit", num_classes=0)
    add_low_rank_updates(backbone, rank=2, seed=0)
    layer = backbone.blocks[0].attn.qkv
    torch.nn.functional.linear(torch.rand(1, layer.in_features), layer.weight).sum().backward()
    assert layer.parametrizations.weight[0].up.grad.abs().sum() > 0


def test_merged_weights_fit_a_plain_network_and_give_the_same_outputs() -> None:
    backbone = updated_vit()
    for name, parameter in backbone.named_parameters():
        if is_low_rank_update(name):
            nn.init.normal_(parameter, std=0.1)
    plain = timm.create_model("test_vit", num_classes=0).eval()
    before = copy.deepcopy(plain.state_dict())
    plain.load_state_dict(merged_state_dict(backbone))
    assert any(not torch.equal(before[name], value) for name, value in plain.state_dict().items())
    images = torch.rand(2, 3, 160, 160)
    with torch.no_grad():
        assert torch.equal(plain(images), backbone(images))


def test_seed_determines_the_first_factors() -> None:
    first, second, other = (timm.create_model("test_vit", num_classes=0) for _ in range(3))
    for network, seed in ((first, 4), (second, 4), (other, 5)):
        add_low_rank_updates(network, rank=2, seed=seed)
    downs = [net.blocks[0].mlp.fc1.parametrizations.weight[0].down for net in (first, second, other)]
    assert torch.equal(downs[0], downs[1])
    assert not torch.equal(downs[0], downs[2])


def test_updates_are_added_once() -> None:
    backbone = updated_vit()
    add_low_rank_updates(backbone, rank=3, seed=1)
    assert all(len(m.parametrizations.weight) == 1 for m in backbone.modules() if parametrize.is_parametrized(m))


def test_convolutional_network_is_an_error() -> None:
    with pytest.raises(UserError, match="has no linear layers for LoRA"):
        add_low_rank_updates(create_classifier("test_resnet", 3, 32).backbone, rank=2, seed=0)
