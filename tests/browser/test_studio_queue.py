"""The end of the queue, and key presses that are faster than the server."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest

from semifine.data.label_log import read_events
from tests.browser.studio_pages import open_page, serving, wait_for_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

SLOW_ANSWERS = """() => {
  const real = window.fetch;
  const delay = (address) => new Promise((done) => setTimeout(done, String(address).includes("answer") ? 300 : 0));
  window.fetch = (address, options) => delay(address).then(() => real(address, options));
}"""

OTHER_OR_NONE = """before => {
  const [path, empty] = ["#path", "#empty"].map((name) => document.querySelector(name));
  return path.textContent !== before || !empty.hidden;
}"""


def get(url: str, name: str) -> dict[str, Any]:
    return dict(json.load(urlopen(f"{url}api/{name}")))


def submit_unsure(url: str, person: str, ids: list[int]) -> None:
    """Submits answers of another person."""
    images = [{"id": index, "seen": 0} for index in ids]
    body = {"run": "birds", "person": person, "kind": "unsure", "images": images}
    headers = {"Origin": "{0.scheme}://{0.netloc}".format(urlsplit(url)), "Content-Type": "application/json"}
    urlopen(Request(f"{url}api/answer", json.dumps(body).encode(), headers)).close()


def press(page: Page, key: str) -> None:
    """Presses a key and waits until another image, or none, is shown."""
    before = page.inner_text("#path")
    page.keyboard.press(key)
    page.wait_for_function(OTHER_OR_NONE, arg=before)


def test_texts_at_the_end_of_the_queue(chromium: Browser, own_run: Path) -> None:
    """Other people label, images are skipped, filters match nothing: the text is right in each case."""
    with serving(own_run) as server:
        mine = get(server.url, "queue?text=/00001")["ids"]
        page = open_page(chromium, server.url, "Ada")
        # as for a long queue, which the server sends in parts
        page.route(
            "**/api/queue*", lambda route: route.continue_(url=re.sub(r"count=\d+", "count=4", route.request.url))
        )
        page.fill("#filters [name=text]", "/00001")
        page.keyboard.press("Enter")
        wait_for_text(page, "#total", f"{len(mine)} images")
        others = [index for index in range(60) if index not in mine]
        with page.expect_response(
            lambda response: "changes" in response.url and response.json()["counts"]["unsure"] > 0
        ):
            submit_unsure(server.url, "Bo", others)
        for _ in mine[:-2]:
            press(page, "u")
        press(page, "s")
        press(page, "u")
        wait_for_text(page, "#total", "1 image")  # the skipped image is back
        press(page, "u")
        wait_for_text(page, "#empty:not([hidden])", "All images of this queue are labeled.")
        unsure = [event.path for event in read_events(own_run.with_name("birds.studio.db")) if event.person == "Ada"]
        assert len(set(unsure)) == len(mine)

        page.click("#empty [data-action=undo]")
        wait_for_text(page, "#toast.shown", "Undone")
        wait_for_text(page, "#path", unsure[-1])
        page.fill("#filters [name=text]", "zzzz")
        page.keyboard.press("Enter")
        wait_for_text(page, "#empty:not([hidden])", "No waiting image matches these filters.")
        page.click("#empty [data-action=all]")
        wait_for_text(page, "#path", unsure[-1])
        assert page.input_value("#filters [name=text]") == ""

        page.fill("#filters [name=text]", "zzzz")
        page.keyboard.press("Enter")
        page.wait_for_selector("#empty:not([hidden])")
        box = page.locator("#filters [name=text]").bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + box["width"] - 14, box["y"] + box["height"] / 2)  # the clear button
        wait_for_text(page, "#path", unsure[-1])

        page.unroute("**/api/queue*")
        page.select_option("#filters [name=state]", "labeled")
        wait_for_text(page, "#empty:not([hidden])", "There are no such images.")
        page.select_option("#filters [name=state]", "unsure")
        wait_for_text(page, "#total", "59 images")
        for left in range(58, 0, -1):
            page.keyboard.press("ArrowRight")
            wait_for_text(page, "#total", f"{left} image")
        page.keyboard.press("ArrowRight")
        wait_for_text(page, "#empty:not([hidden])", "That was the last image.")


def wait_for_another_path(page: Page, before: str) -> str:
    """Waits until the page shows another photo; returns its path."""
    page.wait_for_function("before => ![before, ''].includes(document.querySelector('#path').innerText)", arg=before)
    return page.inner_text("#path")


def test_keys_never_answer_an_image_before_it_is_shown(chromium: Browser, own_run: Path) -> None:
    """While a request is pending, or after it failed."""
    log = own_run.with_name("birds.studio.db")
    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        first = page.inner_text("#path")
        page.evaluate(SLOW_ANSWERS)
        for key in ("1", "ArrowRight", "1", "/"):
            page.keyboard.press(key)
        second = wait_for_another_path(page, first)  # which one depends on the live model
        assert [event.path for event in read_events(log)] == [first]
        page.keyboard.press("1")
        page.keyboard.press("Backspace")  # waits for this answer and undoes it
        wait_for_text(page, "#toast.shown", "Undone")
        wait_for_text(page, "#path", second)
        assert [(event.path, event.kind) for event in read_events(log)[1:]] == [(second, "label"), (second, "undo")]

        page.route("**/photo/*/large*", lambda route: route.abort())
        page.keyboard.press("ArrowRight")
        third = wait_for_another_path(page, second)
        wait_for_text(page, "#photo", "This photo cannot be shown.")
        page.route("**/api/**", lambda route: route.abort())
        page.keyboard.press("1")
        wait_for_text(page, "#toast.error.shown", "Not saved. The studio does not respond.")
        page.wait_for_timeout(2000)  # the page polls without success
        wait_for_text(page, "#toast.error.shown", "Not saved.")
        assert page.inner_text("#path") == third
        assert len(read_events(log)) == 3
