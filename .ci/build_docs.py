"""Builds the documentation site in build/site and checks its internal links.

The pages link to files outside of docs/ (README.md, benchmark results), so all of them are collected in build/pages
first, with the same relative paths. The links then hold both on the site and in the repository.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import reference

ROOT = Path(__file__).parents[1]
PAGES = ROOT / "build" / "pages"
SITE = ROOT / "build" / "site"
FILES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "CITATION.cff", "LICENSE")
FOLDERS = ("docs", "benchmarks/results")


def main() -> int:
    reference.main()
    collect_pages()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = [str(Path(sys.executable).parent / "zensical"), "build", "--strict", "--config-file", "mkdocs.yml"]
    if failed := subprocess.run(zensical, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"}, check=False).returncode:
        return failed
    write_folder_listings(SITE / "benchmarks" / "results")
    broken = broken_links(SITE)
    for line in broken:
        print(line, file=sys.stderr)
    pages = len(list(SITE.rglob("*.html")))
    print(f"{SITE.relative_to(ROOT)}/index.html: {pages} pages, {len(broken)} broken links")
    return int(bool(broken))


def collect_pages() -> None:
    """Copies all pages and the files that they link to into ``PAGES``."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir(parents=True)
    for name in FILES:
        shutil.copy(ROOT / name, PAGES / name)
    for name in FOLDERS:
        shutil.copytree(ROOT / name, PAGES / name, ignore=shutil.ignore_patterns("*.py", "__pycache__"))


def write_folder_listings(folder: Path) -> None:
    """Writes an index.html into each folder of results, because pages link to folders, too."""
    for path, folders, files in os.walk(folder):
        links = [f"{name}/index.html" for name in sorted(folders)] + sorted(set(files) - {"index.html"})
        items = "".join(f'<li><a href="{html.escape(link)}">{html.escape(link)}</a></li>' for link in links)
        title = html.escape(str(Path(path).relative_to(SITE)))
        page = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><ul>{items}</ul></html>'
        (Path(path) / "index.html").write_text(page, encoding="utf-8")


class Links(HTMLParser):
    """Collects the targets of links and images, and the ids that links can point to."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()

    def handle_starttag(self, _tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value and name in ("href", "src"):
                self.targets.append(value)
            elif value and name in ("id", "name"):
                self.ids.add(value)


def broken_links(site: Path) -> list[str]:
    """Returns a line for each link within the site that leads to no file or to no id of its page.

    Reports among the benchmark results are not checked: they are self-contained.
    """
    pages = {page: read_links(page) for page in sorted(site.rglob("*.html")) if page.name != "404.html"}
    broken = []
    for page, links in pages.items():
        if "benchmarks" in page.relative_to(site).parts and page.name != "index.html":
            continue
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            file = file / "index.html" if file.is_dir() else file
            if not file.is_file():
                broken.append(f"{page.relative_to(site)} links to {target}, which does not exist")
            elif url.fragment and file in pages and unquote(url.fragment) not in pages[file].ids:
                broken.append(f"{page.relative_to(site)} links to {target}, which has no such section")
    broken += [f"{page.relative_to(site)} shows Markdown: {text}" for page in pages for text in raw_directives(page)]
    return broken


def read_links(page: Path) -> Links:
    links = Links()
    links.feed(page.read_text(encoding="utf-8"))
    return links


def raw_directives(page: Path) -> list[str]:
    """Returns ``::: semifine...`` directives that were not replaced by documentation."""
    return re.findall(r"^<p>::: semifine[\w.]*", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


if __name__ == "__main__":
    sys.exit(main())
