"""Every measured number of the documentation comes from a raw file with command, version and hardware."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.docs.figures import PHRASES, RESULTS

PAGES = [
    "README.md",
    *(f"docs/explanation/{name}.md" for name in ("results", "reliability", "method", "levers", "probe")),
    "docs/reference/predictions.md",
    *sorted(
        str(path.relative_to(ROOT)) for name in ("tutorial", "how-to") for path in (ROOT / "docs" / name).glob("*.md")
    ),
]

MEASURED = re.compile(
    r"\d[\d,]*(?:\.\d+)? ?(?:%|points|percent|ms\b|s\b|min\b|GB|MB|KB)|(?<![\d.])\d+\.\d+(?![.\d])|\d+ of \d+"
)
"""A decimal number, or a number with a unit."""

SETTINGS = {
    "": ["95 %", "90 %", "99 %", "1 % level", "5 % level", "0.999"],
    "README.md": [
        *("about 6 GB", "6 s photos", "6 s network", "25 s", "about 9 min"),
    ],
    "docs/explanation/probe.md": ["to the power 0.25", "to the power 0.5", "to the power 1.5", "weight is 0.3"],
    "docs/explanation/reliability.md": ["Up to 200 MB", "513 MB", "64 KB", "64 MB", "256 MB"],
    "docs/explanation/results.md": ["2 s until the page answers", "less than 1 s"],
    "docs/reference/predictions.md": ["default 0.9", "default 0.05", "0.3/√n"],
    "docs/how-to/crops.md": ["15 % on each side", "default 0.2"],
    "docs/how-to/export.md": ["more than 0.001"],
    "docs/how-to/predict.md": ["default 0.9"],
    "docs/how-to/report.md": ["about 17 points"],
    "docs/how-to/starting_weights.md": ["245 of 245", "265 of 265"],
    "docs/how-to/train.md": ["about 4 min"],
    "docs/tutorial/your_own_photos.md": ["about 17 points wide"],
}
"""Settings and limits of the program, and times that a command prints in front of its lines. "": on all pages."""

MEASURED_AGAIN = {"fuzz.json", "scan-studio.json"}
"""Raw files of older scripts, which did not write command, version and hardware. Run the script again."""


def read_text(page: str) -> str:
    """Returns the text of a page in one line, without commands, inline code, addresses of links and HTML comments."""
    text = (ROOT / page).read_text(encoding="utf-8")
    text = re.sub(r"```(\w*)\n(.*?)```", lambda fence: fence[2] if fence[1] == "text" else " ", text, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return " ".join(text.split())


def without_code(text: str) -> str:
    return re.sub(r"`[^`]*`", "", text)


@pytest.mark.parametrize("page", PHRASES)
def test_numbers_equal_the_raw_files(page: str) -> None:
    text = read_text(page)
    missing = [phrase for phrase in PHRASES[page]() if phrase not in text]
    assert not missing


@pytest.mark.parametrize("page", PAGES)
def test_there_are_no_other_measured_numbers(page: str) -> None:
    text = read_text(page)
    for phrase in PHRASES.get(page, lambda: ())():
        text = text.replace(phrase, " ")
    text = without_code(text)
    for phrase in (*SETTINGS.get(page, ()), *SETTINGS[""]):
        text = text.replace(phrase, " ")
    found = [text[max(0, match.start() - 40) : match.end() + 20] for match in MEASURED.finditer(text)]
    assert not found, "add a phrase to tests/docs/figures.py, or remove the number"


def records(found: Any) -> Iterator[dict[str, Any]]:
    """Returns the parts of a raw file that have a version and the hardware: the file, or each of its runs."""
    if isinstance(found, dict) and ("version" in found or "semifine" in found):
        yield {**found.get("environment", {}), **found}
    elif isinstance(found, dict) and "environment" in found:
        yield found["environment"]
    elif isinstance(found, dict):
        yield from records(found["run"] if "run" in found else found.get("results", []))
    else:
        for part in found:
            yield from records(part) if part else ()


def problem(path: Path) -> str:
    """Returns what a raw file lacks; "" if it is complete."""
    found = json.loads(path.read_text(encoding="utf-8"))
    commands = found if isinstance(found, list) else [found]
    # The settings of a run are beside its result.
    if not path.with_name("settings.yaml").exists() and not all("command" in part for part in commands):
        return "command"
    parts = list(records(found))
    versions = [str(part.get("version") or part.get("semifine")) for part in parts]
    if not parts or not all(re.fullmatch(r"[\d.]+ \([0-9a-f]{10}\)", version) for version in versions):
        return f"version without changes: {sorted(set(versions))}"
    return "" if all(part.get("hardware") or part.get("device") for part in parts) else "hardware"


def test_raw_files_have_command_version_and_hardware() -> None:
    problems = {str(path.relative_to(RESULTS)): problem(path) for path in sorted(RESULTS.rglob("*.json"))}
    assert {name: text for name, text in problems.items() if text and name not in MEASURED_AGAIN} == {}
    assert all(problems[name] for name in MEASURED_AGAIN), "remove it from the list"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"version": "0.1.0 (0123456789+)"}, "version"),
        ({"version": "0.1.0"}, "version"),
        ({"hardware": None}, "hardware"),
        ({"command": None}, "command"),
        ({}, ""),
    ],
)
def test_incomplete_raw_files_are_found(change: dict[str, Any], expected: str, tmp_path: Path) -> None:
    complete = {"command": "python x.py", "version": "0.1.0 (0123456789)", "hardware": {"device": "CPU"}}
    record = {key: value for key, value in {**complete, **change}.items() if value is not None}
    (tmp_path / "x.json").write_text(json.dumps(record))
    assert problem(tmp_path / "x.json").startswith(expected)
    assert bool(problem(tmp_path / "x.json")) == bool(expected)
