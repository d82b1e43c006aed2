"""Predictions as a person asks for them, and what a table says."""

from __future__ import annotations

import csv
from pathlib import Path

from semifine.cli.main import main


def read_csv(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def predict(run: Path | str, *arguments: str | Path) -> int:
    return main(["predict", str(run), *map(str, arguments), "--device", "cpu", "--quiet"])
