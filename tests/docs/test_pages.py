"""Runs the commands and the Python code of the documentation pages, and checks links and file names."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import torch

from semifine.cli.main import main
from tests.scripts import load_script

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
# Guides that add files to the source tree. tests/docs/test_guides.py follows them.
NEW_FILE = re.compile(r"^New file `(src/[\w/.]+)`:", flags=re.MULTILINE)
EDITS_SOURCE = re.compile(r"^(?:New file|In) `src/", flags=re.MULTILINE)
# Options of torchrun, srun, tensorboard and released code of papers, and of the examples in docs/how-to/add_*.md.
FOREIGN_OPTIONS = {
    *("nnodes", "nproc-per-node", "rdzv-backend", "rdzv-endpoint", "nodes", "ntasks-per-node", "gpus-per-node"),
    *("kill-on-bad-exit", "logdir", "strict", "eman", "vertical-flip", "data.labels-per-class"),
}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.DOTALL)


def write_files(page: Path, folder: Path) -> None:
    """Writes the Python files of a page. Their first line is a comment with the file name."""
    for block in blocks(page, "python"):
        if name := re.match(r"# (\w+\.py)\n", block):
            (folder / name[1]).write_text(block, encoding="utf-8")


def run_command(arguments: list[str]) -> int:
    """Runs a command in this process if possible, because starting Python and torch takes longer than most commands."""
    if "--devices" not in arguments:
        return main(arguments)
    # The processes copy the command line of the first one, which would be the command line of pytest.
    return subprocess.run([sys.executable, "-m", "semifine", *arguments], timeout=240).returncode


def edits_source_files(page: Path) -> bool:
    """Whether the commands of a page need its edits of the source tree; test_guides.py runs them."""
    return re.search(r"^(New file|In) `src/", page.read_text(encoding="utf-8"), flags=re.MULTILINE) is not None


@pytest.mark.slow
@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "console") and not edits_source_files(page)],
    ids=lambda page: page.name,
)
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(page, tmp_path)
    for line in "".join(blocks(page, "console")).splitlines():
        program, *arguments = shlex.split(line.removeprefix("$ "))
        assert program == "semifine"
        assert run_command(arguments) == 0, line


@pytest.mark.slow
def test_python_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for block in blocks(ROOT / "docs" / "how-to" / "python.md", "python"):
        exec(compile(block, "docs/how-to/python.md", "exec"), names)


def test_the_example_method_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of the guide trains, and its checkpoint contains its state."""
    import semifine.methods
    from semifine.methods import registry
    from semifine.training.fit import fit
    from semifine.training.progress import Display
    from tests.conftest import tiny_settings

    write_files(ROOT / "docs" / "how-to" / "add_a_method.md", tmp_path)
    monkeypatch.setattr(semifine.methods, "__path__", [*semifine.methods.__path__, str(tmp_path)])
    monkeypatch.setattr(registry, "METHOD_FOLDERS", semifine.methods.__path__)
    settings = tiny_settings("balanced_soft", method__weight=0.5)
    result = fit(settings, tmp_path / "run", display=Display(quiet=True))
    assert result["unlabeled"]["candidates"] == 6, "soft labels without a threshold keep every class"
    state = torch.load(tmp_path / "run" / "checkpoints" / "last" / "training.pt", weights_only=True)["method"]
    assert state["mean"].sum() == pytest.approx(1)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_exist(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_named_on_pages_exist(page: Path) -> None:
    """Checks files of tests, benchmarks and packages, with paths relative to tests/ or to the package."""
    text = page.read_text(encoding="utf-8")
    new = {path.removeprefix("src/semifine/") for path in re.findall(NEW_FILE, text)}
    for path in set(re.findall(r"`(?:src/semifine/|tests/)?([a-z_]+/[a-z_/]+\.(?:py|yaml))`", text)) - new:
        folders = (ROOT, ROOT / "tests", ROOT / "src" / "semifine")
        assert any((folder / path).exists() for folder in folders), f"{page.name} names {path}"
    for package in set(re.findall(r"`([a-z_]+)/`", text)) if page.name == "reliability.md" else ():
        assert (ROOT / "tests" / package).is_dir() or (ROOT / package).is_dir(), f"{page.name} names {package}/"


@cache
def known_options() -> frozenset[str]:
    """Returns the options and settings on the generated reference pages, and the options of the benchmarks."""
    generated = "".join(load_script("reference").pages().values())
    options = set(re.findall(r"`(?:--)?((?:method\.|data\.)?[a-z][a-z0-9_-]*)", generated))
    scripts = "".join(file.read_text(encoding="utf-8") for file in (ROOT / "benchmarks").glob("*.py"))
    options |= set(re.findall(r'"--([a-z-]+)"', scripts)) | {"data", "method", "help"}
    return frozenset(name.replace("_", "-") for name in options)


@pytest.mark.parametrize(
    "page",
    [
        page
        for page in (*PAGES, ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md")
        if not page.read_text(encoding="utf-8").startswith("<!-- Generated")
    ],
    ids=lambda page: page.name,
)
def test_options_on_pages_exist(page: Path) -> None:
    found = re.findall(r"(?<![\w-])--((?:method\.|data\.)?[a-z][a-z0-9_-]*)", page.read_text(encoding="utf-8"))
    names = {name.replace("_", "-") for name in found} - FOREIGN_OPTIONS - known_options()
    assert {name for name in names if name.removeprefix("no-") not in known_options()} == set()
