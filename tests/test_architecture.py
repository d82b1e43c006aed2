"""The import rules between rooms, checked as `make check` does, and that the heart needs torch alone."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "semifine"


def test_import_rules_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize("room", ["soft_labels", "losses"])
def test_room_imports_torch_and_the_standard_library_only(room: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "triton"}  # Triton comes with torch, for its GPUs
    for file in (SOURCE / room).glob("**/*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed or name.startswith(f"semifine.{room}"), f"{file}: {name}"


def test_importing_semifine_does_not_wait_for_torch() -> None:
    code = "import sys, semifine, semifine.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
