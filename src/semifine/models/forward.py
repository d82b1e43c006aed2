"""One forward pass over several views through student and teacher, and how batch norm sees them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

CPU_PIXELS = 8 * 224 * 224
"""What a CPU is given at a time: more images do not fit its caches, which takes several times as long."""


def micro_batch_size(images: int, side: int, device: torch.device) -> int:
    """Of so many square images: all on a GPU, few on a CPU, which wants them channels last."""
    return max(1, CPU_PIXELS // side**2) if device.type == "cpu" else images


class Output(NamedTuple):
    """(B, K) logits and (B, D) pooled features of the same images, and what a method's own heads make of them."""

    logits: Tensor
    features: Tensor
    heads: dict[str, Tensor] = {}  # noqa: RUF012 - never written to


class Networks:
    """Gives methods their networks; the only place where views are put together and split again.

    ``mode`` says how a step's views share forward passes, which matters to batch normalization:

    * ``joint``: one pass over all views, as the paper's code on one GPU;
    * ``split``: each view in a pass of its own, those that only make labels without gradient, which is faster. So every
      view is normalized by its like; and of those that learn only the first, the labeled one, updates the running
      statistics: the network is evaluated on clean views, not on distorted ones;
    * ``dp2``: two passes over halves of the batch, of which only the first updates the running
      statistics, as the paper's code on two GPUs.

    Besides the student there may be its running average, ``teacher``, and a network that was trained before
    and stays as it is, ``frozen``; both are only asked, without gradient.
    """

    def __init__(
        self,
        student: Callable[[Tensor], Output],
        teacher: nn.Module | None = None,
        mode: Literal["joint", "split", "dp2"] = "joint",
        frozen: nn.Module | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self.student = student
        self.teacher = teacher
        self.mode = mode
        self.frozen = frozen
        self._autocast = autocast

    def __call__(self, *views: Tensor, without_gradient: tuple[int, ...] = ()) -> list[Output]:
        """The student's output for each view; those named in ``without_gradient`` only make labels."""
        if self.mode == "split" and without_gradient:
            return self._split(views, without_gradient)
        images = torch.cat(views) if len(views) > 1 else views[0]
        output = self._two_halves(images) if self.mode == "dp2" and len(views) > 1 else self.student(images)
        return _divide(output, views)

    def ask_teacher(self, *views: Tensor) -> list[Output]:
        """The averaged network's output for each view, in one pass without gradient.

        Batch norm normalizes by these images, as the student's does; its running statistics stay the student's.
        """
        assert self.teacher is not None, "the method must say that it needs the average"
        with _batch_statistics(self.teacher):
            return self._ask(self.teacher, views)

    def ask_frozen(self, *views: Tensor) -> list[Output]:
        """The frozen network's output for each view, in one pass without gradient; nothing in it changes."""
        assert self.frozen is not None, "the method must say which network it learns from"
        return self._ask(self.frozen, views)

    def _ask(self, network: nn.Module, views: Sequence[Tensor]) -> list[Output]:
        with torch.no_grad(), self._autocast():
            output: Output = network(torch.cat(list(views)))
        heads = {name: value.float() for name, value in output.heads.items()}
        return _divide(Output(output.logits.float(), output.features.float(), heads), views)

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
        return Output(
            torch.cat([output.logits, rest.logits]),
            torch.cat([output.features, rest.features]),
            {name: torch.cat([value, rest.heads[name]]) for name, value in output.heads.items()},
        )


def _divide(output: Output, views: Sequence[Tensor]) -> list[Output]:
    sizes = [len(view) for view in views]
    logits, features = torch.split(output.logits, sizes), torch.split(output.features, sizes)
    heads = {name: torch.split(value, sizes) for name, value in output.heads.items()}
    return [
        Output(logits[i], features[i], {name: pieces[i] for name, pieces in heads.items()}) for i in range(len(views))
    ]


@contextmanager
def _frozen_statistics(network: Callable[[Tensor], Output]) -> Iterator[None]:
    """Batch norm still normalizes by the batch, but its running statistics stay as they are."""
    layers = _norm_layers(network) if isinstance(network, nn.Module) else []
    kept = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, kept, strict=True):
            layer.momentum = momentum


@contextmanager
def _batch_statistics(network: nn.Module) -> Iterator[None]:
    """Batch norm of a network in eval mode normalizes by the batch for once, and learns nothing from it."""
    layers = _norm_layers(network)
    for layer in layers:
        layer.train()
    try:
        with _frozen_statistics(network):
            yield
    finally:
        for layer in layers:
            layer.eval()


def _norm_layers(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]
