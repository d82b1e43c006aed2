"""Lists in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def first_few(names: Sequence[str], most: int = 3) -> str:
    """``a, b, c, …``: a remark is read, a list of hundreds is not."""
    return ", ".join([*names[:most], *(["…"] if len(names) > most else [])])
