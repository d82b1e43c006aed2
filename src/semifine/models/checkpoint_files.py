"""The files in which people keep weights: tensors by name, whatever else lies beside them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from semifine.errors import UserError

# Where the network lies in a file, in this order: a file with an averaged model beside the trained one gives the
# averaged, which is what its authors evaluate. PyContrast's `model_ema` is no such model but MoCo's key encoder.
TABLES = (
    "state_dict_ema",  # timm
    "eval_model",  # SoC
    "ema_model",  # TorchSSL
    "model_state_dict",  # Su et al.; there `model` is only the name of the backbone
    "state_dict",  # MoCo, timm, the iNaturalist network
    "model",  # PyContrast, torchvision's training scripts
    "train_model",
)

# Records that training scripts save beside their tensors. Nobody here reads them, so they are not even built.
RECORDS = (
    "argparse.Namespace",
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
)


class _Record:
    """Stands where a file has one of RECORDS: takes whatever the file hands over and forgets it."""

    def __new__(cls, *_: Any) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors or torch file; code inside a file is never run."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _network(_read_pickle(path), path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises kinds of its own
        raise UserError(f"The weights file {path} cannot be read: it is damaged, or no safetensors file.") from error


def _read_pickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([(_Record, name) for name in RECORDS]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and zip each raise their own kinds
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        damaged = "it is damaged, or written unlike torch does by default"
        reason = f"it asks for '{foreign[1]}', and only tensors are read" if foreign else damaged
        raise UserError(f"The weights file {path} cannot be read: {reason}.") from error


def _network(loaded: Any, path: Path) -> dict[str, Tensor]:
    keys = loaded if isinstance(loaded, Mapping) else {}
    table = next((keys[key] for key in TABLES if isinstance(keys.get(key), Mapping)), keys)
    tensors = {str(name): value for name, value in table.items() if isinstance(value, Tensor)}
    if not tensors:
        found = f", only {', '.join(map(str, list(keys)[:8]))}" if keys else ""
        raise UserError(f"The weights file {path} holds no table of tensors{found}.")
    return tensors
