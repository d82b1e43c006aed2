"""Numbers and names as a reader expects them."""

from __future__ import annotations

from collections.abc import Sequence

METHOD_NAMES = {
    "soc": "SoC",
    "supervised": "Supervised",
    "oracle": "Oracle",
    "pseudo_label": "Pseudo-Label",
    "curriculum": "Curriculum",
    "fixmatch": "FixMatch",
    "flexmatch": "FlexMatch",
    "self_training": "Self-Training",
    "simmatch": "SimMatch",
    "moco": "MoCo",
}

NARROW_SPACE = "\u202f"
MINUS = "\u2212"
ELLIPSIS = "\u2026"
MISSING = "\u2013"


def method_name(method: str) -> str:
    """As the papers write it; a method unknown here keeps its own name."""
    return METHOD_NAMES.get(method, method)


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}{NARROW_SPACE}%"


def decimal(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def points(difference: float) -> str:
    """A difference of percentages, always with its sign."""
    rounded = round(difference, 1)
    sign = "+" if rounded > 0 else MINUS if rounded < 0 else "±"
    return f"{sign}{abs(rounded):.1f} points"


def count(number: float, noun: str, plural: str | None = None) -> str:
    """``1 image``, ``12 345 images`` with narrow spaces between thousands."""
    whole = round(number)
    words = noun if whole == 1 else plural or noun + "s"
    return f"{whole:,} {words}".replace(",", NARROW_SPACE)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


def enumeration(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def shortened(text: str, length: int) -> str:
    """One line of at most this many letters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + ELLIPSIS
