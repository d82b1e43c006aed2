"""When two names mean one class, and when they only look as if they did."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from semifine.data.wording import first_few


def class_name(text: str) -> str:
    """The name of the class that a folder, a table or a list of labels means by a text."""
    # Systems write accents composed or decomposed, and nobody sees blanks around a name: it is one class in each form.
    return unicodedata.normalize("NFC", text.strip())


def names_that_differ_in_case(names: Iterable[str]) -> list[str]:
    """A remark where classes differ in capital letters alone: most likely one class was meant."""
    spellings: dict[str, list[str]] = {}
    for name in names:
        spellings.setdefault(name.casefold(), []).append(name)
    meant = [" and ".join(f"'{name}'" for name in same) for same in spellings.values() if len(same) > 1]
    if not meant:
        return []
    return [f"learnt as classes of their own, though only capital letters differ: {first_few(meant)}"]
