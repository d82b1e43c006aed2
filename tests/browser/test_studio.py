"""A whole session in a browser: label, undo, resolve a conflict, reload, restart, export, train."""

from __future__ import annotations

import csv
import json
import signal
import socket
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest

from semifine.config import read_settings_file, resolve
from semifine.data.label_log import agreed_labels, current_labels, read_events
from semifine.data.sources import load_catalog
from tests.browser.studio_pages import (
    Server,
    answer_by_search,
    open_page,
    open_window,
    serving,
    show_only,
    wait_for_text,
)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def truth(run: Path) -> dict[str, str]:
    """The true class of each image, which a person would see. The studio does not read it."""
    settings = resolve([read_settings_file(run / "settings.yaml")])
    catalog = load_catalog(settings.data, settings.data_settings)
    return {str(path): catalog.class_names[label] for path, label in zip(catalog.paths, catalog.truth, strict=True)}


def shown_path(page: Page) -> str:
    return page.inner_text("#path")


def answer(page: Page, name: str) -> None:
    """Answers by keyboard: by the number of the candidate, or by search if it is not a candidate."""
    names = page.locator("#candidates .name").all_inner_texts()
    before = shown_path(page)
    if name in names:
        page.keyboard.press(str(names.index(name) + 1))
    else:
        page.keyboard.press("/")
        page.keyboard.type(name)
        page.keyboard.press("Enter")
    page.wait_for_function("before => document.querySelector('#path').textContent !== before", arg=before)


def read_agreed_labels(log: Path) -> dict[str, str]:
    return dict(agreed_labels(current_labels(read_events(log))))


def test_a_whole_session(chromium: Browser, run: Path, truth: dict[str, str], tmp_path: Path) -> None:
    log = run.with_name("birds.studio.db")
    given: dict[str, str] = {}
    with serving(run) as server:
        page = open_page(chromium, server.url, "Ada")
        for _ in range(20):
            path = shown_path(page)
            answer(page, truth[path])
            given[path] = truth[path]
        assert read_agreed_labels(log) == given, "each label is saved before the next image is shown"

        page.keyboard.press("Backspace")
        wait_for_text(page, "#path", path)
        assert len(read_agreed_labels(log)) == 19
        answer(page, truth[path])
        assert read_agreed_labels(log) == given

        _other_answers(page, log)
        _answer_for_look_alikes(page, server.url, log)
        assert read_agreed_labels(log) == given, "all these answers were undone"

        disputed, label = _create_and_resolve_conflict(chromium, server, page, truth)
        given[disputed] = label
        assert read_agreed_labels(log) == given

        page.reload()
        page.wait_for_selector("#candidates button")
        wait_for_text(page, "#counts", "21 labeled")
        assert page.inner_text("#person") == "Ada"
        _check_no_other_file_is_served(server.url)
        _check_layout_at_all_widths(page)
        server.stop(signal.SIGKILL)
    assert read_agreed_labels(log) == given, "a killed server loses no label"

    with serving(run) as server:
        page.goto(server.url)
        page.fill("#name-dialog input", "Ada")  # the name is stored for the previous port
        page.keyboard.press("Enter")
        wait_for_text(page, "#counts", "21 labeled")
        page.click("nav a[href='#train']")
        with page.expect_download() as download:
            page.click("#train a[download]")
        download.value.save_as(tmp_path / "labels.csv")
        rows = list(csv.DictReader((tmp_path / "labels.csv").open(encoding="utf-8")))
        assert {row["path"]: row["label"] for row in rows} == given

        page.fill("#train-form [name=iterations]", "60")
        page.click("#train-form button")
        page.wait_for_selector("#outcome", timeout=120_000)
        before, after = (
            json.loads((folder / "result.json").read_text()) for folder in (run, run.with_name("birds-studio-1"))
        )
        assert after["images"]["labeled"] == before["images"]["labeled"] + 21
        assert after["top1"] > before["top1"]
        assert page.inner_text("#after b") == f"{after['top1']:.1f} %"
        assert f"{before['top1']:.1f} %" in page.inner_text(".compare")

        page.click("#switch")
        wait_for_text(page, "#run", "birds-studio-1")
        wait_for_text(page, "#counts", "21 labeled")
        page.wait_for_selector("#label:not([hidden])")
        assert shown_path(page) not in given
        page.click("nav a[href='#train']")
        wait_for_text(page, "#outcome", "The studio uses this model.")
        assert server.stop(signal.SIGINT) == 0


def test_two_windows_of_one_browser_keep_their_names(chromium: Browser, own_run: Path) -> None:
    with serving(own_run) as server:
        context = chromium.new_context()
        ada = open_window(context, server.url, "Ada")
        bo = open_window(context, server.url, "Bo")
        assert (ada.inner_text("#person"), bo.inner_text("#person")) == ("Ada", "Bo")
        for page in (ada, bo):
            page.keyboard.press("s")
            wait_for_text(page, "#toast.shown", "skip")
        ada.reload()
        ada.wait_for_selector("#candidates button")
        assert ada.inner_text("#person") == "Ada"
    assert [event.person for event in read_events(own_run.with_name("birds.studio.db"))] == ["Ada", "Bo"]


def test_replacing_an_answer_asks_and_notifies(chromium: Browser, own_run: Path) -> None:
    """Bo must choose how to treat Ada's answer, and Ada sees a notice."""
    log = own_run.with_name("birds.studio.db")
    with serving(own_run) as server:
        ada, bo = (open_page(chromium, server.url, name) for name in ("Ada", "Bo"))
        disputed = shown_path(bo)
        names = bo.locator("#candidates .name").all_inner_texts()
        answer(ada, names[0])
        bo.wait_for_selector("#banner.answered")

        bo.keyboard.press("2")
        wait_for_text(bo, "#replace-dialog[open] p", f"Ada answered {names[0]}")
        bo.keyboard.press("3")  # a fast key press, which the dialog ignores
        bo.keyboard.press("Escape")
        bo.wait_for_selector("#replace-dialog:not([open])", state="attached")
        assert read_agreed_labels(log) == {disputed: names[0]}, "nothing is saved"
        assert shown_path(bo) == disputed

        bo.keyboard.press("2")
        bo.wait_for_selector("#replace-dialog[open]")
        bo.keyboard.press("Enter")
        wait_for_text(bo, "#toast.shown", "1 in conflict")
        assert read_agreed_labels(log) == {}
        wait_for_text(ada, "#notices", f"Conflict: Bo answered {names[1]}, you answered {names[0]}")
        ada.click("#notices button >> text=Show")
        wait_for_text(ada, "#banner.conflict", f"Bo answered {names[1]}")
        answer_by_search(ada, names[1])  # agrees with Bo, so no dialog opens
        wait_for_text(ada, "#toast.shown", names[1])
        assert read_agreed_labels(log) == {disputed: names[1]}

        third = shown_path(bo)
        assert third != disputed
        names = bo.locator("#candidates .name").all_inner_texts()
        show_only(ada, third)
        answer_by_search(ada, names[0])
        bo.wait_for_selector("#banner.answered")
        answer_by_search(bo, names[1])
        bo.wait_for_selector("#replace-dialog[open]")
        bo.keyboard.press("r")
        wait_for_text(ada, "#notices", f"Bo replaced your answer {names[0]} with {names[1]}")
        assert read_agreed_labels(log)[third] == names[1]
        ada.click("#notices [aria-label=Dismiss]")
        assert ada.inner_text("#notices") == ""


def _other_answers(page: Page, log: Path) -> None:
    """Skip, unsure and none of these with undo; zoom and help open and close by key."""
    for key, kind in (("s", "skip"), ("u", "unsure"), ("0", "none_of_these")):
        path = shown_path(page)
        page.keyboard.press(key)
        wait_for_text(page, "#toast.shown", kind.replace("_", " "))
        last = read_events(log)[-1]
        assert (last.kind, last.path, last.person) == (kind, path, "Ada")
        page.keyboard.press("Backspace")
        wait_for_text(page, "#toast.shown", "Undone")
        wait_for_text(page, "#path", path)
    page.keyboard.press("z")
    page.wait_for_selector("#zoom-dialog[open]")
    page.keyboard.press("z")
    page.wait_for_selector("#zoom-dialog:not([open])", state="attached")
    page.keyboard.press("h")
    page.wait_for_selector("#help-dialog[open]")
    page.keyboard.press("Escape")
    page.wait_for_selector("#help-dialog:not([open])", state="attached")


