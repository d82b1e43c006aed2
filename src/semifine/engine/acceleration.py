"""Which means of speed a run takes: what is fastest for its device and length, unless it is told."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from semifine.config import TrainSettings
from semifine.errors import UserError
from semifine.methods.base import Method

STEPS_WORTH_COMPILING = 10_000
"""Compilation takes a minute or two and saves about a seventh of each step of a ResNet-50."""
STEPS_WORTH_A_GRAPH = 50


@dataclass(frozen=True)
class Acceleration:
    """What is used, and why not where somebody might expect it."""

    compiled: bool
    graphs: bool
    remarks: list[str]


def choose_acceleration(
    settings: TrainSettings, method: type[Method], device: torch.device, precision: str, world_size: int
) -> Acceleration:
    """Resolves ``auto``; what is asked for and cannot be is left out with a remark, or an error on the CPU."""
    if device.type != "cuda":
        if settings.cuda_graphs == "on":
            raise UserError("cuda_graphs is on, but the run is on the CPU; leave it at auto.")
        return Acceleration(settings.compile == "on", graphs=False, remarks=[])
    compiled = settings.compile == "on" or (settings.compile == "auto" and settings.iterations >= STEPS_WORTH_COMPILING)
    obstacle = _graph_obstacle(settings, method, precision, world_size)
    graphs = settings.cuda_graphs != "off" and not obstacle
    remarks = [f"No CUDA graph: {obstacle}."] if obstacle and settings.cuda_graphs != "off" else []
    return Acceleration(compiled, graphs, remarks)


def _graph_obstacle(settings: TrainSettings, method: type[Method], precision: str, world_size: int) -> str:
    if not method.capturable:
        return f"steps of the method '{method.name}' differ from each other"
    if precision == "fp16":
        return "fp16 scales its loss by what the host sees"
    if world_size > 1:
        return "several processes exchange gradients"
    if settings.cuda_graphs == "auto" and settings.iterations < STEPS_WORTH_A_GRAPH:
        return f"with fewer than {STEPS_WORTH_A_GRAPH} steps it is not worth recording"
    return ""
