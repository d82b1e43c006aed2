"""The command line of a case of wrong input, and values that cases are made of."""

from __future__ import annotations

import random
from dataclasses import dataclass
from pathlib import Path

NAMES = [
    "a",
    "b c",
    "ü",
    "class\nnew",
    "..",
    "x" * 200,
    "-1",
    "0",
    "",
    "  ",
    "labeled",
    "A.JPG",
    "日本",
    "a/../b",
    "\x1b[",
    "nu\0ll",
]
VALUES = [
    *("-1", "0", "1e9", "nan", "inf", "none", "[]", "{}", "true", "soc", "''", "0.5", "9" * 40, "\\x00", "ä", "2"),
    *("-0.0", "1e-400", "2020-01-01", "!!python/object/apply:os.system [false]", "[[[", "{a: {b: 1}}", "0x10", "~"),
    '"nu\\0ll"',
]
# Data settings for 'semifine prepare' with very few images.
FEW_IMAGES = (
    "--data.genera 2 --data.species 1 --data.labeled-per-class 1 --data.unlabeled-per-class 1 "
    "--data.val-per-class 0 --data.test-per-class 1"
).split()


@dataclass
class Case:
    """A command line. Its error message must contain one of the expected words."""

    arguments: list[str]
    expected: list[str]
    without_root: bool = False


def prepare(folder: Path, data: str) -> list[str]:
    return ["prepare", data, "--cache", str(folder / "cache"), "--image-size", "16"]


def encode(rng: random.Random, text: str) -> bytes:
    """Encodes text, mostly as UTF-8; sometimes in another encoding, truncated, or with a changed byte."""
    content = bytearray(text.encode(rng.choice(["utf-8"] * 18 + ["utf-16", "utf-8-sig"])))
    if content and rng.random() < 0.1:
        content = content[: rng.randrange(len(content))]
    if content and rng.random() < 0.1:
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content)
