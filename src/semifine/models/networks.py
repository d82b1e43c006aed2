"""The student that learns, the teacher that averages it, and one forward pass over several views."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Output(NamedTuple):
    """(B, K) logits and (B, D) pooled features of the same images."""

    logits: Tensor
    features: Tensor


class Networks:
    """Gives methods their networks; the only place where views are put together and split again.

    ``mode`` says how a step's views share forward passes, which matters to batch normalisation:

    * ``joint``: one pass over all views, as the paper's code on one GPU;
    * ``split``: each view in a pass of its own, those that only make labels without gradient, which is faster. So every
      view is normalised by its like; and of those that learn only the first, the labelled one, updates the running
      statistics: the network is evaluated on clean views, not on distorted ones;
    * ``dp2``: two passes over halves of the batch, of which only the first updates the running
      statistics, as the paper's code on two GPUs.
    """

    def __init__(
        self,
        student: Callable[[Tensor], Output],
        teacher: nn.Module | None = None,
        mode: Literal["joint", "split", "dp2"] = "joint",
    ) -> None:
        self.student = student
        self.teacher = teacher
        self.mode = mode

    def __call__(self, *views: Tensor, without_gradient: tuple[int, ...] = ()) -> list[Output]:
        """The student's output for each view; those named in ``without_gradient`` only make labels."""
        if self.mode == "split" and without_gradient:
            return self._split(views, without_gradient)
        images = torch.cat(views) if len(views) > 1 else views[0]
        output = self._two_halves(images) if self.mode == "dp2" and len(views) > 1 else self.student(images)
        return _divide(output, views)

    def _split(self, views: tuple[Tensor, ...], without_gradient: tuple[int, ...]) -> list[Output]:
        outputs: dict[int, Output] = {}
        with torch.no_grad():
            outputs |= {i: self.student(views[i]) for i in without_gradient}
        first, *others = (i for i in range(len(views)) if i not in without_gradient)
        outputs[first] = self.student(views[first])
        with _frozen_statistics(self.student):
            outputs |= {i: self.student(views[i]) for i in others}
        return [outputs[i] for i in range(len(views))]

    def _two_halves(self, images: Tensor) -> Output:
        first, second = images.chunk(2)
        output = self.student(first)
        with _frozen_statistics(self.student):
            rest = self.student(second)
        return Output(torch.cat([output.logits, rest.logits]), torch.cat([output.features, rest.features]))


def _divide(output: Output, views: tuple[Tensor, ...] | list[Tensor]) -> list[Output]:
    sizes = [len(view) for view in views]
    pieces = zip(torch.split(output.logits, sizes), torch.split(output.features, sizes), strict=True)
    return [Output(logits, features) for logits, features in pieces]


@contextmanager
def _frozen_statistics(network: Callable[[Tensor], Output]) -> Iterator[None]:
    """Batch norm still normalises by the batch, but its running statistics stay as they are."""
    layers = [m for m in network.modules() if isinstance(m, _BatchNorm)] if isinstance(network, nn.Module) else []
    kept = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, kept, strict=True):
            layer.momentum = momentum
