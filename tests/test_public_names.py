"""What ``import semifine`` offers."""

from __future__ import annotations

import semifine


def test_names_that_are_loaded_on_first_use_are_listed() -> None:
    """So that a notebook completes them."""
    assert set(semifine.__all__) <= set(dir(semifine))
    assert all(hasattr(semifine, name) for name in dir(semifine))
