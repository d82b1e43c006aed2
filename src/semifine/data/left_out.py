"""Images and classes that are left out of a data set, and their summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

NO_LABELS = "no usable labeled image"
LeftOutKind: TypeAlias = Literal["copy", "conflict", "unreadable", "no_class", "class"]
KINDS = get_args(LeftOutKind)


@dataclass(frozen=True)
class LeftOut:
    """An image or a class that is neither trained on nor measured.

    Args:
        path: Path of the image, or name of the class.
        split: Name of its split.
        kind: What is left out and why. ``conflict``: copies with different labels. ``no_class``: an image whose class
            is left out. ``class``: a class without usable labeled images.
        reason: Why, for the user.
        copy_of: Path of the equal image.
    """

    path: str
    split: str
    kind: LeftOutKind
    reason: str
    copy_of: str | None = None


def describe_left_out(left_out: Iterable[LeftOut]) -> str:
    """Summarizes how many images and classes are left out, and why; "" if there are none.

    Example:
        >>> copy = LeftOut("unlabeled/1.jpg", "unlabeled", "copy", "copy of a test image", "test/robin/1.jpg")
        >>> describe_left_out([copy, copy])
        '2 unlabeled images (also in test)'
    """
    counts: dict[str, Counter[str]] = {}
    for item in sorted(left_out, key=lambda item: KINDS.index(item.kind)):
        counts.setdefault(_short_reason(item), Counter())[_noun(item)] += 1
    return ", ".join(
        f"{' and '.join(_count(number, noun) for noun, number in sorted(of_noun.items()))} ({reason})"
        for reason, of_noun in counts.items()
    )


def _short_reason(item: LeftOut) -> str:
    reasons = {
        "copy": item.reason.replace("copy of a ", "also in ").replace(" image", ""),
        "conflict": "labeled as different classes",
        "unreadable": "unreadable",
        "no_class": "class without usable labeled images",
        "class": NO_LABELS,
    }
    return reasons[item.kind]


def _noun(item: LeftOut) -> str:
    return "class" if item.kind == "class" else f"{item.split} image"


def _count(number: int, noun: str) -> str:
    plural = "classes" if noun == "class" else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
