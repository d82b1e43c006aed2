"""Creates a method, its networks and a random batch for tests of single steps."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from semifine.methods import method_class
from semifine.methods.base import Batch, DataInfo, Method
from semifine.models.classifier import PROJECTION, Classifier, create_classifier
from semifine.models.ema import create_ema
from semifine.models.forward import Networks, Output
from tests.conftest import tiny_settings

CLASSES, LABELED, UNLABELED, SIZE = 6, 18, 54, 32
LABELED_BATCH, UNLABELED_BATCH = 4, 8
LABEL = torch.arange(LABELED) % CLASSES
VOTES = torch.randint(-1, 3, (UNLABELED, 3), generator=torch.Generator().manual_seed(0))
"""Votes of three networks, of which some are missing."""

HEADS = {"pseudo": CLASSES, "worst": CLASSES, "base": CLASSES, "rotation": 4}
"""Further heads of methods and the length of their output."""


def make_method(name: str, **settings: object) -> Method:
    """Returns a method for 6 classes with the given settings of the method."""
    network = make_network(name)
    info = DataInfo(CLASSES, LABELED, UNLABELED, 0, LABEL, UNLABELED_BATCH, network.feature_dim, VOTES)
    given = {f"method__{key}": value for key, value in settings.items()}
    return method_class(name)(tiny_settings(name, **given).method_settings, info)


def make_network(name: str, seed: int = 0) -> Classifier:
    """Returns a network with the heads of the method."""
    torch.manual_seed(seed)
    method = method_class(name)
    heads = partial(method.create_heads, tiny_settings(name).method_settings, CLASSES)
    return create_classifier("test_resnet", CLASSES if method.trains_classifier else 0, SIZE, heads)


def make_networks(name: str, *, train: bool = False) -> Networks:
    """Returns student, averaged and frozen network with different weights."""
    ema, frozen = (create_ema(make_network(name, seed)) for seed in (1, 2))
    return Networks(make_network(name).train(train), ema, frozen=frozen)


class LinearNetwork(nn.Module):
    """A network without batch norm: the output for an image does not depend on other images."""

    def __init__(self, dim: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3 * SIZE * SIZE, 12)
        self.head = nn.Linear(12, CLASSES)
        self.projection = nn.Linear(12, dim)
        heads = {name: nn.Linear(12, size) for name, size in HEADS.items()}
        self.heads = nn.ModuleDict(heads)

    def forward(self, images: Tensor) -> Output:
        features = self.body(images.flatten(1))
        heads = {name: head(features) for name, head in self.heads.items()}
        return Output(self.head(features), features, {PROJECTION: self.projection(features), **heads})


def make_linear_networks(dim: int = 128) -> Networks:
    ema, frozen = (create_ema(LinearNetwork(dim, seed)) for seed in (1, 2))
    return Networks(LinearNetwork(dim, 0), ema, frozen=frozen)


class SingleImageNetwork(nn.Module):
    """Runs a network on one image at a time: outputs do not depend on other images, bit for bit."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Output:
        logits, features, heads = zip(*(self.network(image[None]) for image in images), strict=True)
        named = {name: torch.cat([head[name] for head in heads]) for name in heads[0]}
        return Output(torch.cat(logits), torch.cat(features), named)


def make_batch(method: Method, seed: int = 0) -> Batch:
    """Returns a batch of 4 labeled and 8 unlabeled images of random noise."""
    generator = torch.Generator().manual_seed(seed)

    def views(names: tuple[str, ...], count: int) -> dict[str, Tensor]:
        return {name: torch.randn(count, 3, SIZE, SIZE, generator=generator) for name in names}

    labeled = torch.arange(LABELED_BATCH)
    return Batch(
        # All methods get the weak view, so that the supervised method can run on the same batch.
        views(("weak",), LABELED_BATCH),
        LABEL[labeled],
        views(method.unlabeled_views, UNLABELED_BATCH),
        torch.arange(UNLABELED_BATCH),
        labeled,
    )
