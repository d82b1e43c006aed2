"""Devices, precision, and properties of the machine."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch

from semifine.errors import UserError

RANK_NAMES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")

Autocast = Callable[[], AbstractContextManager[Any]]


def resolve_device(device: str) -> str:
    """Resolves ``auto`` to ``cuda`` if a GPU is available, else to ``cpu``.

    Raises:
        UserError: If ``device`` is ``cuda`` and no GPU is available.

    Example:
        >>> resolve_device("cpu")
        'cpu'
    """
    available = torch.cuda.is_available()
    if device == "cuda" and not available:
        raise UserError("device is cuda, but no CUDA device is available; choose --device cpu or auto.")
    return "cuda" if device != "cpu" and available else "cpu"


def resolve_precision(precision: str, device: str) -> str:
    """Resolves ``auto`` to bf16 on a GPU that supports it, else to fp32.

    Raises:
        UserError: If ``precision`` is ``fp16`` on the CPU.

    Example:
        >>> resolve_precision("auto", "cpu")
        'fp32'
    """
    if precision == "auto":
        return "bf16" if device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if precision == "fp16" and device == "cpu":
        raise UserError("precision fp16 needs a GPU; choose bf16 or fp32 on the CPU.")
    return precision


def cpu_has_bfloat16() -> bool:
    """Whether the CPU has instructions for bfloat16, which makes convolutions about twice as fast.

    Example:
        >>> cpu_has_bfloat16() in (True, False)
        True
    """
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # since PyTorch 2.11
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def inference_device(device: str) -> torch.device:
    """Returns the device for a trained network; allows TF32 matrix products on a GPU.

    Example:
        >>> inference_device("cpu")
        device(type='cpu')
    """
    resolved = torch.device(resolve_device(device))
    if resolved.type == "cuda":
        torch.set_float32_matmul_precision("high")
    return resolved


def process_rank() -> int:
    """Returns the rank of this process as set by the launcher, even before the process group exists."""
    return int(next((os.environ[name] for name in RANK_NAMES if name in os.environ), 0))


def describe_hardware(device: str) -> dict[str, Any]:
    """Describes the machine for the record of a run: device, threads, system and versions.

    Example:
        >>> sorted(describe_hardware("cpu"))
        ['device', 'kind', 'python', 'system', 'threads', 'torch']
    """
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor_name(),
        "kind": device,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def peak_gpu_bytes(device: torch.device) -> int | None:
    """Returns the peak GPU memory reserved by this process, including decoded images; None on the CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


def free_host_memory() -> int:
    """Returns the bytes of host memory that can be allocated without swapping."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _processor_name() -> str:
    """Returns the model name of the CPU, or its architecture if the system does not report one."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()
