"""What every raw file in benchmarks/results says about its measurement. tests/docs/test_figures.py requires it."""

from __future__ import annotations

import sys
from typing import Any

from semifine.devices import describe_hardware
from semifine.version import code_version


def provenance(device: str = "cpu") -> dict[str, Any]:
    """Returns the command line, the version of the code and the hardware of a measurement."""
    return {
        "command": " ".join(["python", *sys.argv]),
        "version": code_version(),
        "hardware": describe_hardware(device),
    }
