"""The kinds of file that a model can be exported to, and their names."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from semifine.errors import UserError

Format = Literal["onnx", "torch", "safetensors"]
SUFFIX: dict[Format, str] = {"onnx": ".onnx", "torch": ".pt2", "safetensors": ".safetensors"}


def format_of(out: Path) -> Format:
    """What the name of a file says it is to be."""
    for format, suffix in SUFFIX.items():
        if out.suffix.lower() == suffix:
            return format
    *first, last = SUFFIX.values()
    raise UserError(f"--out must end in {', '.join(first)} or {last}, not '{out.name}'.")


def check_suffix(out: Path, format: Format) -> None:
    """A file that is called what it is not would be refused by those who are to open it."""
    if out.suffix.lower() != SUFFIX[format]:
        raise UserError(f"--format {format} writes {SUFFIX[format]} files, not '{out.name}': change one of the two.")
