"""Numbers and names as a reader expects them."""

from __future__ import annotations

from collections.abc import Sequence

NARROW_SPACE = "\u202f"
NO_BREAK_SPACE = "\u00a0"
"""Between a number and its unit, which stay on one line."""
MINUS = "\u2212"
ELLIPSIS = "\u2026"
MISSING = "\u2013"


def percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1f}{NARROW_SPACE}%"


def decimal(value: float | None, digits: int = 2) -> str:
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def points(difference: float, digits: int = 1) -> str:
    """A difference of percentages, always with its sign."""
    rounded = round(difference, digits)
    sign = "+" if rounded > 0 else MINUS if rounded < 0 else "±"
    return with_unit(f"{sign}{abs(rounded):.{digits}f}", "points")


def digits_that_tell_apart(first: float, second: float, most: int = 6) -> int:
    """The fewest decimals, at least one, with which two numbers do not look the same; one for equal numbers."""
    return next((digits for digits in range(1, most + 1) if round(first, digits) != round(second, digits)), 1)


def three_digits(value: float) -> str:
    """``74.2``, ``1230``: three digits that count, and no powers of ten."""
    return f"{float(f'{value:.3g}'):.12g}"


def with_unit(number: str, unit: str) -> str:
    return f"{number}{NO_BREAK_SPACE}{unit}"


def count(number: float, noun: str, plural: str | None = None) -> str:
    """``1 image``, ``12 345 images`` with narrow spaces between thousands."""
    words = noun if round(number) == 1 else plural or noun + "s"
    return f"{whole(number)} {words}"


def whole(number: float) -> str:
    return f"{round(number):,}".replace(",", NARROW_SPACE)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return MISSING
    if seconds < 60:
        return with_unit(f"{seconds:.1f}", "s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((f"{hours}", "h"), (f"{minutes:02d}", "min")) if hours else ((f"{minutes}", "min"), (f"{rest:02d}", "s"))
    return " ".join(with_unit(*part) for part in parts)


def enumeration(parts: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def shortened(text: str, length: int) -> str:
    """One line of at most this many letters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + ELLIPSIS
