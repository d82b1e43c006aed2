"""The kinds of view by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from torch import Tensor

from semifine.errors import UserError
from semifine.views.images import ImageBatch
from semifine.views.randomness import BatchRandom
from semifine.views.settings import ViewSettings

View = Callable[[ImageBatch, BatchRandom, ViewSettings], Tensor]
"""Makes (N, 3, size, size) views of the N images: levels 0..255, uint8 or float32."""

_views: dict[str, View] = {}


def register(name: str) -> Callable[[View], View]:
    """Decorator: makes a view known by ``name``."""

    def add(view: View) -> View:
        assert name not in _views, f"two views are called {name}"
        _views[name] = view
        return view

    return add


def view_names() -> tuple[str, ...]:
    """The names of all kinds of view."""
    _load_kinds()
    return tuple(sorted(_views))


def find_view(name: str) -> View:
    """The view of a name such as "strong"; "strong:2" is a second, independent view of the kind "strong"."""
    _load_kinds()
    kind = name.partition(":")[0]
    if kind not in _views:
        raise UserError(f"There is no view '{name}'; the views are {', '.join(view_names())}.")
    return _views[kind]


@cache
def _load_kinds() -> None:
    """Imports every file of ``kinds``: a new view is one new file there."""
    from semifine.views import kinds

    for module in pkgutil.iter_modules(kinds.__path__):
        importlib.import_module(f"{kinds.__name__}.{module.name}")
