"""semifine: tell very similar classes apart from a few labeled photos and many unlabeled ones."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from semifine.errors import UserError
from semifine.version import __version__

if TYPE_CHECKING:
    from semifine.api import fit
    from semifine.inference.model import TrainedModel, load
    from semifine.methods import method_names as list_methods
    from semifine.runs.run import Run
    from semifine.soft_labels import SoftLabelSelector


# Imported on first use, so that `import semifine` and `semifine --help` do not wait for torch.
_LAZY = {
    "fit": ("semifine.api", "fit"),
    "load": ("semifine.inference.model", "load"),
    "Run": ("semifine.runs.run", "Run"),
    "TrainedModel": ("semifine.inference.model", "TrainedModel"),
    "list_methods": ("semifine.methods", "method_names"),
    "SoftLabelSelector": ("semifine.soft_labels", "SoftLabelSelector"),
}

__all__ = ["Run", "SoftLabelSelector", "TrainedModel", "UserError", "__version__", "fit", "list_methods", "load"]


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'semifine' has no attribute '{name}'")
    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})  # with the names that are not imported yet
