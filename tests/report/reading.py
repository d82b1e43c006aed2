"""Parses a report: elements, text and table values."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

VOID = {"meta", "img", "br", "link", "input", "hr"}


class PageReader(HTMLParser):
    """Collects tags, texts and table values of a report. Fails if tags are not closed in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.html = html
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.rows: list[dict[str, str]] = []
        self._column: str | None = None
        self.feed(html)
        self.close()
        assert self.open == [], f"not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        self.tags.append((tag, attributes))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append({})
        if tag == "td":
            self._column = attributes.get("data-column")
        if tag == "data" and self._column:
            self.rows[-1][self._column] = attributes["value"]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> at {self.getpos()}"

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    @property
    def results(self) -> list[dict[str, float]]:
        """Values of the results table, by row and column."""
        return [{key: float(value) for key, value in row.items()} for row in self.rows if row]

    def attributes(self, name: str) -> list[str]:
        return [attributes[name] for _, attributes in self.tags if name in attributes]


def read_page(path: Path) -> PageReader:
    return PageReader(path.read_text(encoding="utf-8"))
