"""Formats numbers and lists of words for the report."""

from __future__ import annotations

from collections.abc import Sequence

NARROW_SPACE = "\u202f"
NO_BREAK_SPACE = "\u00a0"
"""Keeps a number and its unit on one line."""
MINUS = "\u2212"
ELLIPSIS = "\u2026"
MISSING = "\u2013"
"""Shown in place of a missing value."""


def percent(value: float | None) -> str:
    """Formats a percentage with one decimal.

    Example:
        >>> percent(61.25).replace(NARROW_SPACE, " "), percent(None)
        ('61.2 %', '–')
    """
    return MISSING if value is None else f"{value:.1f}{NARROW_SPACE}%"


def decimal(value: float | None, digits: int = 2) -> str:
    """Formats a number with a fixed number of decimals."""
    return MISSING if value is None else f"{value:.{digits}f}".replace("-", MINUS)


def points(difference: float, digits: int = 1) -> str:
    """Formats a difference of percentages, always with its sign.

    Example:
        >>> points(1.26).replace(NO_BREAK_SPACE, " ")
        '+1.3 points'
    """
    rounded = round(difference, digits)
    sign = "+" if rounded > 0 else MINUS if rounded < 0 else "±"
    return with_unit(f"{sign}{abs(rounded):.{digits}f}", "points")


def distinguishing_digits(first: float, second: float, max_digits: int = 6) -> int:
    """Returns the smallest number of decimals, at least 1, that shows two numbers as different; 1 if they are equal.

    Example:
        >>> distinguishing_digits(4.404, 4.37)
        2
    """
    return next((digits for digits in range(1, max_digits + 1) if round(first, digits) != round(second, digits)), 1)


def three_digits(value: float) -> str:
    """Formats a number with three significant digits and without an exponent.

    Example:
        >>> three_digits(74.21), three_digits(1234.5)
        ('74.2', '1230')
    """
    return f"{float(f'{value:.3g}'):.12g}"


def with_unit(number: str, unit: str) -> str:
    """Joins a formatted number and its unit by a no-break space."""
    return f"{number}{NO_BREAK_SPACE}{unit}"


def count(number: float, noun: str, plural: str | None = None) -> str:
    """Formats a count with its noun in the singular or plural.

    Example:
        >>> count(1, "class", "classes"), count(12345, "image").replace(NARROW_SPACE, " ")
        ('1 class', '12 345 images')
    """
    words = noun if round(number) == 1 else plural or noun + "s"
    return f"{integer(number)} {words}"


def integer(number: float) -> str:
    """Formats a rounded number with narrow spaces between thousands."""
    return f"{round(number):,}".replace(",", NARROW_SPACE)


def duration(seconds: float | None) -> str:
    """Formats seconds as ``4.2 s``, ``2 min 05 s`` or ``1 h 02 min``."""
    if seconds is None:
        return MISSING
    if seconds < 60:
        return with_unit(f"{seconds:.1f}", "s")
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    parts = ((f"{hours}", "h"), (f"{minutes:02d}", "min")) if hours else ((f"{minutes}", "min"), (f"{rest:02d}", "s"))
    return " ".join(with_unit(*part) for part in parts)


def join_words(parts: Sequence[str]) -> str:
    """Joins words by commas and a final "and".

    Example:
        >>> join_words(["a", "b", "c"])
        'a, b and c'
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def shorten(text: str, length: int) -> str:
    """Returns the text on one line, cut to ``length`` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1].rstrip() + ELLIPSIS
