"""The public names of ``import semifine``."""

from __future__ import annotations

import semifine


def test_lazy_names_are_in_dir() -> None:
    """Notebooks complete the names in ``dir``."""
    assert set(semifine.__all__) <= set(dir(semifine))
    assert all(hasattr(semifine, name) for name in dir(semifine))
