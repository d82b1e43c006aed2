"""Colours and line styles, the same for a method on every figure and page.

The hues are those of Okabe and Ito, which people with colour vision deficiencies tell apart; on a dark ground some are
lightened. Figures are drawn in the light colours, which then become CSS variables, so that one drawing serves both.
"""

from __future__ import annotations

from collections.abc import Sequence
from zlib import crc32

# name -> (on a light ground, on a dark ground)
HUES = {
    "black": ("#1b1b1b", "#f0f0f0"),
    "blue": ("#0072b2", "#4fb0f0"),
    "vermillion": ("#d55e00", "#f28543"),
    "green": ("#009e73", "#2cc79b"),
    "orange": ("#e69f00", "#f2b632"),
    "purple": ("#cc79a7", "#e39cc4"),
    "sky": ("#56b4e9", "#8fd0f5"),
}

# References in black; the drawing of every other method keeps its hue.
METHOD_STYLES = {
    "supervised": ("black", "-"),
    "oracle": ("black", ":"),
    "soc": ("blue", "-"),
    "fixmatch": ("vermillion", "-"),
    "flexmatch": ("orange", "-"),
    "pseudo_label": ("green", "-"),
    "curriculum": ("green", "--"),
    "simmatch": ("purple", "-"),
    "self_training": ("sky", "-"),
    "moco": ("sky", "--"),
}
SPARE_HUES = ("vermillion", "green", "orange", "purple", "sky")
DASHES = ("-", "--", "-.", ":")
DASH_ARRAYS = {"-": "none", "--": "6 3", "-.": "6 3 1.5 3", ":": "1.5 3"}


def method_style(method: str, repeat: int = 0) -> tuple[str, str]:
    """Hue and line style of a method's run; further runs of the same method differ in the line style."""
    # A checksum, because the colour of a method of one's own must not change from page to page.
    own = (SPARE_HUES[crc32(method.encode()) % len(SPARE_HUES)], "-")
    hue, dash = METHOD_STYLES.get(method, own)
    return hue, DASHES[(DASHES.index(dash) + repeat) % len(DASHES)]


def run_styles(methods: Sequence[str]) -> list[tuple[str, str]]:
    """Hue and line style of each run, from the runs' methods."""
    return [method_style(method, methods[:place].count(method)) for place, method in enumerate(methods)]


def css_variables(dark: bool) -> str:
    """The hues as declarations ``--hue-blue: #0072b2;``."""
    return " ".join(f"--hue-{name}: {shades[dark]};" for name, shades in HUES.items())
