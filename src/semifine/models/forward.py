"""Forward passes of a training step: which views share a pass, and what batch normalization sees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Output(NamedTuple):
    """Output of a network for a batch of images."""

    logits: Tensor
    """(B, K)."""
    features: Tensor
    """(B, D) pooled features of the backbone."""
    heads: dict[str, Tensor] = {}  # noqa: RUF012 - never written to
    """Outputs of the method's own heads by name."""


class Networks:
    """The networks of a training step, and how its views pass through them.

    Args:
        student: The network being trained.
        ema: Exponential moving average of the student's weights, for :meth:`forward_ema`.
        mode: How the views of a step share forward passes, which matters to batch normalization.
            ``joint``: one pass over all views, as the paper's code runs on one GPU.
            ``split``: one pass per view, without gradient for views that only make labels. It is faster, each view is
            normalized by its own statistics, and only the first view with a gradient (the labeled one) updates the
            running statistics: the network is evaluated on clean views, not on strongly augmented ones.
            ``dp2``: two passes over the halves of the batch, of which only the first updates the running statistics,
            as the paper's code runs on two GPUs with ``DataParallel``.
        frozen: A trained network that does not change, for :meth:`forward_frozen`.
        autocast: Context manager for mixed precision in passes without gradient.
        batch_statistics: Whether batch norms of the EMA network use the statistics of the batch.

    Example::

        >>> student = lambda images: Output(logits=images.flatten(1), features=images.flatten(1))
        >>> labeled, unlabeled = Networks(student)(torch.zeros(2, 3, 1, 1), torch.zeros(4, 3, 1, 1))
        >>> unlabeled.logits.shape
        torch.Size([4, 3])
    """

    def __init__(
        self,
        student: Callable[[Tensor], Output],
        ema: nn.Module | None = None,
        mode: Literal["joint", "split", "dp2"] = "joint",
        frozen: nn.Module | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
        *,
        batch_statistics: bool = True,
    ) -> None:
        self.student = student
        self.ema = ema
        self.mode = mode
        self.frozen = frozen
        self._autocast = autocast
        self._batch_statistics = batch_statistics

    def __call__(self, *views: Tensor, without_gradient: tuple[int, ...] = ()) -> list[Output]:
        """Runs the student on all views.

        Args:
            views: Each (B_i, 3, S, S).
            without_gradient: Indices of views that only make labels; mode ``split`` skips their gradient.

        Returns:
            One output for each view.
        """
        if self.mode == "split" and without_gradient:
            return self._forward_split(views, without_gradient)
        images = torch.cat(views) if len(views) > 1 else views[0]
        output = self._forward_halves(images) if self.mode == "dp2" and len(views) > 1 else self.student(images)
        return _split_output(output, views)

    def forward_ema(self, *views: Tensor) -> list[Output]:
        """Runs the averaged network on all views in one pass without gradient.

        Batch normalization uses the statistics of these images, as in the student; running statistics do not change.
        """
        assert self.ema is not None, "the method must set needs_ema"
        with _batch_statistics(self.ema) if self._batch_statistics else nullcontext():
            return self._forward_no_grad(self.ema, views)

    def forward_frozen(self, *views: Tensor) -> list[Output]:
        """Runs the frozen network on all views in one pass without gradient."""
        assert self.frozen is not None, "the method must return a path from frozen_network()"
        return self._forward_no_grad(self.frozen, views)

    def _forward_no_grad(self, network: nn.Module, views: Sequence[Tensor]) -> list[Output]:
        with torch.no_grad(), self._autocast():
            output: Output = network(torch.cat(list(views)))
        heads = {name: value.float() for name, value in output.heads.items()}
        return _split_output(Output(output.logits.float(), output.features.float(), heads), views)

    def _forward_split(self, views: tuple[Tensor, ...], without_gradient: tuple[int, ...]) -> list[Output]:
        outputs: dict[int, Output] = {}
        with torch.no_grad():
            outputs |= {i: self.student(views[i]) for i in without_gradient}
        first, *others = (i for i in range(len(views)) if i not in without_gradient)
        outputs[first] = self.student(views[first])
        with _frozen_running_statistics(self.student):
            outputs |= {i: self.student(views[i]) for i in others}
        return [outputs[i] for i in range(len(views))]

    def _forward_halves(self, images: Tensor) -> Output:
        first_half, second_half = images.chunk(2)
        first = self.student(first_half)
        with _frozen_running_statistics(self.student):
            second = self.student(second_half)
        return Output(
            torch.cat([first.logits, second.logits]),
            torch.cat([first.features, second.features]),
            {name: torch.cat([value, second.heads[name]]) for name, value in first.heads.items()},
        )


def _split_output(output: Output, views: Sequence[Tensor]) -> list[Output]:
    """Splits the output for concatenated views into one output for each view."""
    sizes = [len(view) for view in views]
    logits, features = torch.split(output.logits, sizes), torch.split(output.features, sizes)
    heads = {name: torch.split(value, sizes) for name, value in output.heads.items()}
    return [
        Output(logits[i], features[i], {name: parts[i] for name, parts in heads.items()}) for i in range(len(views))
    ]


@contextmanager
def _frozen_running_statistics(network: Callable[[Tensor], Output]) -> Iterator[None]:
    """Batch normalization uses batch statistics without updating its running statistics."""
    layers = _batch_norms(network) if isinstance(network, nn.Module) else []
    momenta = [layer.momentum for layer in layers]
    for layer in layers:
        layer.momentum = 0.0
    try:
        yield
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


@contextmanager
def _batch_statistics(network: nn.Module) -> Iterator[None]:
    """Batch normalization of a network in eval mode uses batch statistics; its running statistics do not change."""
    layers = _batch_norms(network)
    for layer in layers:
        layer.train()
    try:
        with _frozen_running_statistics(network):
            yield
    finally:
        for layer in layers:
            layer.eval()


def _batch_norms(network: nn.Module) -> list[_BatchNorm]:
    return [module for module in network.modules() if isinstance(module, _BatchNorm)]


CPU_PIXELS = 8 * 224 * 224
"""Pixels of a CPU micro-batch: a larger one does not fit into the caches and takes several times as long."""


def micro_batch_size(images: int, side: int, device: torch.device) -> int:
    """Number of images per inference pass: all of them on a GPU, a few on a CPU.

    Args:
        images: Number of images.
        side: Side of the square images in pixels.
        device: Device of the network.

    Example::

        >>> micro_batch_size(256, side=224, device=torch.device("cpu"))
        8
    """
    return max(1, CPU_PIXELS // side**2) if device.type == "cpu" else images
