"""The grid of the studio: select tiles, name them with one key, scroll through 100,000 photos."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from semifine.data.label_log import read_events
from tests.browser.fake_studio import FakeStudio, live_state, serving_fake
from tests.browser.studio_pages import open_page, serving, wait_for_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def studio() -> FakeStudio:
    return FakeStudio(600)


@pytest.fixture
def page(chromium: Browser, studio: FakeStudio) -> Iterator[Page]:
    with serving_fake(studio) as url:
        opened = open_page(chromium, url, "Ada")
        open_grid(opened)
        yield opened
        opened.context.close()


def open_grid(page: Page, query: str = "") -> None:
    page.evaluate("query => { location.hash = '#grid' + query; }", query)
    page.wait_for_selector(".tile img.loaded")


def tile(number: int) -> str:
    return f"#tile-{number}"


def selected(page: Page) -> list[int]:
    numbers = page.locator(".tile[aria-selected=true]").evaluate_all("tiles => tiles.map(t => Number(t.id.slice(5)))")
    return sorted(numbers)


def wait_for_selected(page: Page, expected: list[int]) -> None:
    """Waits, because the grid draws in the next frame."""
    page.wait_for_function(
        "expected => JSON.stringify([...document.querySelectorAll('.tile[aria-selected=true]')]"
        ".map(t => Number(t.id.slice(5))).sort((a, b) => a - b)) === JSON.stringify(expected)",
        arg=expected,
    )


def columns(page: Page) -> int:
    tops = page.locator(".tile:visible").evaluate_all(
        "tiles => tiles.map(t => Math.round(t.getBoundingClientRect().top))"
    )
    return tops.count(min(tops))


def test_mouse_selects_and_one_key_names(page: Page, studio: FakeStudio) -> None:
    page.click(tile(2))
    wait_for_selected(page, [2])
    page.click(tile(5), modifiers=["Shift"])
    wait_for_selected(page, [2, 3, 4, 5])
    page.click(tile(3), modifiers=["Control"])
    page.click(tile(9), modifiers=["Control"])
    wait_for_selected(page, [2, 4, 5, 9])
    page.click(tile(7))
    wait_for_selected(page, [7])
    page.click(tile(0))
    page.click(tile(1), modifiers=["Control"])
    wait_for_text(page, "#grid-selected", "2 photos selected")
    name = page.locator("#grid-names .name").nth(1).inner_text()
    page.keyboard.press("2")
    wait_for_text(page, "#toast.shown", f"{name}: 2 photos")
    assert {index: label["label"] for index, label in studio.labels.items()} == {0: name, 1: name}
    wait_for_text(page, "#grid-total", "598 photos")
    page.wait_for_function("() => document.querySelector('#tile-0').ariaLabel.endsWith('000002.jpg')")

    page.keyboard.press("Backspace")
    wait_for_text(page, "#toast.shown", "Undone for 2 photos")
    wait_for_text(page, "#grid-total", "600 photos")
    assert studio.labels == {}


def test_drag_selects_a_rectangle(page: Page) -> None:
    count = columns(page)
    first, last = (page.locator(tile(n)).bounding_box() for n in (0, count + 1))
    assert first is not None
    assert last is not None
    page.mouse.move(first["x"] + 20, first["y"] + 20)
    page.mouse.down()
    page.mouse.move(first["x"] + 60, first["y"] + 60)
    page.mouse.move(last["x"] + 30, last["y"] + 30, steps=4)
    wait_for_selected(page, [0, 1, count, count + 1])
    page.mouse.up()
    page.wait_for_selector(".rubber", state="detached")
    assert selected(page) == [0, 1, count, count + 1]


def test_keyboard_moves_selects_and_names(page: Page, studio: FakeStudio) -> None:
    count = columns(page)
    for key in ("ArrowRight", "Space", "ArrowDown", "Space"):
        page.keyboard.press(key)
    wait_for_selected(page, [1, count + 1])
    assert page.get_attribute("#grid-scroll", "aria-activedescendant") == f"tile-{count + 1}"
    page.keyboard.press("Shift+ArrowRight")
    page.keyboard.press("Shift+ArrowRight")
    wait_for_selected(page, [count + 1, count + 2, count + 3])
    page.keyboard.press("Escape")
    wait_for_selected(page, [])
    page.keyboard.press("Home")
    page.keyboard.press("End")
    page.wait_for_selector(tile(599))
    page.keyboard.press("Home")
    page.wait_for_selector(tile(0))
    page.keyboard.press("Enter")
    wait_for_text(page, "#toast.shown", "1 photo")
    assert list(studio.labels) == [0]
    page.keyboard.press("Control+a")
    page.wait_for_function("() => document.querySelectorAll('.tile[aria-selected=true]').length > 10")
    page.keyboard.press("u")
    wait_for_text(page, "#toast.shown", "unsure")
    assert len(studio.labels) > 10


def test_confirm_names_the_rest_in_view(page: Page, studio: FakeStudio) -> None:
    """The selected tiles stay selected, tiles out of view stay as they are."""
    open_grid(page, "?class=Wren")
    wait_for_text(page, "#grid-total", "100 photos")
    page.click(tile(1))
    page.click(tile(2), modifiers=["Control"])
    text = page.locator("#grid [data-action=confirm]").inner_text()
    count = int(text.split()[-1])
    page.keyboard.press("c")
    wait_for_text(page, "#toast.shown", f"Wren: {count} photos")
    assert {label["label"] for label in studio.labels.values()} == {"Wren"}
    assert len(studio.labels) == count
    assert not {7, 13} & studio.labels.keys(), "the second and third Wren were selected"
    assert count < 50, "only what is in view"
    wait_for_selected(page, [0, 1])
    page.keyboard.press("/")
    page.keyboard.type("Nuthatch")
    wait_for_text(page, "#class-list .new", "Create class Nuthatch")
    page.keyboard.press("Enter")
    wait_for_text(page, "#toast.shown", "Nuthatch: 2 photos")
    assert [studio.labels[index]["label"] for index in (7, 13)] == ["Nuthatch", "Nuthatch"]
    assert studio.classes[-1]["name"] == "Nuthatch"


def test_labeled_photos_are_replaced_only_on_request(page: Page, studio: FakeStudio) -> None:
    studio.answer({"person": "Bo", "kind": "label", "class": "Linnet", "images": [{"id": 0, "seen": 0}]})
    wait_for_text(page, "#tile-0 .chip", "Linnet")  # arrives with the next poll
    page.click(tile(0))
    page.click(tile(1), modifiers=["Control"])
    page.keyboard.press("1")
    wait_for_text(page, "#labeled-dialog[open] p", "1 of 2 photos has another answer.")
    page.keyboard.press("Enter")  # leaves it
    wait_for_text(page, "#toast.shown", "1 photo")
    assert [studio.labels[index]["label"] for index in (0, 1)] == ["Linnet", "Robin"]


def test_outliers_and_neighbors(page: Page) -> None:
    assert page.locator(".tile.outlier").count() > 0
    assert "outlier" in page.locator(".tile.outlier").first.get_attribute("aria-label")
    page.keyboard.press("o")
    page.wait_for_function("() => location.hash === '#grid?order=outliers'")
    page.wait_for_function("() => document.querySelector('#tile-0').classList.contains('outlier')")
    page.keyboard.press("o")
    page.wait_for_function("() => location.hash === '#grid'")
    page.wait_for_function("() => document.querySelector('#tile-3')?.ariaLabel.endsWith('000003.jpg')")
    page.click(tile(3))
    page.keyboard.press("l")
    wait_for_text(page, "#grid-like", "look like photos/000003.jpg")
    wait_for_text(page, "#grid-total", "30 photos")
    page.reload()
    wait_for_text(page, "#grid-like", "look like photos/000003.jpg")
    page.go_back()
    wait_for_text(page, "#grid-total", "600 photos")
    assert page.is_hidden("#grid-like")


def test_filters_stand_in_the_address(page: Page) -> None:
    """They survive a reload and the back button, on the grid and on the label page."""
    page.select_option("#grid-filters [name=class]", "Siskin")
    wait_for_text(page, "#grid-total", "100 photos")
    page.fill("#grid-filters [name=text]", "00001")
    page.keyboard.press("Enter")
    page.wait_for_function("() => location.hash === '#grid?class=Siskin&text=00001'")
    wait_for_text(page, "#grid-total", "2 photos")
    page.reload()
    wait_for_text(page, "#grid-total", "2 photos")
    assert page.input_value("#grid-filters [name=class]") == "Siskin"
    page.go_back()
    wait_for_text(page, "#grid-total", "100 photos")
    assert page.input_value("#grid-filters [name=text]") == ""
    page.click("nav [data-page=label]")
    page.select_option("#filters [name=class]", "Wren")
    wait_for_text(page, "#total", "100 images")
    page.click("nav [data-page=grid]")
    wait_for_text(page, "#grid-total", "100 photos")
    page.click("nav [data-page=label]")
    wait_for_text(page, "#total", "100 images")
    page.reload()
    wait_for_text(page, "#total", "100 images")
    page.fill("#filters [name=text]", "zzzz")
    page.keyboard.press("Enter")
    page.wait_for_selector("#empty:not([hidden])")
    page.go_back()
    wait_for_text(page, "#total", "100 images")


def test_a_new_model_keeps_the_tiles_in_view(page: Page, studio: FakeStudio) -> None:
    before = page.locator("#tile-0").get_attribute("aria-label")
    studio.live = live_state(2, 10)
    wait_for_text(page, "#live", "estimated accuracy 52")
    page.evaluate("document.querySelector('#grid-scroll').scrollTop = 1e6")
    page.wait_for_selector("#tile-599 img.loaded")
    page.evaluate("document.querySelector('#grid-scroll').scrollTop = 0")
    page.wait_for_selector("#tile-0 img.loaded")
    assert page.locator("#tile-0").get_attribute("aria-label") == before


def test_one_hundred_thousand_photos(chromium: Browser) -> None:
    """Only tiles near the window are in the page, only their parts of the list are requested, and few photos load."""
    studio = FakeStudio(100_000)
    with serving_fake(studio) as url:
        page = open_page(chromium, url, "Ada")
        open_grid(page)
        wait_for_text(page, "#grid-total", "100000 photos")
        page.evaluate("document.querySelector('#grid-scroll').scrollTop = 1e9")
        page.wait_for_selector("#tile-99999 img.loaded")
        assert page.locator(".tile:visible").count() < 150
        assert page.get_attribute("#tile-99999", "aria-posinset") == "100000"
        asked = [request for request in studio.requests if request.startswith("grid?")]
        assert len(asked) < 8, "not every page in between"

        for step in range(20):
            page.evaluate("step => { document.querySelector('#grid-scroll').scrollTop = 20000 * step; }", step)
        pending = "() => import(new URL('static/photo_loader.js', location)).then((m) => m.pendingPhotos())"
        assert page.evaluate(pending) < 150, "photos of tiles that were scrolled away no longer wait"
        page.wait_for_function("() => document.querySelectorAll('.tile:not([hidden]) img:not(.loaded)').length === 0")
        page.context.close()


def test_the_grid_and_the_review_of_a_run(chromium: Browser, own_run: Path) -> None:
    """With the real server: answers of the grid are events of the log, and the review page lists them."""
    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        open_grid(page)
        page.click(tile(0))
        page.click(tile(2), modifiers=["Shift"])
        wait_for_text(page, "#grid-selected", "3 photos selected")
        name = page.locator("#grid-names .name").first.inner_text()
        page.keyboard.press("1")
        wait_for_text(page, "#toast.shown", f"{name}: 3 photos")
        events = read_events(own_run.with_name("birds.studio.db"))
        assert [(event.kind, event.class_name) for event in events] == [("label", name)] * 3
        page.keyboard.press("Home")
        page.keyboard.press("l")
        wait_for_text(page, "#grid-like", "Photos that look like synthetic/")
        page.wait_for_selector(".tile img.loaded")
        page.evaluate("location.hash = '#review'")
        page.wait_for_function("() => document.querySelectorAll('#log tbody tr').length === 3")
        wait_for_text(page, "#log tbody", name)
        page.context.close()
