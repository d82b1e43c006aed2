"""The studio on screens of all sizes: zoom, touch, and layout."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semifine.data.label_log import read_events
from tests.browser.studio_pages import open_page, open_window, serving, wait_for_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow


def test_zoom_enlarges_and_moves(chromium: Browser, own_run: Path) -> None:
    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        page.keyboard.press("z")
        page.wait_for_selector("#zoom-dialog[open]")
        page.wait_for_function("() => document.querySelector('#zoom-dialog img').src.includes('/full')")
        fitted = zoomed_box(page)
        assert fitted["height"] == 800, "it fits the window"
        page.mouse.move(300, 300)
        page.mouse.wheel(0, -400)
        page.wait_for_function("() => document.querySelector('#zoom-dialog img').getBoundingClientRect().height > 1200")
        enlarged = zoomed_box(page)
        under = [(300 - photo["y"]) / photo["height"] for photo in (fitted, enlarged)]
        assert under[1] == pytest.approx(under[0], abs=0.01), "the point under the mouse stays there"

        page.keyboard.press("+")
        larger = zoomed_box(page)
        assert larger["height"] > enlarged["height"]
        page.mouse.down()
        page.mouse.move(250, 260)
        page.mouse.up()
        dragged = zoomed_box(page)
        assert (dragged["x"] - larger["x"], dragged["y"] - larger["y"]) == pytest.approx((-50, -40), abs=1)
        page.keyboard.press("ArrowRight")
        assert zoomed_box(page)["x"] < dragged["x"], "the photo moves to the left"
        for _ in range(60):
            page.keyboard.press("ArrowRight")
        assert zoomed_box(page)["x"] + zoomed_box(page)["width"] >= 1280 - 1, "at most to the edge of the photo"
        page.keyboard.press("0")
        assert zoomed_box(page) == fitted
        page.click("#zoom-dialog [name=close]")
        page.wait_for_selector("#zoom-dialog:not([open])", state="attached")


def test_touch(chromium: Browser, own_run: Path) -> None:
    """On a phone: pinch to zoom, and close every dialog without a key."""
    with serving(own_run) as server:
        context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True)
        page = open_window(context, server.url, "Ada")
        _check_answers_are_in_reach(page)
        page.tap("#photo")
        page.wait_for_selector("#zoom-dialog[open]")
        before = zoomed_box(page)["width"]
        touch = context.new_cdp_session(page)
        for kind, apart in (("touchStart", 40), ("touchMove", 80), ("touchMove", 120), ("touchEnd", None)):
            fingers = [] if apart is None else [{"x": 195 + side * apart, "y": 400} for side in (-1, 1)]
            touch.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": fingers})
        assert zoomed_box(page)["width"] == pytest.approx(3 * before, rel=0.05)
        page.tap("#zoom-dialog [name=close]")
        for close in (lambda: page.tap("#class-dialog form button"), lambda: page.touchscreen.tap(195, 20)):
            page.tap("[data-action=other]")
            page.wait_for_selector("#class-dialog[open]")
            page.touchscreen.tap(195, page.locator("#class-title").bounding_box()["y"] - 8)  # the padding of the dialog
            assert page.locator("#class-dialog[open]").count() == 1
            close()
            page.wait_for_selector("#class-dialog:not([open])", state="attached")
        page.keyboard.press("/")
        page.keyboard.type("a")
        page.keyboard.press("Escape")
        page.wait_for_selector("#class-dialog:not([open])", state="attached")
    assert [event.kind for event in read_events(own_run.with_name("birds.studio.db"))] == ["label", "undo"]


def _check_answers_are_in_reach(page: Page) -> None:
    """After an answer, the next photo is in view and no toast covers Undo. Buttons work in landscape mode."""
    path = page.inner_text("#path")
    page.set_viewport_size({"width": 390, "height": 520})  # too low for all candidates
    page.locator("#candidates button").last.scroll_into_view_if_needed()
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert page.evaluate("scrollY") > 0
    page.locator("#candidates button").last.tap()
    page.wait_for_function("path => document.querySelector('#path').textContent !== path", arg=path)
    assert page.evaluate("scrollY") == 0
    toast, undo = (page.locator(name).bounding_box() for name in ("#toast.shown", "[data-action=undo] >> visible=true"))
    assert toast["y"] + toast["height"] < undo["y"]
    page.tap("#actions [data-action=undo]")
    wait_for_text(page, "#path", path)
    page.set_viewport_size({"width": 844, "height": 390})
    is_uncovered = """button => {
      button.scrollIntoView({ block: "end" });
      const { x, y, width, height } = button.getBoundingClientRect();
      return button.contains(document.elementFromPoint(x + width / 2, y + height / 2));
    }"""
    assert page.locator("#candidates button").first.evaluate(is_uncovered)
    page.set_viewport_size({"width": 390, "height": 844})
    page.evaluate("scrollTo(0, 0)")


def test_nine_candidates_are_in_view(chromium: Browser, own_run: Path) -> None:
    names = [f"Papilana ocellicaudata {number}" for number in range(9)]

    def with_nine(route: Route) -> None:
        response = route.fetch()
        image = response.json()
        image["candidates"] = [{**image["candidates"][0], "name": name} for name in names]
        route.fulfill(response=response, json=image)

    with serving(own_run) as server:
        context = chromium.new_context(viewport={"width": 1280, "height": 800})
        context.route("**/api/image/*", with_nine)
        page = open_window(context, server.url, "Ada")
        for width, height in ((1280, 800), (1366, 640), (1024, 768), (820, 1180)):
            page.set_viewport_size({"width": width, "height": height})
            for button in page.locator("#candidates button, #actions button").all():
                box = button.bounding_box()
                assert box is not None
                assert box["height"] >= 36
                assert box["y"] + box["height"] <= height, f"in view at {width} x {height}"
                inside = "button => button.scrollWidth <= button.clientWidth"
                assert button.evaluate(inside), f"{button.inner_text()} fits at {width}"
            longest = page.locator("#candidates .name").first
            assert longest.evaluate("name => name.scrollWidth <= name.clientWidth"), "every word fits its line"
            assert longest.bounding_box()["height"] < 45, "at most two lines"

        names[0] = "Taumatawhakatangihangakoauauotamateaturipukakapikimaungahoronuku"
        page.reload()
        for width, height in ((1366, 640), (1280, 800)):
            page.set_viewport_size({"width": width, "height": height})
            wait_for_text(page, "#candidates", names[0])
            examples = page.locator("#candidates .examples").first.bounding_box()
            longest = page.locator("#candidates .name").first
            assert longest.evaluate("name => name.scrollWidth <= name.clientWidth"), "a long word is broken"
            assert longest.bounding_box()["x"] + longest.bounding_box()["width"] <= examples["x"]


def zoomed_box(page: Page) -> dict[str, float]:
    """Returns the bounding box of the enlarged photo, including empty margins."""
    shape = "p => { const { x, y, width, height } = p.getBoundingClientRect(); return { x, y, width, height }; }"
    return dict(page.locator("#zoom-dialog img").evaluate(shape))
