"""torch.compile and CUDA graphs: when a run uses them, and how it continues if they fail."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from semifine.config import TrainSettings
from semifine.errors import UserError, exhausted_memory
from semifine.methods.base import Batch, Method, Progress
from semifine.training.optim import optimizer_is_capturable

MIN_STEPS_TO_COMPILE = 10_000
"""Compilation takes one or two minutes and saves about a seventh of each step of a ResNet-50."""
MIN_STEPS_TO_CAPTURE = 50
EAGER_STEPS = 3
"""Steps before the capture of a CUDA graph: lazy initialization, compilation and cuDNN's search happen in them."""


@dataclass(frozen=True)
class Acceleration:
    """Whether a run uses torch.compile and CUDA graphs, with notes on what it cannot use."""

    compiled: bool
    cuda_graphs: bool
    notes: list[str]


def choose_acceleration(
    settings: TrainSettings, method: type[Method], device: torch.device, precision: str, world_size: int
) -> Acceleration:
    """Resolves ``compile`` and ``cuda_graphs``; a CUDA graph that is not possible is replaced by a note.

    Raises:
        UserError: If ``cuda_graphs`` is ``on`` and the run is on the CPU.

    Example:
        >>> from semifine.methods.fixmatch import FixMatch
        >>> choose_acceleration(TrainSettings(iterations=100), FixMatch, torch.device("cuda"), "bf16", 1)
        Acceleration(compiled=False, cuda_graphs=True, notes=[])
    """
    if device.type != "cuda":
        if settings.cuda_graphs == "on":
            raise UserError("cuda_graphs is on, but the run is on the CPU; leave it at auto.")
        return Acceleration(settings.compile == "on", cuda_graphs=False, notes=[])
    compiled = settings.compile == "on" or (settings.compile == "auto" and settings.iterations >= MIN_STEPS_TO_COMPILE)
    obstacle = _graph_obstacle(settings, method, precision, world_size)
    cuda_graphs = settings.cuda_graphs != "off" and not obstacle
    notes = [f"No CUDA graph: {obstacle}."] if obstacle and settings.cuda_graphs != "off" else []
    return Acceleration(compiled, cuda_graphs, notes)


def _graph_obstacle(settings: TrainSettings, method: type[Method], precision: str, world_size: int) -> str:
    if not method.cuda_graph_safe:
        return f"the operations of method '{method.name}' differ between steps"
    if not optimizer_is_capturable(settings.optimizer):
        return f"the optimizer '{settings.optimizer}' counts its steps on the host"
    if precision == "fp16":
        return "loss scaling of fp16 needs the host"
    if world_size > 1:
        return "several processes exchange gradients"
    if settings.cuda_graphs == "auto" and settings.iterations < MIN_STEPS_TO_CAPTURE:
        return f"the run has fewer than {MIN_STEPS_TO_CAPTURE} steps"
    return ""


def compile_network(network: nn.Module, log: Callable[[str], None]) -> None:
    """Compiles a network at its first call; parameters and the eager forward pass stay available."""
    from torch._functorch import config  # slow: only runs that compile import the compiler

    # Otherwise the backward pass would be compiled, and could fail, in the middle of a step.
    config.force_non_lazy_backward_lowering = True
    try:
        network.compile(dynamic=False)
    except RuntimeError as error:  # torch.compile does not support this Python version or system
        log(_compile_failure(error))
        return
    network._compiled_call_impl = CompiledCall(network, log)


class CompiledCall:
    """Calls a compiled network; if the compiler fails, logs it once and continues with the eager network.

    Each kind of batch is compiled at its first call, so the compiler may fail at any call. Errors of other kinds count
    as a compiler failure only before the first successful call.
    """

    def __init__(self, network: nn.Module, log: Callable[[str], None]) -> None:
        self._network = network
        self._compiled = network._compiled_call_impl
        self._log = log
        self._succeeded = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        assert self._compiled is not None
        try:
            output = self._compiled(*args, **kwargs)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException  # slow: only runs that compile import the compiler

            may_be_compiler = not self._succeeded and not exhausted_memory(error)
            if not isinstance(error, TorchDynamoException) and not may_be_compiler:
                raise
            self._network._compiled_call_impl = None
            self._log(_compile_failure(error))
            return self._network(*args, **kwargs)
        self._succeeded = True
        return output


def _compile_failure(error: Exception) -> str:
    cause = getattr(error, "inner_exception", error)
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"The network cannot be compiled ({reason}); training continues without torch.compile."


StepFunction = Callable[[Batch, Progress], None]


class GraphedStep:
    """Captures a training step as a CUDA graph after a few eager steps, then replays the graph.

    The graph reads each batch from a static copy. If the capture fails, this is logged once and all steps run eagerly.
    """

    def __init__(self, step: StepFunction, log: Callable[[str], None]) -> None:
        self._step = step
        self._log = log
        self._calls = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._static_batch: Batch | None = None
        self._failed = False

    def __call__(self, batch: Batch, progress: Progress) -> None:
        self._calls += 1
        if self._calls <= EAGER_STEPS or self._failed:
            self._step(batch, progress)
            return
        if self._graph is None and not self._capture(batch, progress):
            self._step(batch, progress)
            return
        assert self._graph is not None
        assert self._static_batch is not None
        torch._foreach_copy_(self._static_batch.tensors(), batch.tensors(), non_blocking=True)
        self._graph.replay()

    def _capture(self, batch: Batch, progress: Progress) -> bool:
        """Captures the step without running it; returns whether that succeeded."""
        self._static_batch = batch.clone()
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        try:
            # The current stream, because gradients are accumulated on the stream of the first backward pass.
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream()):
                self._step(self._static_batch, progress)
        except RuntimeError as error:
            self._failed = True
            self._static_batch = None
            reason = str(error).strip().splitlines()[0]
            self._log(f"The step cannot be captured as a CUDA graph ({reason}); training continues without one.")
            return False
        self._graph = graph
        return True
