"""Runs the examples in docstrings."""

from __future__ import annotations

import doctest
import importlib
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
API_PAGE = Path(__file__).parents[1] / "docs" / "reference" / "api.md"


def modules_with_examples() -> list[str]:
    """Returns the names of the modules that contain examples."""
    files = [file for file in sorted(SOURCE.rglob("*.py")) if ">>>" in file.read_text(encoding="utf-8")]
    return [".".join(file.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__") for file in files]


@pytest.mark.parametrize("name", modules_with_examples())
def test_examples_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    failed, _ = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failed == 0, f"run 'python -m doctest -v' on {name}"
    # Examples that need a finished run are skipped, but they must be in a docstring, too.
    assert any(test.examples for test in doctest.DocTestFinder().find(module)), (
        f"{name} has '>>>' outside of a docstring"
    )


def public_objects() -> list[str]:
    """Returns the full names of the functions and classes on the page of the Python API."""
    return re.findall(r"^::: (\S+)$", API_PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)


@pytest.mark.parametrize("name", public_objects())
def test_public_functions_and_classes_have_an_example(name: str) -> None:
    module, _, attribute = name.rpartition(".")
    found = getattr(importlib.import_module(module), attribute)
    parts = [found, *vars(found).values()] if isinstance(found, type) else [found]
    assert any(">>>" in (getattr(part, "__doc__", None) or "") for part in parts), f"{name} has no example"
