"""Folds batch normalization into convolutions, which makes inference on a CPU faster."""

from __future__ import annotations

import copy
from typing import Any

import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

TOLERANCE = 1e-3


@torch.inference_mode()
def fold_batch_norms(network: nn.Module, example: Tensor) -> nn.Module:
    """Returns a copy of a network in evaluation mode without the batch norms that directly follow a convolution.

    The outputs of both networks are equal up to rounding. The network itself is returned if nothing can be folded or
    if the outputs differ, for example because the output of a convolution has a second use.

    Args:
        network: Its parameters do not change.
        example: Any input, which is used to find the order of the layers.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()).eval()
        >>> fold_batch_norms(network, torch.zeros(1, 3, 8, 8))[1]
        Identity()
    """
    folded = copy.deepcopy(network).eval()
    pairs = _find_pairs(folded, example)
    if not pairs:
        return network
    names = {module: name for name, module in folded.named_modules()}
    for norm, convolution in pairs.items():
        _replace(folded, names[convolution], fuse_conv_bn_eval(convolution, norm))
        _replace(folded, names[norm], _activation_of(norm))
    return folded if _equal(_outputs(network, example), _outputs(folded, example)) else network


def _find_pairs(network: nn.Module, example: Tensor) -> dict[nn.BatchNorm2d, nn.Conv2d]:
    """Runs the network once and returns the convolution whose output each batch norm normalizes."""
    made_by: dict[int, nn.Conv2d] = {}
    kept: list[Tensor] = []  # keeps the tensors alive, so that their ids stay unique
    pairs: dict[nn.BatchNorm2d, nn.Conv2d] = {}

    def after(module: nn.Module, inputs: tuple[Any, ...], output: Tensor) -> None:
        if isinstance(module, nn.Conv2d):
            made_by[id(output)] = module
            kept.append(output)
        elif isinstance(module, nn.BatchNorm2d) and id(inputs[0]) in made_by and module.track_running_stats:
            pairs[module] = made_by[id(inputs[0])]

    handles = [module.register_forward_hook(after) for module in network.modules() if _is_relevant(module)]
    try:
        network(example)
    finally:
        for handle in handles:
            handle.remove()
    uses = list(pairs.values())
    return {norm: convolution for norm, convolution in pairs.items() if uses.count(convolution) == 1}


def _is_relevant(module: nn.Module) -> bool:
    return isinstance(module, nn.Conv2d | nn.BatchNorm2d)


def _activation_of(norm: nn.BatchNorm2d) -> nn.Module:
    """Returns what remains of a batch norm: nothing, or the activation that timm's layers include."""
    return norm.act if isinstance(norm, BatchNormAct2d) else nn.Identity()


def _replace(network: nn.Module, name: str, module: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(network.get_submodule(parent), child, module)


def _outputs(network: nn.Module, example: Tensor) -> list[Tensor]:
    output = network.eval()(example)
    return [output] if isinstance(output, Tensor) else [value for value in output if isinstance(value, Tensor)]


def _equal(before: list[Tensor], after: list[Tensor]) -> bool:
    pairs = list(zip(before, after, strict=True))
    if not all(torch.isfinite(a).all() for a, _ in pairs):
        return False
    return all(torch.allclose(a, b, rtol=TOLERANCE, atol=TOLERANCE * float(a.abs().max() + 1)) for a, b in pairs)
