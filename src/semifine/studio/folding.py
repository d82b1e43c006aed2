"""Names as people type them: without accents, however the accents are written."""

from __future__ import annotations

import unicodedata

# Letters of their own in Unicode, which no decomposition takes apart; as assets/folding.js does it.
WITHOUT_ACCENT = str.maketrans({"ł": "l", "ø": "o", "đ": "d", "ħ": "h", "æ": "ae", "œ": "oe", "ß": "ss"})


def plain(text: str) -> str:
    """For comparison: equal for two spellings that a person would take for one name."""
    if text.isascii():
        return text.lower()
    parts = unicodedata.normalize("NFKD", text)
    return "".join(c for c in parts if not unicodedata.category(c).startswith("M")).lower().translate(WITHOUT_ACCENT)
