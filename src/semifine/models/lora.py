"""LoRA: trainable low-rank updates of the linear layers of a transformer, merged into its weights when it is saved."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from semifine.errors import UserError
from semifine.models.trunk import find_stages

INITIAL_STD = 0.02
"""Standard deviation of the first factor; the second one starts at zero, so that the network does not change."""
ORIGINAL = ".parametrizations.weight.original"
"""Part of the name of an updated weight in the state dict of PyTorch."""


class LowRankUpdate(nn.Module):
    """Adds the product of two trainable matrices to a weight (out, in).

    Args:
        weight: The weight, which stays fixed.
        rank: Largest rank of the update.
        generator: Random numbers of the first factor.
    """

    def __init__(self, weight: Tensor, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        rank = min(rank, *weight.shape)
        down = INITIAL_STD * torch.randn(rank, weight.shape[1], generator=generator)
        self.down = nn.Parameter(down.to(weight.device))
        self.up = nn.Parameter(torch.zeros(weight.shape[0], rank, device=weight.device))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.up @ self.down


def add_low_rank_updates(backbone: nn.Module, rank: int, seed: int, frozen: Collection[int] = ()) -> None:
    """Adds a low-rank update to every linear layer in the stages of a backbone, in place.

    Args:
        backbone: A timm network.
        rank: Rank of the updates.
        seed: Seed of their random first factors.
        frozen: Identities of weights that get no update.

    Raises:
        UserError: If the stages have no linear layers.

    Example:
        >>> import timm
        >>> backbone = timm.create_model("test_vit", num_classes=0)
        >>> add_low_rank_updates(backbone, rank=2, seed=0)
        >>> [name for name, _ in backbone.blocks[0].mlp.fc1.named_parameters()][2:]
        ['parametrizations.weight.0.down', 'parametrizations.weight.0.up']
    """
    layers = [layer for stage in find_stages(backbone) for layer in stage.modules() if isinstance(layer, nn.Linear)]
    if not layers:
        raise UserError(
            f"The backbone {type(backbone).__name__} has no linear layers for LoRA, which suits transformers; choose "
            "--train norm or --train all."
        )
    generator = torch.Generator().manual_seed(seed)
    for layer in layers:
        if id(layer.weight) not in frozen and not parametrize.is_parametrized(layer):
            parametrize.register_parametrization(layer, "weight", LowRankUpdate(layer.weight, rank, generator))


def is_low_rank_update(name: str) -> bool:
    """Whether a parameter of this name belongs to a low-rank update.

    Example:
        >>> is_low_rank_update("blocks.0.attn.qkv.parametrizations.weight.0.down")
        True
    """
    return ".parametrizations." in name and not name.endswith(ORIGINAL)


@torch.no_grad()
def merged_state_dict(network: nn.Module) -> dict[str, Tensor]:
    """Returns the state dict of a network with its low-rank updates added to the weights.

    The names are the same as in the network without updates. Without updates, this is its state dict.

    Example:
        >>> import timm
        >>> backbone = timm.create_model("test_vit", num_classes=0)
        >>> names = list(backbone.state_dict())
        >>> add_low_rank_updates(backbone, rank=2, seed=0)
        >>> sorted(merged_state_dict(backbone)) == sorted(names)
        True
    """
    merged: dict[str, Tensor] = {}
    for name, value in network.state_dict().items():
        if name.endswith(ORIGINAL):
            layer = name.removesuffix(ORIGINAL)
            merged[f"{layer}.weight"] = getattr(network.get_submodule(layer), "weight").detach()  # noqa: B009
        elif not is_low_rank_update(name):
            merged[name] = value
    return merged
