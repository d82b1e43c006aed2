"""The rules of docs/explanation/architecture.md: direction of imports, no cycles, short functions."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.import_graph import cycles, import_graph, imports_of, module_files, syntax_tree

FILES = module_files()
LONGEST_FUNCTION = 60
# Modules that are slow to import or not always installed.
SLOW_OR_OPTIONAL = {
    "torch",
    "torchvision",
    "timm",
    "triton",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "starlette",
    "uvicorn",
}
# The command line and the public names import lazily, so that `semifine --help` is fast.
EDGE = ("semifine.cli", "semifine.api")


def test_import_contracts_hold() -> None:
    program = Path(sys.executable).parent / "lint-imports"
    result = subprocess.run([program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


def test_the_layers_contract_lists_every_package() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    (layers,) = (contract["layers"] for contract in config["contracts"] if contract["type"] == "layers")
    listed = {name.strip() for layer in layers for name in layer.split("|")}
    packages = {name.split(".")[1] for name in FILES if name.count(".")}
    assert listed == packages - {"__main__"}


@pytest.mark.parametrize("package", ["soft_labels", "losses"])
def test_package_imports_only_torch_and_the_standard_library(package: str) -> None:
    allowed = set(sys.stdlib_module_names) | {"torch", "triton"}  # triton is installed with torch
    modules = {name: file for name, file in FILES.items() if f"{name}.".startswith(f"semifine.{package}.")}
    assert modules
    for name, file in modules.items():
        for found in imports_of(file):
            is_own = f"{found.module}.".startswith(f"semifine.{package}.")
            assert is_own or found.module.split(".")[0] in allowed, f"{name} imports {found.module}"


def test_there_are_no_import_cycles() -> None:
    assert cycles(import_graph()) == []


@pytest.mark.parametrize("name", FILES)
def test_functions_are_short(name: str) -> None:
    for node in ast.walk(syntax_tree(FILES[name])):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            length = node.end_lineno - node.lineno + 1
            assert length <= LONGEST_FUNCTION, f"{name}.{node.name} has {length} lines"


def imports_in_functions() -> Iterator[tuple[str, int, str]]:
    """Yields module, line and imported module."""
    for name, file in FILES.items():
        for found in imports_of(file, frozenset(FILES)):
            if found.in_function:
                yield name, found.line, found.module


def packages_loaded_by(module: str) -> set[str]:
    """Returns the packages that importing a module of semifine loads, directly or through its other modules."""
    packages: set[str] = set()
    seen, pending = set[str](), [module]
    while pending:
        name = pending.pop()
        if name in FILES and name not in seen:
            seen.add(name)
            imported = [found.module for found in imports_of(FILES[name], frozenset(FILES)) if not found.in_function]
            packages |= {imported_name.split(".")[0] for imported_name in imported}
            pending += imported
    return packages


def test_imports_inside_functions_have_a_comment() -> None:
    """The comment is in the line of the import or above the group of imports."""
    uncommented = []
    for name, line, module in imports_in_functions():
        lines = FILES[name].read_text(encoding="utf-8").splitlines()
        above = line - 2
        while lines[above].strip().startswith(("import ", "from ", ")")) or not lines[above].strip():
            above -= 1
        if "#" not in lines[line - 1] and not lines[above].strip().startswith("#"):
            uncommented.append(f"{name}:{line} imports {module}")
    assert not uncommented, "imports inside functions without a comment on the reason"


def test_imports_inside_functions_are_slow_optional_or_at_the_edge() -> None:
    """A function may import a module of semifine that imports a slow package. Modules of EDGE may import any module."""
    wrong = []
    for name, line, module in imports_in_functions():
        if f"{name}.".startswith(tuple(f"{edge}." for edge in EDGE)) or module not in FILES:
            continue
        if not packages_loaded_by(module) & SLOW_OR_OPTIONAL:
            wrong.append(f"{name}:{line} imports {module}")
    assert not wrong, "these imports belong at the top of the file"


def test_importing_semifine_does_not_import_torch() -> None:
    code = "import sys, semifine, semifine.cli.main; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_cycles_are_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []
