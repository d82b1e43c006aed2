"""Names of people, keyboard layouts and focus, class search, and the training form."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from semifine.data.label_log import Event, LabelLog, agreed_labels, current_labels, read_events
from tests.browser.studio_pages import answer_by_search, open_page, serving, show_only, wait_for_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow

PERSIAN = "علی\u200cرضا"  # noqa: RUF001


# The dots are close together.
TWENTY_NAMES = """async () => {
  const { placeNames } = await import(new URL("static/map_layout.js", location).href);
  const at = (i) => ({ x: 570 + 30 * (i % 3), y: 280 + 30 * Math.floor(i / 3), r: 8, width: 120, priority: i });
  const dots = Array.from({ length: 20 }, (_, i) => at(i));
  return placeNames(dots, [], { width: 1200, height: 560, lineHeight: 15 }).filter(Boolean).length;
}"""


def test_names(chromium: Browser, own_run: Path) -> None:
    """Two windows with one name replace no unseen answer; names are validated; Esc keeps the name."""
    log = own_run.with_name("birds.studio.db")
    with serving(own_run) as server:
        first = open_page(chromium, server.url, "Sam")
        second = open_page(chromium, server.url, "Sam", polls=False)
        path = first.inner_text("#path")
        names = first.locator("#candidates .name").all_inner_texts()
        first.keyboard.press("1")
        wait_for_text(first, "#toast.shown", names[0])
        second.keyboard.press("2")
        wait_for_text(second, "#toast.error.shown", f"Not saved. Sam answered '{names[0]}'")
        wait_for_text(second, "#banner.answered", f"Sam answered {names[0]}")
        assert dict(agreed_labels(current_labels(read_events(log)))) == {path: names[0]}
        second.keyboard.press("2")
        wait_for_text(second, "#toast.shown", names[1])
        assert dict(agreed_labels(current_labels(read_events(log)))) == {path: names[1]}

        _rename(first, "Bo", "Escape")
        first.wait_for_selector("#name-dialog:not([open])", state="attached")
        assert first.inner_text("#person") == "Sam"
        _rename(first, "a\u202eb", "Enter")
        wait_for_text(first, "#name-dialog[open] .failed", "A name must have 1 to 40 visible characters")
        first.fill("#name-dialog input", PERSIAN)
        with first.expect_response("**/api/image/*"):  # the queue depends on the person
            first.keyboard.press("Enter")
        wait_for_text(first, "#person", PERSIAN)
        first.wait_for_timeout(200)
        first.keyboard.press("u")
        wait_for_text(first, "#toast.shown", "unsure")
        assert read_events(log)[-1].person == PERSIAN


def _rename(page: Page, name: str, key: str) -> None:
    page.click("#person")
    page.fill("#name-dialog[open] input", name)
    page.keyboard.press(key)


def test_keys_and_focus(chromium: Browser, own_run: Path) -> None:
    """Digits without Shift on a French keyboard, letters on a Russian one; the focus stays on its element."""
    log = own_run.with_name("birds.studio.db")
    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        press = (
            "([key, code]) => document.body.dispatchEvent(new KeyboardEvent('keydown', { key, code, bubbles: true }))"
        )
        for letter, code, kind in (
            ("&", "Digit1", "label"),
            ("à", "Digit0", "none_of_these"),
            ("\u0433", "KeyU", "unsure"),
        ):
            with page.expect_response("**/api/answer"):
                page.evaluate(press, [letter, code])
            assert read_events(log)[-1].kind == kind
            page.wait_for_timeout(200)

        before = page.inner_text("#path")
        page.locator("#candidates button").nth(1).focus()
        page.keyboard.press("Enter")
        page.wait_for_function("before => document.querySelector('#path').textContent !== before", arg=before)
        assert page.evaluate("document.activeElement.querySelector('kbd')?.textContent") == "2"

        bo = open_page(chromium, server.url, "Bo", polls=False)
        show_only(bo, page.inner_text("#path"))
        names = page.locator("#candidates .name").all_inner_texts()
        page.keyboard.press("1")
        wait_for_text(page, "#counts", "3 labeled")
        page.click("nav a[href='#overview']")
        wait_for_text(page, ".tiles", "3labeled by people")
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        page.locator("#overview .class").nth(-2).focus()
        page.keyboard.press("Tab")
        top = "document.activeElement.getBoundingClientRect().y"
        scrolled = page.evaluate(top)
        answer_by_search(bo, names[1])  # before his page shows Ada's answer
        page.wait_for_selector(".conflicts")
        wait_for_text(page, ".tiles", "1in conflict")
        assert page.evaluate("scrollY") > 0
        assert page.evaluate(top) == pytest.approx(scrolled, abs=2)
        assert page.evaluate("document.activeElement.className") == "class"
        page.focus(".conflicts")
        with page.expect_response("**/api/changes*"):
            pass
        page.wait_for_timeout(100)
        assert page.evaluate("document.activeElement.className") == "conflicts"


def test_the_overview_counts_a_conflict_that_its_first_request_missed(chromium: Browser, own_run: Path) -> None:
    """A request for the overview can fail, or be answered before another person's label arrives."""
    log = LabelLog(own_run.with_name("birds.studio.db"))
    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        path, names = page.inner_text("#path"), page.locator("#candidates .name").all_inner_texts()
        page.keyboard.press("1")
        page.click("nav a[href='#overview']")
        wait_for_text(page, ".tiles", "1labeled by people")
        page.route("**/api/overview*", lambda route: route.abort(), times=1)
        log.append([Event("Bo", path, "label", names[1])])
        wait_for_text(page, "#notices", "Conflict: Bo answered")
        wait_for_text(page, ".tiles", "1in conflict")
        log.append([Event("Bo", path, "unsure")])
        wait_for_text(page, ".tiles", "0in conflict")
        page.wait_for_selector("#notices li", state="detached")
    log.close()


def test_class_search(chromium: Browser, own_run: Path) -> None:
    names = [
        *(f"Papilio {number}" for number in range(299)),
        "Z\u0307o\u0301łtodziobek",
    ]  # decomposed, as in file names on macOS

    def with_many_classes(route: Route) -> None:
        response = route.fetch()
        overview = response.json()
        overview["classes"] = [{**overview["classes"][0], "name": name} for name in names]
        route.fulfill(response=response, json=overview)

    with serving(own_run) as server:
        page = chromium.new_page()
        page.route("**/api/overview*", with_many_classes)
        page.goto(server.url)
        page.fill("#name-dialog input", "Ada")
        page.keyboard.press("Enter")
        page.wait_for_selector("#candidates button")
        page.keyboard.press("/")
        wait_for_text(page, "#class-rest", "250 more classes. Type to narrow the list.")
        options = page.get_by_role("listbox").get_by_role("option")
        assert options.count() == 50
        page.keyboard.press("ArrowDown")
        box = page.get_by_role("combobox", name="Part of the class name")
        assert box.get_attribute("aria-activedescendant") == options.nth(1).get_attribute("id")
        assert options.nth(1).get_attribute("aria-selected") == "true"
        for typed in ("zolto", "ŻÓŁTO"):
            box.fill(typed)
            assert options.all_inner_texts() == [names[-1], f"Create class {typed}"]
        box.fill("dodo")
        wait_for_text(page, "#class-rest", "No matching class.")

        placed = page.evaluate(TWENTY_NAMES)
        assert placed == 20, "there is space for all names"


def test_train_page(chromium: Browser, own_run: Path) -> None:
    """Updates keep the form and the focus, and show the state of the training."""
    faked: dict[str, Any] = {"labeled": 0, "training": {"state": "none"}}
    running = {"state": "running", "run": "birds-studio-1", "step": 0, "iterations": None, "evaluations": []}

    def with_faked_status(route: Route) -> None:
        response = route.fetch()
        changes = response.json()
        changes["counts"]["labeled"] = faked["labeled"]
        route.fulfill(response=response, json={**changes, "training": faked["training"]})

    with serving(own_run) as server:
        page = open_page(chromium, server.url, "Ada")
        page.route("**/api/changes*", with_faked_status)
        page.click("nav a[href='#train']")
        wait_for_text(page, "#train-hint", "Label some images first.")
        assert page.is_disabled("#train-form button")
        page.uncheck("#train-form [name=from_weights]")
        page.fill("#train-form [name=iterations]", "77")
        faked["labeled"] = 2
        wait_for_text(page, "#new-labels", "2 labels will be added to the training set")
        assert page.is_enabled("#train-form button")
        assert page.input_value("#train-form [name=iterations]") == "77"
        assert not page.is_checked("#train-form [name=from_weights]")
        assert page.evaluate("document.activeElement.name") == "iterations"

        faked["training"] = running
        wait_for_text(page, "#progress p", "Starting birds-studio-1 …")
        assert page.get_attribute("#progress progress", "value") is None
        page.focus("#stop")
        faked["training"] = {**running, "step": 20, "iterations": 77}
        wait_for_text(page, "#progress p", "step 20 of 77")
        assert page.get_attribute("#progress progress", "value") == "20"
        assert page.evaluate("document.activeElement.id") == "stop"

        page.route("**/api/stop", lambda route: route.abort())
        page.click("#stop")
        wait_for_text(page, "#toast.error.shown", "does not respond")
        wait_for_text(page, "#stop:enabled", "Stop")
        page.unroute("**/api/stop")

        faked["training"] = {**running, "state": "finished", "before": None, "after": None}
        page.click("#switch")  # the server has no finished training
        wait_for_text(page, "#toast.error.shown", "no finished training")
        wait_for_text(page, "#switch:enabled", "Use the new model")
        faked["training"] = {**faked["training"], "run": "birds"}
        wait_for_text(page, "#outcome", "The studio uses this model.")
