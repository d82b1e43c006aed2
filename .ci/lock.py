"""Writes constraints.txt: the versions that a new development installation resolves to today.

Leaves out packages for one platform only; their versions follow from torch.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXCLUDED = re.compile(r"nvidia-.*|cuda-.*|triton|semifine")
HEADER = "# Versions for development, written by 'make lock'. Users get any version that pyproject.toml allows.\n"


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--quiet", "--dry-run", "--ignore-installed", "--report", str(report)]
        subprocess.run([sys.executable, "-m", "pip", "install", *options, ".[dev]"], cwd=ROOT, check=True)
        packages = [item["metadata"] for item in json.loads(report.read_text(encoding="utf-8"))["install"]]
    pins = {package["name"].lower().replace("_", "-"): package["version"] for package in packages}
    lines = [f"{name}=={version}\n" for name, version in sorted(pins.items()) if not EXCLUDED.fullmatch(name)]
    (ROOT / "constraints.txt").write_text(HEADER + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main()
