"""Lightning Fabric for a run (device, precision, processes), stop signals, and failures of other processes."""

from __future__ import annotations

import inspect
import json
import logging
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch.nn.parallel import DistributedDataParallel

from semifine.config import TrainSettings
from semifine.devices import resolve_device, resolve_precision
from semifine.errors import UserError
from semifine.processes import children_end_with_this_process, end_with_parent

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

__all__ = [
    "Fabric",
    "StopRequest",
    "agree_to_stop",
    "catch_stop_signals",
    "create_fabric",
    "explain_peer_failures",
    "launch_processes",
    "training_stream",
]


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
        raise UserError(
            f"devices is {devices}, but this machine has {torch.cuda.device_count()} GPUs; lower --devices."
        )
    strategy: Any = "auto"
    if devices * nodes > 1:
        # A step runs several forward passes before its backward pass; a broadcast of buffers in between breaks it.
        keep_buffers: dict[str, Any] = {_BUFFER_OPTION: False}
        strategy = LongBarrierStrategy(process_group_backend=BACKENDS[device], timeout=STEP_TIMEOUT, **keep_buffers)
    return Fabric(
        accelerator=device, devices=devices, num_nodes=nodes, strategy=strategy, precision=PRECISIONS[precision]
    )


def launch_processes(fabric: Fabric) -> Fabric:
    """Starts the other processes of a run, which end if this one ends; returns the Fabric."""
    end_with_parent()  # in a script, the other processes come here, too
    with children_end_with_this_process():
        fabric.launch()
    return fabric


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


class StopRequest:
    """Signal handler that stores the first signal; a second signal raises ``KeyboardInterrupt``."""

    def __init__(self) -> None:
        self.signal_number: int | None = None

    def __call__(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if self.signal_number is not None:
            raise KeyboardInterrupt
        self.signal_number = number


@contextmanager
def catch_stop_signals() -> Iterator[StopRequest]:
    """Catches SIGINT and SIGTERM within the context; has no effect outside the main thread.

    Example:
        >>> with catch_stop_signals() as stop:
        ...     signal.raise_signal(signal.SIGTERM)
        ...     print(stop.signal_number)
        15
    """
    request = StopRequest()
    numbers = (signal.SIGINT, signal.SIGTERM)
    try:
        previous = [signal.signal(number, request) for number in numbers]
    except ValueError:  # only the main thread may set handlers
        yield request
        return
    try:
        yield request
    finally:
        for number, handler in zip(numbers, previous, strict=True):
            signal.signal(number, handler)


def agree_to_stop(fabric: Fabric, stop: StopRequest, may_communicate: bool) -> int | None:
    """Returns the signal that stops the run, the same in all processes, or None.

    Args:
        fabric: The processes.
        stop: The signals that this process received.
        may_communicate: Whether all processes are at a step at which they exchange their signals.
    """
    if fabric.world_size == 1:
        return stop.signal_number
    if not may_communicate:
        return None
    received = torch.tensor(float(stop.signal_number or 0), device=fabric.device)
    return round(float(fabric.all_reduce(received, reduce_op="max"))) or None  # type: ignore[arg-type]


# The errors of communication libraries have no class of their own, but their messages contain one of these words.
COMMUNICATION_WORDS = ("gloo", "nccl", "connection", "tcpstore")
PEER_ENDED = "Another process of the run has ended"


@contextmanager
def explain_peer_failures(log: Path, rank: int) -> Iterator[None]:
    """Replaces communication errors in the context by a ``UserError`` with the reason of the process that failed.

    Args:
        log: The ``log.jsonl`` that all processes write.
        rank: Rank of this process.
    """
    try:
        yield
    except RuntimeError as error:
        if isinstance(error, torch.OutOfMemoryError) or not torch.distributed.is_initialized():
            raise
        if not any(word in str(error).lower() for word in COMMUNICATION_WORDS):
            raise
        raise UserError(
            f"{PEER_ENDED} ({_reason_of_peer(log, rank)}), so this one ends, too; "
            "continue with --resume from the last checkpoint."
        ) from error


def _reason_of_peer(log: Path, rank: int) -> str:
    """Returns the error of the process that failed first.

    Only the last record of each process counts, because earlier records may come from an earlier attempt. Processes
    that ended because of another one are no reason.
    """
    last_records: dict[int, dict[str, str]] = {}
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
            last_records[record["process"]] = record
        except (ValueError, LookupError, TypeError, RecursionError):  # incomplete line of a process that was killed
            continue
    peers = set(range(torch.distributed.get_world_size())) - {rank}
    for peer, record in last_records.items():
        if peer in peers and record["kind"] == "error" and not record["text"].startswith(PEER_ENDED):
            return f"process {peer}: {record['text'].rstrip('.')}"
    return "it left no reason, as when it is killed from outside"
