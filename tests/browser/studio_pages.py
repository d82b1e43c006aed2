"""Starts the studio and opens its page in a browser."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

WAIT = 30_000


class Server:
    """A ``semifine studio`` process."""

    def __init__(self, run: Path) -> None:
        command = [sys.executable, "-m", "semifine", "studio", str(run), "--no-browser", "--device", "cpu"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def stop(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


@contextmanager
def serving(run: Path) -> Iterator[Server]:
    server = Server(run)
    try:
        yield server
    finally:
        server.process.kill()
        server.process.wait()


def open_page(browser: Browser, url: str, name: str, polls: bool = True) -> Page:
    return open_window(browser.new_context(viewport={"width": 1280, "height": 800}), url, name, polls)


def open_window(context: BrowserContext, url: str, name: str, polls: bool = True) -> Page:
    page = context.new_page()
    page.set_default_timeout(WAIT)
    page.on("pageerror", lambda error: pytest.fail(f"JavaScript error: {error}"))
    if not polls:  # so that the page does not see answers of other people
        page.route("**/api/changes*", lambda route: route.abort())
    page.goto(url)
    page.fill("#name-dialog input", name)
    page.keyboard.press("Enter")
    page.wait_for_selector("#candidates button")
    return page


def wait_for_text(page: Page, selector: str, text: str) -> None:
    page.locator(selector, has_text=text).wait_for()


def show_only(page: Page, path: str) -> None:
    """Shows one photo of the queue, whatever order the live model gives it."""
    page.fill("#filters [name=text]", path)
    page.keyboard.press("Enter")
    # Not only the path: the page may have shown this photo before, and would load it again later.
    page.wait_for_function("() => document.querySelector('#total').textContent === '1 image'")
    wait_for_text(page, "#path", path)


def answer_by_search(page: Page, name: str) -> None:
    """Answers with a class by name, because the live model may have changed the candidates."""
    page.keyboard.press("/")
    page.wait_for_selector("#class-dialog[open]")
    page.keyboard.type(name)
    page.keyboard.press("Enter")
    page.wait_for_selector("#class-dialog:not([open])", state="attached")
