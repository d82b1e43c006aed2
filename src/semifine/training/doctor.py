"""How the machine stands: versions, devices, room, and what would go wrong."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from semifine.data.store import default_cache_dir
from semifine.devices import describe_hardware
from semifine.version import code_version

LIBRARIES = ("torch", "timm", "lightning-fabric", "numpy", "pillow", "pyarrow", "safetensors")
LITTLE_ROOM = 2e9


@dataclass
class Diagnosis:
    stats: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def diagnose(cache: Path | None = None) -> Diagnosis:
    """Looks at everything that a training run needs, and changes nothing."""
    findings = Diagnosis()
    hardware = describe_hardware("cuda" if torch.cuda.is_available() else "cpu")
    findings.stats["semifine"] = code_version()
    findings.stats |= {name: _version(name) for name in LIBRARIES}
    findings.stats |= {name: str(hardware[name]) for name in ("python", "system", "device", "threads")}
    _look_at_gpus(findings)
    _look_at_cache(findings, cache or default_cache_dir())
    return findings


def _look_at_gpus(findings: Diagnosis) -> None:
    for number in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(number)
        name = torch.cuda.get_device_name(number)
        findings.stats[f"GPU {number}"] = f"{name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        if free < LITTLE_ROOM:
            findings.problems.append(f"GPU {number} has {free / 1e9:.1f} GB free: another program may be using it.")
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
        findings.problems.append("Triton is missing: training on the GPU works, but more slowly.")
    if not torch.cuda.is_available():
        findings.stats["GPU"] = "none that torch can use"


def _look_at_cache(findings: Diagnosis, cache: Path) -> None:
    stores = sorted(cache.glob("images-*")) if cache.is_dir() else []
    taken = sum(file.stat().st_size for store in stores for file in store.glob("*") if file.is_file())
    findings.stats["decoded images"] = f"{len(stores)} data sets, {taken / 1e9:.2f} GB in {cache}"
    existing = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    findings.stats["free for images"] = f"{free / 1e9:.1f} GB"
    if not os.access(existing, os.W_OK):
        findings.problems.append(f"{existing} cannot be written to: choose another folder with --cache.")
    if free < LITTLE_ROOM:
        findings.problems.append(f"Only {free / 1e9:.1f} GB are free in {existing}: decoded images may not fit.")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
