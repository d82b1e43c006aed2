"""Device, number format and storage of a run, through Lightning Fabric."""

from __future__ import annotations

import inspect
import logging
import os
import platform
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch.nn.parallel import DistributedDataParallel

from semifine.config import TrainSettings
from semifine.data.store import ImageStore
from semifine.errors import UserError
from semifine.training.estimate import in_bytes

try:
    from lightning_fabric import Fabric
    from lightning_fabric.strategies.ddp import DDPStrategy
except ImportError:  # the distribution named "lightning" carries Fabric under its own name
    from lightning.fabric import Fabric  # type: ignore[no-redef]
    from lightning.fabric.strategies.ddp import DDPStrategy  # type: ignore[no-redef]

BACKENDS = {"cpu": "gloo", "cuda": "nccl"}
PATIENCE = timedelta(minutes=10)
"""How long processes wait for one that does not answer within a step."""
PATIENCE_AT_BARRIERS = timedelta(days=7)
"""How long they wait for one that works alone: it decodes images, evaluates or writes. Its death ends the wait."""
# torch renamed it after 2.11
_OPTIONS = inspect.signature(DistributedDataParallel.__init__).parameters
_BUFFER_OPTION = "forward_sync_buffers" if "forward_sync_buffers" in _OPTIONS else "broadcast_buffers"
# What Fabric says about itself at every start is nothing that a person needs.
for _name in ("lightning_fabric", "lightning.fabric"):
    logging.getLogger(_name).setLevel(logging.WARNING)
RANK_NAMES = ("RANK", "SLURM_PROCID", "LOCAL_RANK")

PRECISIONS: dict[str, Any] = {"fp32": "32-true", "bf16": "bf16-mixed", "fp16": "16-mixed"}

__all__ = ["Fabric", "create_fabric", "describe_hardware", "resolve_device", "resolve_precision", "training_stream"]


class PatientDDP(DDPStrategy):
    """Barriers have a group of their own, of gloo: its waiting takes no GPU, and as long as need be."""

    def setup_environment(self) -> None:
        super().setup_environment()
        self._waiting: Any = torch.distributed.new_group(backend="gloo", timeout=PATIENCE_AT_BARRIERS)

    def barrier(self, *_: Any, **__: Any) -> None:
        # torch's own barrier fails on the CPU in some of its versions
        torch.distributed.all_reduce(torch.zeros(()), group=self._waiting)


def create_fabric(settings: TrainSettings) -> Fabric:
    """Fabric on the wanted device, or a clear error when it is not there."""
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    if device == "cuda":
        # TF32 in what is left in float32; the heart is integer arithmetic and does not notice
        torch.set_float32_matmul_precision("high")
    if settings.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # what cuBLAS needs to repeat itself
        torch.use_deterministic_algorithms(True)
        torch.backends.cudnn.benchmark = False
    devices, nodes = _processes(settings.devices)
    if settings.sync_bn and device == "cpu":
        raise UserError("sync_bn is for GPUs; leave it out on the CPU.")
    if device == "cuda" and devices > torch.cuda.device_count():
        raise UserError(f"devices is {devices}, but there are {torch.cuda.device_count()} GPUs here.")
    strategy: Any = "auto"
    if devices * nodes > 1:
        # Several forward passes precede a backward pass, and a broadcast of buffers in between would break it.
        keep_buffers: dict[str, Any] = {_BUFFER_OPTION: False}
        strategy = PatientDDP(process_group_backend=BACKENDS[device], timeout=PATIENCE, **keep_buffers)
    return Fabric(
        accelerator=device, devices=devices, num_nodes=nodes, strategy=strategy, precision=PRECISIONS[precision]
    )


def inference_device(wanted: str, precision: str) -> tuple[torch.device, Callable[[], AbstractContextManager[Any]]]:
    """The device for a trained network, and the context in which it computes as it did in training.

    Whatever machine it was trained on: alone, and in float32 where this one lacks the number format.
    """
    kind = resolve_device(wanted)
    if kind == "cuda":
        torch.set_float32_matmul_precision("high")
    number = resolve_precision("auto" if precision == "fp16" and kind == "cpu" else precision, kind)
    if number == "fp32":
        return torch.device(kind), nullcontext
    return torch.device(kind), partial(torch.autocast, kind, torch.bfloat16 if number == "bf16" else torch.float16)


def process_rank() -> int:
    """This process's number among those of the run, known from the environment before anything is connected."""
    return int(next((os.environ[name] for name in RANK_NAMES if name in os.environ), 0))


