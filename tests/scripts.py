"""Loads the scripts in .ci, which is not a package."""

from __future__ import annotations

import importlib.util
import sys
from types import ModuleType

from tests.conftest import ROOT


def load_script(name: str) -> ModuleType:
    """Returns .ci/NAME.py as a module, and registers it for imports from other scripts."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, ROOT / ".ci" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
