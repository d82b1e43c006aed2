"""Where the decoded images lie while a run goes on: on the GPU, in the host's memory, or on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

import torch

from semifine.data.store import ImageStore
from semifine.errors import UserError

Place = Literal["auto", "gpu", "host", "disk"]

GPU_SHARE = 0.4
"""Of the free memory of a GPU the images may take so much; the rest is the network's."""
HOST_SHARE = 0.5


def place_store(store: ImageStore, wanted: Place, device: torch.device) -> tuple[ImageStore, str]:
    """The store where it is wanted, and one sentence about it."""
    size = _gigabytes(store.nbytes)
    if device.type != "cuda":
        if wanted == "gpu":
            raise UserError("store is gpu, but the run is on the CPU; choose --store auto, host or disk.")
        return (_in_memory(store, pin=False), f"{size} of images in memory") if wanted == "host" else (store, "")
    free_gpu, free_host = torch.cuda.mem_get_info(device)[0], _free_host_memory()
    if wanted == "auto":
        wanted = choose_place(store.nbytes, free_gpu, free_host)
    if wanted == "gpu":
        if store.nbytes >= free_gpu:
            raise UserError(
                f"store is gpu, but the images take {size} and the GPU has {_gigabytes(free_gpu)} free; "
                "choose --store host or a smaller --store-size."
            )
        return store.to(device), f"{size} of images on the GPU, which had {_gigabytes(free_gpu)} free"
    if wanted == "host":
        sentence = f"{size} of images in pinned memory; the GPU has {_gigabytes(free_gpu)} free"
        return _in_memory(store, pin=True), sentence
    return store, f"{size} of images read from disk; {_gigabytes(free_host)} of memory are free"


def choose_place(size: int, free_gpu: int, free_host: int) -> Place:
    """The fastest place that has room."""
    if size <= GPU_SHARE * free_gpu:
        return "gpu"
    return "host" if size <= HOST_SHARE * free_host else "disk"


def _in_memory(store: ImageStore, pin: bool) -> ImageStore:
    """A copy of the pixels in memory; pinned memory cannot be paged out."""
    pixels = torch.empty(store.nbytes, dtype=torch.uint8, pin_memory=pin)
    return replace(store, pixels=pixels.copy_(store.pixels))


def _free_host_memory() -> int:
    """What the system can give without swapping, where it tells."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            available = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(available.split()[1]) * 1024
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.0f} MB"
