"""The documentation site: generated pages, navigation, and the link check."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.conftest import ROOT
from tests.scripts import load_script

DOCS = ROOT / "docs"


@pytest.mark.parametrize(
    "name", ["api.md", "command_line.md", "data_sources.md", "methods.md", "modules.md", "settings.md"]
)
def test_generated_pages_are_current(name: str) -> None:
    generated = load_script("reference").pages()[name]
    assert (DOCS / "reference" / name).read_text(encoding="utf-8") == generated, "run `make docs`"


def test_the_reference_lists_each_option_once() -> None:
    page = load_script("reference").pages()["command_line.md"]
    predict = page.split("\n## predict\n")[1].split("\n## ")[0]
    assert predict.count("`--coverage ") == 1
    assert "`MODEL`" in predict
    assert "--momentum" not in page, "settings are on another page"


def test_every_page_is_in_the_navigation() -> None:
    navigation = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    named = [page for section in navigation for pages in section.values() for page in _pages(pages)]
    assert len(named) == len(set(named))
    written = {page.relative_to(ROOT).as_posix() for page in DOCS.rglob("*.md")}
    assert set(named) == written | {"README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"}


def _pages(entry: object) -> list[str]:
    if isinstance(entry, dict):
        return [page for value in entry.values() for page in _pages(value)]
    if isinstance(entry, list):
        return [page for value in entry for page in _pages(value)]
    return [str(entry)]


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "index.html").write_text(
        '<h1 id="top">A</h1><a href="sub/page.html#there">1</a><a href="sub/page.html#absent">2</a>'
        '<img src="absent.png"><a href="https://example.org/x">3</a><a href="#top">4</a><a href="sub">5</a>'
    )
    (tmp_path / "sub" / "page.html").write_text(
        '<h2 id="there">B</h2><a href="../index.html">6</a>\n<p>::: semifine.x</p>'
    )
    assert load_script("build_docs").broken_links(tmp_path) == [
        "index.html links to sub/page.html#absent, which has no such section",
        "index.html links to absent.png, which does not exist",
        "index.html links to sub, which does not exist",
        "sub/page.html shows Markdown: <p>::: semifine.x",
    ]
