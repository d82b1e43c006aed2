"""The version of semifine and of its source code."""

from __future__ import annotations

import subprocess
from pathlib import Path

__version__ = "0.1.0"


def code_version() -> str:
    """Returns the version and, in a git checkout, the commit; a plus sign marks uncommitted changes.

    Example:
        >>> code_version().startswith(__version__)
        True
    """
    checkout = Path(__file__).parents[2]
    if not (checkout / ".git").exists():
        return __version__
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty=+", "--abbrev=10"],
            cwd=checkout,
            capture_output=True,
            text=True,
            check=True,
            timeout=5,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return __version__
    return f"{__version__} ({described})"
