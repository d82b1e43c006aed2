"""Trains every method by itself, or as one of the processes of torchrun: python train_all.py FOLDER [METHOD ...]."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from semifine.engine.display import Display
from semifine.engine.training import train
from semifine.methods import method_names
from tests.conftest import tiny_settings

# Without batch norm, and with the same numbers whoever adds them up: what is left are rounding errors.
NETWORK = {"backbone": "test_convnext", "image_size": 32, "iterations": 10, "log_every": 5}


def main(folder: Path, names: list[str]) -> None:
    torch.set_num_threads(1)
    for name in names or method_names():
        own = {"method__teacher": str(folder.parent / "teacher")} if name == "self_training" else {}
        train(tiny_settings(name, **NETWORK, **own), folder / name, display=Display(quiet=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
