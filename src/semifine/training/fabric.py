"""Lightning Fabric for a run: device, precision and processes."""

from __future__ import annotations

import inspect
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from semifine.config import TrainSettings
from semifine.devices import resolve_device, resolve_precision
from semifine.errors import UserError

try:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
except ImportError:  # the distribution named "lightning" carries Fabric under its own name
    from lightning.fabric import Fabric  # type: ignore[no-redef]
    from lightning.fabric.strategies.ddp import DDPStrategy  # type: ignore[no-redef]

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
STEP_TIMEOUT = timedelta(minutes=10)
"""How long a process waits in a step for a peer that does not respond."""
BARRIER_TIMEOUT = timedelta(days=7)
"""How long a process waits for a peer that decodes, evaluates or writes alone. If the peer dies, the wait ends."""
PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}
# torch renamed this option after version 2.11.
_DDP_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _DDP_OPTIONS else "broadcast_buffers"
# Fabric logs its configuration at every start, which a user does not need.
for _name in ("lightning_fabric", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.WARNING)

__all__ = ["Fabric", "create_fabric", "training_stream"]


class LongBarrierStrategy(DDPStrategy):
    """DDP whose barriers use a separate gloo group: waiting takes no GPU time and has a long timeout."""

    def setup_environment(self) -> None:
        super().setup_environment()
        self._barrier_group: Any = torch.distributed.new_group(backend="gloo", timeout=BARRIER_TIMEOUT)

    def barrier(self, *_: Any, **__: Any) -> None:
        # torch.distributed.barrier fails on the CPU in some versions of torch.
        torch.distributed.all_reduce(torch.zeros(()), group=self._barrier_group)


def create_fabric(settings: TrainSettings) -> Fabric:
    """Creates the Fabric of a run.

    Raises:
        UserError: If the machine does not have the requested devices.
    """
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    if device == "cuda":
        # TF32 for the remaining float32 operations; the SoC core uses integers and is not affected.
        torch.set_float32_matmul_precision("high")
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with this
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    devices, nodes = _devices_and_nodes(settings.devices)
    if settings.sync_bn and device == "cpu":
        raise UserError("sync_bn works on GPUs only; remove it to train on the CPU.")
    if device == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"devices is {devices}, but this machine has {torch.cuda.device_count()} GPUs.")
    strategy: Any = "auto"
    if devices * nodes > 1:
        # A step runs several forward passes before its backward pass; a broadcast of buffers in between breaks it.
        keep_buffers: dict[str, Any] = {_BUFFER_OPTION: False}
        strategy = LongBarrierStrategy(process_group_backend=BACKENDS[device], timeout=STEP_TIMEOUT, **keep_buffers)
    return Fabric(
        accelerator=device, devices=devices, num_nodes=nodes, strategy=strategy, precision=PRECISIONS[precision]
    )


def _devices_and_nodes(devices: int) -> tuple[int, int]:
    """Processes per machine and number of machines, as started by torchrun or SLURM, else from the settings."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        local_world_size = int(os.environ["LOCAL_WORLD_SIZE"])
        return local_world_size, int(os.environ["WORLD_SIZE"]) // local_world_size
    if "SLURM_NTASKS" in os.environ and "SLURM_PROCID" in os.environ:
        nodes, tasks = int(os.environ.get("SLURM_NNODES", "1")), int(os.environ["SLURM_NTASKS"])
        if tasks == 1 < devices:
            raise UserError(
                f"devices is {devices}, but SLURM started one task; start {devices} with 'srun --ntasks {devices}'."
            )
        return tasks // nodes, nodes
    return devices, 1


@contextmanager
def training_stream(device: torch.device) -> Iterator[None]:
    """Runs the context on a separate CUDA stream, because the default stream cannot be captured in a graph."""
    if device.type != "cuda":
        yield
        return
    default, stream = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    stream.wait_stream(default)
    try:
        with torch.cuda.stream(stream):
            yield
    finally:
        default.wait_stream(stream)
