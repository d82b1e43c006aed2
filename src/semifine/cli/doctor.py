"""semifine doctor"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from semifine.cli.main import Parser
from semifine.data.store import default_cache_dir
from semifine.devices import describe_hardware
from semifine.version import code_version

LIBRARIES = ("torch", "timm", "lightning-fabric", "numpy", "pillow", "pyarrow", "safetensors")
MIN_FREE_BYTES = 2e9


@dataclass
class Diagnosis:
    """Versions, devices and disk space, and the problems found."""

    environment: dict[str, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine doctor",
        description="Check versions, devices, the size of the decoded images and free disk space, and list problems.",
        allow_abbrev=False,
    )
    parser.add_argument(
        "--cache",
        type=Path,
        metavar="FOLDER",
        help="folder of decoded images (default: $SEMIFINE_CACHE or ~/.cache/semifine)",
    )
    parser.add_argument("--json", action="store_true", help="print the findings as one JSON object")
    options = parser.parse_args(arguments)
    diagnosis = diagnose(options.cache)
    if options.json:
        print(json.dumps(asdict(diagnosis)))
        return 0
    for name, value in diagnosis.environment.items():
        print(f"{name:<22}{value}")
    print()
    for problem in diagnosis.problems:
        print(f"problem: {problem}")
    if not diagnosis.problems:
        print("no problems found")
    return 0


def diagnose(cache: Path | None = None) -> Diagnosis:
    """Checks everything that training needs, without changing anything.

    Args:
        cache: Folder of the decoded images; by default the same as for 'semifine train'.

    Example:
        >>> "torch" in diagnose().environment
        True
    """
    diagnosis = Diagnosis()
    hardware = describe_hardware("cuda" if torch.cuda.is_available() else "cpu")
    diagnosis.environment["semifine"] = code_version()
    diagnosis.environment |= {name: _installed_version(name) for name in LIBRARIES}
    diagnosis.environment |= {name: str(hardware[name]) for name in ("python", "system", "device", "threads")}
    _check_gpus(diagnosis)
    _check_cache(diagnosis, cache or default_cache_dir())
    return diagnosis


def _check_gpus(diagnosis: Diagnosis) -> None:
    for index in range(torch.cuda.device_count()):
        free, total = torch.cuda.mem_get_info(index)
        name = torch.cuda.get_device_name(index)
        diagnosis.environment[f"GPU {index}"] = f"{name}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free"
        if free < MIN_FREE_BYTES:
            diagnosis.problems.append(f"GPU {index} has {free / 1e9:.1f} GB free: another program may be using it.")
    if torch.cuda.is_available() and importlib.util.find_spec("triton") is None:
        diagnosis.problems.append("Triton is missing, which slows down training on the GPU: install triton.")
    if not torch.cuda.is_available():
        diagnosis.environment["GPU"] = "none available to PyTorch"


def _check_cache(diagnosis: Diagnosis, cache: Path) -> None:
    stores = sorted(cache.glob("images-*")) if cache.is_dir() else []
    used = sum(file.stat().st_size for store in stores for file in store.glob("*") if file.is_file())
    diagnosis.environment["decoded images"] = f"{len(stores)} data sets, {used / 1e9:.2f} GB in {cache}"
    existing = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    free = shutil.disk_usage(existing).free
    diagnosis.environment["free disk space"] = f"{free / 1e9:.1f} GB"
    if not os.access(existing, os.W_OK):
        diagnosis.problems.append(f"{existing} is not writable: choose another folder with --cache.")
    if free < MIN_FREE_BYTES:
        diagnosis.problems.append(
            f"Only {free / 1e9:.1f} GB are free in {existing}: free some space, or choose another folder with --cache."
        )


def _installed_version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
