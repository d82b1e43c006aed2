"""Where the decoded images lie while a run goes on: on the GPU, in the host's memory, or on disk."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Literal

import torch

from semifine.data.store import ImageStore
from semifine.engine.forecast import in_bytes
from semifine.errors import UserError

Place = Literal["auto", "gpu", "host", "disk"]

GPU_SHARE = 0.4
"""Of the free memory of a GPU the images may take so much; the rest is the network's."""
HOST_SHARE = 0.5


def place_store(store: ImageStore, wanted: Place, device: torch.device) -> tuple[ImageStore, str]:
    """The store where it is wanted, and one sentence about it."""
    size, free_host = in_bytes(store.nbytes), _free_host_memory()
    if device.type != "cuda":
        if wanted == "gpu":
            raise UserError("store is gpu, but the run is on the CPU; choose --store auto, host or disk.")
        return (_in_memory(store, free_host), f"{size} of images in memory") if wanted == "host" else (store, "")
    free_gpu = torch.cuda.mem_get_info(device)[0]
    if wanted == "auto":
        wanted = choose_place(store.nbytes, free_gpu, free_host)
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


def choose_place(size: int, free_gpu: int, free_host: int) -> Place:
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
