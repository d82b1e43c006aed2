"""Colours and line styles, the same for a method on every figure and page.

The hues are those of Okabe and Ito, which people with colour vision deficiencies tell apart; on a dark ground some are
lightened. Figures are drawn in the light colours, which then become CSS variables, so that one drawing serves both.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import product
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


Style = tuple[str, str]
"""A hue and a line style."""


def run_styles(methods: Sequence[str]) -> list[Style]:
    """Hue and line style of each run; further runs of the same method differ in the line style."""
    firsts = method_styles(methods)
    taken = set(firsts.values())
    styles = []
    for place, method in enumerate(methods):
        style = firsts[method]
        if repeat := methods[:place].count(method):
            hue, dash = style
            others = [(hue, other) for other in _from(DASHES, DASHES.index(dash) + repeat)]
            style = next((other for other in others if other not in taken), others[0])
        taken.add(style)
        styles.append(style)
    return styles


def method_styles(methods: Collection[str]) -> dict[str, Style]:
    """The style of each method's first run: known methods keep theirs, others take what those leave."""
    styles = {method: METHOD_STYLES[method] for method in methods if method in METHOD_STYLES}
    for method in sorted(set(methods) - set(styles)):  # sorted, so that the order of the runs does not matter
        styles[method] = _free_style(method, set(styles.values()))
    return styles


def _free_style(method: str, taken: Collection[Style]) -> Style:
    """Of a method of one's own: a hue that no other method on the page has, else a free pair of hue and line style."""
    # A checksum, because the colour must not change from page to page without need.
    hues = _from(SPARE_HUES, crc32(method.encode()))
    styles = [(hue, dash) for dash, hue in product(DASHES, hues)]
    taken_hues = {hue for hue, _ in taken}
    new_hues = [style for style in styles if style[0] not in taken_hues]
    free = [style for style in styles if style not in taken]
    return next(iter(new_hues + free), styles[0])


def _from(choices: Sequence[str], start: int) -> list[str]:
    """The choices in their order, beginning at one of them and going round."""
    start %= len(choices)
    return [*choices[start:], *choices[:start]]


def css_variables(dark: bool) -> str:
    """The hues as declarations ``--hue-blue: #0072b2;``."""
    return " ".join(f"--hue-{name}: {shades[dark]};" for name, shades in HUES.items())