def _answer_for_look_alikes(page: Page, url: str, log: Path) -> None:
    """One key labels an image and its look-alikes; one key undoes all of it."""
    images = (json.load(urlopen(f"{url}api/image/{index}")) for index in range(60))
    image = next(image for image in images if image["look_alikes"] and image["state"] == "waiting")
    page.fill("#filters [name=text]", image["path"])
    page.keyboard.press("Enter")
    wait_for_text(page, "#path", image["path"])
    before = len(read_events(log))
    page.keyboard.press("a")
    page.keyboard.press("1")
    wait_for_text(page, "#toast.shown", f"for {len(image['look_alikes']) + 1} images")
    main, *others = read_events(log)[before:]
    assert main.path == image["path"]
    assert [other.shown["accepted_with"] for other in others] == [main.path] * len(image["look_alikes"])
    page.keyboard.press("Backspace")
    wait_for_text(page, "#toast.shown", "Undone")
    page.fill("#filters [name=text]", "")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "path => document.querySelector('#path').textContent !== path && !document.querySelector('#image-view').hidden",
        arg=image["path"],
    )


def _create_and_resolve_conflict(browser: Browser, server: Server, ada: Page, truth: dict[str, str]) -> tuple[str, str]:
    """Two people give different answers at once. Both see the conflict, and one resolves it."""
    bo = open_page(browser, server.url, "Bo", polls=False)
    disputed = shown_path(ada)
    assert shown_path(bo) == disputed
    names = ada.locator("#candidates .name").all_inner_texts()
    answer(ada, names[0])
    bo.keyboard.press("2")
    bo.wait_for_selector("#banner.conflict")
    assert "Ada" in bo.inner_text("#banner")
    assert shown_path(bo) == disputed, "the page stays on the image"
    ada.click(".conflicts")
    ada.wait_for_selector("#banner.conflict")
    assert shown_path(ada) == disputed
    assert f"Ada answered {names[0]}" in ada.inner_text("#banner")
    assert f"Bo answered {names[1]}" in ada.inner_text("#banner")
    ada.keyboard.press("/")
    ada.keyboard.type(truth[disputed])
    ada.keyboard.press("Enter")
    if truth[disputed] != names[1]:
        wait_for_text(ada, "#replace-dialog[open] p", f"Bo answered {names[1]}")
        ada.keyboard.press("r")
    ada.wait_for_selector("#empty:not([hidden])")
    ada.wait_for_selector(".conflicts", state="detached")
    ada.select_option("#filters [name=state]", "waiting")
    ada.wait_for_selector("#candidates button")
    bo.context.close()
    return disputed, truth[disputed]


def _check_no_other_file_is_served(address: str) -> None:
    """Sends paths that a browser would normalize, through a plain socket."""
    url = urlsplit(address)
    for path in ("../../../../../../etc/passwd", "static/../../../../../../etc/passwd", "photo/../../settings.yaml"):
        with socket.create_connection((url.hostname, url.port)) as connection:
            request = f"GET {url.path}{path} HTTP/1.1\r\nHost: {url.netloc}\r\nConnection: close\r\n\r\n"
            connection.sendall(request.encode())
            reply = b"".join(iter(lambda: connection.recv(4096), b""))
        assert reply.startswith((b"HTTP/1.1 404", b"HTTP/1.1 403")), path
        assert b"root:" not in reply


def _check_layout_at_all_widths(page: Page) -> None:
    """Nothing overflows horizontally, and candidates are large enough to tap."""
    for width in (390, 820, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        for part in ("overview", "train", "label"):
            page.click(f"nav a[href='#{part}']")
            page.wait_for_selector(f"#{part}:not([hidden]) > *")
            assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{part} at {width}"
            if part == "overview":
                _check_map_is_readable(page)
        box = page.locator("#candidates button").first.bounding_box()
        assert box is not None
        assert box["height"] >= 44


def _check_map_is_readable(page: Page) -> None:
    """No name overlaps a dot or another name, and the font is large enough."""
    page.wait_for_selector("#map text")
    # One call for all boxes, because the map may be redrawn in between.
    boxes = "items => items.map(item => item.getBoundingClientRect().toJSON())"
    names, dots = (page.locator(f"#map {tag}").evaluate_all(boxes) for tag in ("text", "circle"))
    assert len(names) == len(dots) == 6
    assert min(name["height"] for name in names) >= 11
    for number, name in enumerate(names):
        for other in [*names[:number], *dots]:
            aside = abs(name["x"] + name["width"] / 2 - other["x"] - other["width"] / 2)
            above = abs(name["y"] + name["height"] / 2 - other["y"] - other["height"] / 2)
            # Letters fill half of the height of a line.
            assert aside > (name["width"] + other["width"]) / 2 - 4 or above > (name["height"] + other["height"]) / 4
