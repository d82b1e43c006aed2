"""Compilation and CUDA graphs: when a run uses them, and the compiled network."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from semifine.config import TrainSettings
from semifine.errors import UserError, exhausted_memory
from semifine.methods.base import Method

STEPS_WORTH_COMPILING = 10_000
"""Compilation takes a minute or two and saves about a seventh of each step of a ResNet-50."""
STEPS_WORTH_A_GRAPH = 50


@dataclass(frozen=True)
class Acceleration:
    """What is used, and why not where somebody might expect it."""

    compiled: bool
    graphs: bool
    notes: list[str]


def choose_acceleration(
    settings: TrainSettings, method: type[Method], device: torch.device, precision: str, world_size: int
) -> Acceleration:
    """Resolves ``auto``; what is asked for and cannot be is left out with a note, or an error on the CPU."""
    if device.type != "cuda":
        if settings.cuda_graphs == "on":
            raise UserError("cuda_graphs is on, but the run is on the CPU; leave it at auto.")
        return Acceleration(settings.compile == "on", graphs=False, notes=[])
    compiled = settings.compile == "on" or (settings.compile == "auto" and settings.iterations >= STEPS_WORTH_COMPILING)
    obstacle = _graph_obstacle(settings, method, precision, world_size)
    graphs = settings.cuda_graphs != "off" and not obstacle
    notes = [f"No CUDA graph: {obstacle}."] if obstacle and settings.cuda_graphs != "off" else []
    return Acceleration(compiled, graphs, notes)


def _graph_obstacle(settings: TrainSettings, method: type[Method], precision: str, world_size: int) -> str:
    if not method.cuda_graph_safe:
        return f"steps of the method '{method.name}' differ from each other"
    if precision == "fp16":
        return "fp16 scales its loss by what the host sees"
    if world_size > 1:
        return "several processes exchange gradients"
    if settings.cuda_graphs == "auto" and settings.iterations < STEPS_WORTH_A_GRAPH:
        return f"with fewer than {STEPS_WORTH_A_GRAPH} steps it is not worth recording"
    return ""


def compile_network(network: nn.Module, log: Callable[[str], None]) -> None:
    """Has a network compiled when it is first called; its weights and its plain form stay what they are."""
    from torch._functorch import config  # only now, like all of the compiler: runs without it start sooner

    # Else the backward pass would be compiled, and fail, when half of a step is done.
    config.force_non_lazy_backward_lowering = True
    try:
        network.compile(dynamic=False)
    except RuntimeError as error:  # a Python or a system that torch.compile does not know yet
        log(_sentence(error))
        return
    network._compiled_call_impl = CompiledCall(network, log)


class CompiledCall:
    """Calls the compiled form of a network; where it cannot be made, says so once and gives way to the plain one.

    Each kind of batch is compiled when it first comes, so this may happen at any call; but other errors than those of
    the compiler only mean a compiler that does not work when nothing has worked yet.
    """

    def __init__(self, network: nn.Module, log: Callable[[str], None]) -> None:
        self._network = network
        self._compiled = network._compiled_call_impl
        self._log = log
        self._has_worked = False

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        assert self._compiled is not None
        try:
            output = self._compiled(*arguments, **named)
        except Exception as error:
            from torch._dynamo.exc import TorchDynamoException

            means_no_compiler = not self._has_worked and not exhausted_memory(error)
            if not isinstance(error, TorchDynamoException) and not means_no_compiler:
                raise
            self._network._compiled_call_impl = None
            self._log(_sentence(error))
            return self._network(*arguments, **named)
        self._has_worked = True
        return output


def _sentence(error: Exception) -> str:
    cause = getattr(error, "inner_exception", error)
    reason = (str(cause).strip() or type(cause).__name__).splitlines()[0]
    return f"The network cannot be compiled ({reason}); training goes on uncompiled."