def _processes(wanted: int) -> tuple[int, int]:
    """Processes on this machine, and machines: as torchrun or SLURM started them, else as the settings want."""
    if "LOCAL_WORLD_SIZE" in os.environ:
        here = int(os.environ["LOCAL_WORLD_SIZE"])
        return here, int(os.environ["WORLD_SIZE"]) // here
    if "SLURM_NTASKS" in os.environ and "SLURM_PROCID" in os.environ:
        nodes, tasks = int(os.environ.get("SLURM_NNODES", "1")), int(os.environ["SLURM_NTASKS"])
        if tasks == 1 < wanted:
            raise UserError(
                f"devices is {wanted}, but SLURM started one task here: start {wanted} with 'srun --ntasks {wanted}'."
            )
        return tasks // nodes, nodes
    return wanted, 1


def resolve_device(wanted: str) -> str:
    """``auto`` is a GPU where there is one."""
    available = torch.cuda.is_available()
    if wanted == "cuda" and not available:
        raise UserError("device is cuda, but no CUDA device can be used here; choose --device cpu or auto.")
    return "cuda" if wanted != "cpu" and available else "cpu"


def resolve_precision(wanted: str, device: str) -> str:
    """``auto`` is bf16 on a GPU that has it, else float32; fp16 needs a GPU."""
    if wanted == "auto":
        return "bf16" if device == "cuda" and torch.cuda.is_bf16_supported() else "fp32"
    if wanted == "fp16" and device == "cpu":
        raise UserError("precision fp16 needs a GPU; choose bf16 or fp32 on the CPU.")
    return wanted


@contextmanager
def training_stream(device: torch.device) -> Iterator[None]:
    """On a GPU a stream of its own: work on the default one cannot be recorded as a graph."""
    if device.type != "cuda":
        yield
        return
    default, own = torch.cuda.current_stream(device), torch.cuda.Stream(device)
    own.wait_stream(default)
    try:
        with torch.cuda.stream(own):
            yield
    finally:
        default.wait_stream(own)


def describe_hardware(device: str) -> dict[str, Any]:
    """What a result must say about the machine it came from."""
    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else _processor_name(),
        "kind": device,
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
    }


def peak_gpu_bytes(device: torch.device) -> int | None:
    """The most that this process has held on its GPU so far, decoded images included; None on a CPU."""
    return torch.cuda.max_memory_reserved(device) if device.type == "cuda" else None


def _processor_name() -> str:
    """The model of the CPU where the system tells it, else its architecture."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or platform.machine()


StorageDevice = Literal["auto", "gpu", "host", "disk"]

GPU_SHARE = 0.4
"""Of the free memory of a GPU the images may take so much; the rest is the network's."""
HOST_SHARE = 0.5


def place_store(store: ImageStore, wanted: StorageDevice, device: torch.device) -> tuple[ImageStore, str]:
    """The store where it is wanted, and one sentence about it."""
    size, free_host = in_bytes(store.nbytes), _free_host_memory()
    if device.type != "cuda":
        if wanted == "gpu":
            raise UserError("store is gpu, but the run is on the CPU; choose --store auto, host or disk.")
        return (_in_memory(store, free_host), f"{size} of images in memory") if wanted == "host" else (store, "")
    free_gpu = torch.cuda.mem_get_info(device)[0]
    if wanted == "auto":
        wanted = choose_storage_device(store.nbytes, free_gpu, free_host)
    if wanted == "gpu":
        if store.nbytes >= free_gpu:
            raise UserError(
                f"store is gpu, but the images take {size} and the GPU has {in_bytes(free_gpu)} free; "
                "choose --store host or a smaller --store-size."
            )
        return store.to(device), f"{size} of images on the GPU, which had {in_bytes(free_gpu)} free"
    if wanted == "host":
        sentence = f"{size} of images in memory, of which {in_bytes(free_host)} were free"
        return _in_memory(store, free_host), f"{sentence}; the GPU has {in_bytes(free_gpu)} free"
    return store, f"{size} of images read from disk; {in_bytes(free_host)} of memory are free"


def choose_storage_device(size: int, free_gpu: int, free_host: int) -> StorageDevice:
    """The fastest place that has room."""
    if size <= GPU_SHARE * free_gpu:
        return "gpu"
    return "host" if size <= HOST_SHARE * free_host else "disk"


def _in_memory(store: ImageStore, free: int) -> ImageStore:
    """A copy of the pixels in memory.

    It is not pinned: torch would lock up to twice its size, and a batch's images, which lie far apart, travel to the
    GPU through a small pinned buffer anyway.
    """
    if store.nbytes >= free:
        raise UserError(
            f"store is host, but the images take {in_bytes(store.nbytes)} and {in_bytes(free)} of memory are free; "
            "choose --store disk or a smaller --store-size."
        )
    return replace(store, pixels=store.pixels.clone())


def _free_host_memory() -> int:
    """What the system can give without swapping, where it tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
