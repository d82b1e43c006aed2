"""A method, its networks and a batch of random pictures, for tests of single steps."""

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


def make_method(name: str, **settings: object) -> Method:
    """The method for 6 classes; settings are the method's own."""
    network = make_network(name)
    info = DataInfo(CLASSES, LABELED, UNLABELED, 0, LABEL, UNLABELED_BATCH, network.feature_dim)
    given = {f"method__{key}": value for key, value in settings.items()}
    return method_class(name)(tiny_settings(name, **given).method_settings, info)


def make_network(name: str, seed: int = 0) -> Classifier:
    """A network with the heads of a method."""
    torch.manual_seed(seed)
    method = method_class(name)
    heads = partial(method.heads, tiny_settings(name).method_settings)
    return create_classifier("test_resnet", CLASSES if method.trains_classifier else 0, SIZE, heads)


def make_networks(name: str, *, train: bool = False) -> Networks:
    """Student, average and a frozen network, each with weights of its own."""
    teacher, frozen = (create_ema(make_network(name, seed)) for seed in (1, 2))
    return Networks(make_network(name).train(train), teacher, frozen=frozen)


class LinearNetwork(nn.Module):
    """A network without batch norm, so that an image's output does not depend on the others."""

    def __init__(self, dim: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.body = nn.Linear(3 * SIZE * SIZE, 12)
        self.head = nn.Linear(12, CLASSES)
        self.projection = nn.Linear(12, dim)

    def forward(self, images: Tensor) -> Output:
        features = self.body(images.flatten(1))
        return Output(self.head(features), features, {PROJECTION: self.projection(features)})


def make_linear_networks(dim: int = 128) -> Networks:
    teacher, frozen = (create_ema(LinearNetwork(dim, seed)) for seed in (1, 2))
    return Networks(LinearNetwork(dim, 0), teacher, frozen=frozen)


class OneByOne(nn.Module):
    """A network that sees each image alone, so that to the last bit nothing depends on the others of a pass."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Output:
        logits, features, heads = zip(*(self.network(image[None]) for image in images), strict=True)
        named = {name: torch.cat([head[name] for head in heads]) for name in heads[0]}
        return Output(torch.cat(logits), torch.cat(features), named)


def make_batch(method: Method, seed: int = 0) -> Batch:
    """Four labeled and eight unlabeled pictures of noise."""
    generator = torch.Generator().manual_seed(seed)

    def views(names: tuple[str, ...], count: int) -> dict[str, Tensor]:
        return {name: torch.randn(count, 3, SIZE, SIZE, generator=generator) for name in names}

    labeled = torch.arange(LABELED_BATCH)
    return Batch(
        # the supervised method, which others are compared with, wants the weak view
        views(("weak",), LABELED_BATCH),
        LABEL[labeled],
        views(method.unlabeled_views, UNLABELED_BATCH),
        torch.arange(UNLABELED_BATCH),
        labeled,
    )
