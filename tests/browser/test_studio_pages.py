"""The pages of the studio beside the grid: live model, classes, review, training, phones, and accessibility."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.fake_studio import NAMES, FakeStudio, live_state, serving_fake
from tests.browser.studio_pages import open_page, wait_for_text

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow

PAGES = ("label", "grid", "overview", "classes", "review", "train")
TAXONOMY = {
    "name": "birds",
    "children": [
        {
            "name": "Finches",
            "children": [
                {"name": "Linnet", "class": 3, "children": []},
                {"name": "Siskin", "class": 4, "children": []},
            ],
        },
        {"name": "Robin", "class": 0, "children": []},
    ],
}
FINISHED = {
    "state": "finished",
    "run": "birds-studio-1",
    "estimate": {"step_seconds": 0.5, "iterations": 600},
    "before": {"split": "test", "top1": 53.3, "images": 15, "low": 30.1, "high": 75.2, "text": "53.3 % (15 images)"},
    "after": {"split": "test", "top1": 60.0, "images": 15, "low": 35.7, "high": 80.2, "text": "60.0 % (15 images)"},
    "difference": "+6.7 points, within the 95 % margin of chance (±35.1)",
    "evaluations": [
        {"step": step, "split": "test", "top1": top1, "images": 15, "low": top1 - 20, "high": top1 + 20}
        for step, top1 in ((100, 40.0), (200, 53.3), (300, 60.0))
    ],
}


@contextmanager
def opened(browser: Browser, studio: FakeStudio) -> Iterator[Page]:
    with serving_fake(studio) as url:
        page = open_page(browser, url, "Ada")
        yield page
        page.context.close()


def show(page: Page, name: str) -> None:
    page.evaluate("name => { location.hash = '#' + name; }", name)
    page.wait_for_selector(f"#{name}:not([hidden])")


def name_first(studio: FakeStudio, person: str, name: str, index: int) -> None:
    studio.answer({"person": person, "kind": "label", "class": name, "images": [{"id": index, "seen": 0}]})


def test_the_page_follows_the_live_model(chromium: Browser) -> None:
    """The line and its chart appear; the queue loads again, except for the photo on the screen."""
    studio = FakeStudio(100)
    with opened(chromium, studio) as page:
        wait_for_text(page, "#live", "learns as you label")
        studio.live = live_state(1, 0, fitting=True)
        wait_for_text(page, "#live-state", "learning …")
        path = page.inner_text("#path")
        asked = len([request for request in studio.requests if request.startswith("queue?")])
        studio.matching = lambda _: list(range(99, -1, -1))  # type: ignore[method-assign]
        studio.live = live_state(2, 120)
        wait_for_text(page, "#live", "estimated accuracy 74\u00a0% (73 to 75\u00a0%) from 120 labels")
        assert page.inner_text("#live-state") == ""
        assert len([request for request in studio.requests if request.startswith("queue?")]) > asked
        assert page.inner_text("#path") == path, "the photo on the screen stays"
        page.keyboard.press("s")
        wait_for_text(page, "#path", "000099.jpg")
        page.click("#live")
        chart = page.locator("#live-panel .chart")
        chart.wait_for()
        assert chart.locator("polyline").get_attribute("points").count(",") == 12
        assert chart.locator("polygon").count() == 1, "the interval"
        assert {"labels", "accuracy in %", "0", "100"} <= set(chart.locator("text").all_text_contents())


def test_classes_are_created_renamed_merged_and_retired(chromium: Browser) -> None:
    studio = FakeStudio(60)
    with opened(chromium, studio) as page:
        show(page, "classes")
        page.fill("#classes-form [name=name]", "Nuthatch")
        page.keyboard.press("Enter")
        wait_for_text(page, "#classes-list", "Nuthatch")
        page.click("[aria-label='Rename Nuthatch']")
        page.fill("#rename-dialog input", "Treecreeper")
        page.keyboard.press("Enter")
        wait_for_text(page, "#toast.shown", "Renamed Nuthatch to Treecreeper")
        wait_for_text(page, "#classes-list", "Treecreeper")
        page.click("[aria-label='Merge Treecreeper']")
        wait_for_text(page, "#class-title", "Merge Treecreeper into")
        page.keyboard.type("wre")
        page.keyboard.press("Enter")
        wait_for_text(page, "#toast.shown", "Merged Treecreeper into Wren")
        page.click("[aria-label='Retire Robin']")
        page.wait_for_selector("[aria-label='Restore Robin']")
        page.keyboard.press("Backspace")
        page.wait_for_selector("[aria-label='Retire Robin']")
        page.keyboard.press("Backspace")
        page.wait_for_selector("[aria-label='Rename Treecreeper']")
        page.fill("#classes-search", "zzz")
        wait_for_text(page, "#classes-empty", "No class matches.")

        studio.change_classes({"person": "Bo", "action": "create", "name": "Goldcrest"})
        page.fill("#classes-search", "")
        wait_for_text(page, "#classes-list", "Goldcrest")  # arrives with the next poll
        show(page, "label")
        page.keyboard.press("/")
        page.keyboard.type("goldc")
        page.keyboard.press("Enter")
        wait_for_text(page, "#toast.shown", "Goldcrest")
        page.keyboard.press("/")
        page.keyboard.type("Firecrest")
        page.keyboard.press("Enter")
        wait_for_text(page, "#toast.shown", "Firecrest")
        assert {label["label"] for label in studio.labels.values()} == {"Goldcrest", "Firecrest"}


def test_a_taxonomy_is_a_tree(chromium: Browser) -> None:
    studio = FakeStudio(60)
    studio.taxonomy = TAXONOMY
    with opened(chromium, studio) as page:
        show(page, "classes")
        wait_for_text(page, "#classes-list summary", "Finches")
        assert page.locator("details:has(summary:text-is('Finches')) .name").all_inner_texts() == ["Linnet", "Siskin"]
        page.click("#classes-list summary")
        assert page.is_hidden("#classes-list >> text=Linnet")


def reviewed_studio() -> FakeStudio:
    studio = FakeStudio(60)
    name_first(studio, "Ada", "Robin", 0)
    name_first(studio, "Bo", "Wren", 1)
    pairs = [{"a": "Ada", "b": "Bo", "kappa": 0.71, "images": 8}]
    suspect = {"row": 7, "path": "photos/7.jpg", "label": "Robin", "prediction": "Wren"}
    studio.review = {
        "suspects": [{**suspect, "label_probability": 0.02, "prediction_probability": 0.97}],
        "conflicts": [studio.tile(1)],
        "agreement": {"alpha": 0.74, "images": 8, "people": 2, "pairs": pairs},
        "people": ["Ada", "Bo"],
    }
    return studio


def test_review_lists_conflicts_agreement_suspects_and_the_log(chromium: Browser) -> None:
    studio = reviewed_studio()
    with opened(chromium, studio) as page:
        show(page, "review")
        wait_for_text(
            page, "#review-parts", "0.74 Krippendorff's alpha of 2 people on 8 photos: good enough for tentative"
        )
        wait_for_text(page, "#review-parts", "With 8 photos, the value is uncertain.")
        assert page.locator("#review-parts td").all_inner_texts() == ["Ada", "Bo", "0.71", "8"]
        wait_for_text(page, ".suspect", "labeled Robin (2.0\u00a0%)")
        assert page.locator("#log tbody tr").count() == 2
        page.select_option("#log-person", "Bo")
        page.wait_for_function("() => document.querySelectorAll('#log tbody tr').length === 1")
        page.reload()
        wait_for_text(page, "#log tbody", "Wren")
        assert page.locator("#log tbody tr").count() == 1, "the filter survives a reload"
        name_first(studio, "Bo", "Linnet", 5)
        wait_for_text(page, "#log tbody", "Linnet")  # with the next poll
        page.click(".strip button")
        wait_for_text(page, "#path", "000001.jpg")


def test_roles_hide_pages(chromium: Browser) -> None:
    studio = FakeStudio(20)
    studio.role = "label"
    with opened(chromium, studio) as page:
        shown = page.locator("nav a:visible").all_inner_texts()
        assert "Label" in shown
        assert not {"Review", "Train"} & set(shown)


def test_a_folder_without_classes(chromium: Browser) -> None:
    """Groups of similar photos are named, and every page says what to do next."""
    studio = FakeStudio(40, names=())
    studio.groups = [{"id": 0, "size": 30, "photos": [0, 1]}, {"id": 1, "size": 10, "photos": [2]}]
    with serving_fake(studio) as url:
        page = chromium.new_page()
        page.goto(url)
        page.fill("#name-dialog input", "Ada")
        page.keyboard.press("Enter")
        page.click("nav [data-page=overview]")
        wait_for_text(page, "#overview", "There are no classes yet.")
        page.click("#overview .class >> text=Group 1")
        page.wait_for_selector(".tile img.loaded")
        page.keyboard.press("Control+a")
        page.keyboard.press("/")
        wait_for_text(page, "#class-rest", "There are no classes yet.")
        page.keyboard.type("Robin")
        page.keyboard.press("Enter")
        wait_for_text(page, "#toast.shown", "Robin: ")
        assert {label["label"] for label in studio.labels.values()} == {"Robin"}
        page.context.close()


def test_training_shows_intervals_and_time(chromium: Browser) -> None:
    studio = FakeStudio(20)
    name_first(studio, "Ada", "Robin", 0)
    studio.training = {"state": "none", "estimate": {"step_seconds": 0.5, "iterations": 600}}
    with opened(chromium, studio) as page:
        show(page, "train")
        wait_for_text(page, "#train-estimate", "600 steps take about 5 minutes")
        page.fill("#train-form [name=iterations]", "60")
        wait_for_text(page, "#train-estimate", "60 steps take about 30 seconds")
        running = {"state": "running", "run": "birds-studio-1", "step": 100, "iterations": 600, "seconds_left": 250}
        studio.training = {**FINISHED, **running}
        wait_for_text(page, "#progress p", "step 100 of 600, about 4 minutes left")
        studio.training = FINISHED
        wait_for_text(page, "#after", "36 to 80 %, 15 test images")
        wait_for_text(page, "#difference", "within the 95 % margin of chance")
        wait_for_text(page, "#outcome figcaption", "15 images are few")
        texts = page.locator("#outcome .chart text").all_text_contents()
        assert {"training steps", "accuracy in %", "100", "200", "300"} <= set(texts)
        assert page.locator("#outcome .chart .interval").count() == 3


def test_the_map_zooms_and_moves(chromium: Browser) -> None:
    with opened(chromium, FakeStudio(60)) as page:
        show(page, "overview")
        page.wait_for_selector("#map text")
        x = "document.querySelector('#map circle').getAttribute('cx') * 1"
        gap = "(([a, b]) => b.cx.baseVal.value - a.cx.baseVal.value)(document.querySelectorAll('#map circle'))"
        before = page.evaluate(gap)
        page.click("#map [data-key='+']")
        assert page.evaluate(gap) == pytest.approx(1.5 * before, rel=0.01)
        moved = page.evaluate(x)
        box = page.locator("#map svg").bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + 300, box["y"] + 60)
        page.mouse.down()
        page.mouse.move(box["x"] + 250, box["y"] + 60, steps=3)
        page.mouse.up()
        assert page.evaluate(x) == pytest.approx(moved - 50, abs=1)
        page.click("#map [data-key='Fit']")
        assert page.evaluate(gap) == pytest.approx(before, abs=0.1)


def test_a_phone_shows_the_photo_and_three_candidates(chromium: Browser) -> None:
    """Without scrolling, and no page is wider than the screen."""
    studio = reviewed_studio()
    studio.live = live_state(2, 120)
    studio.training = FINISHED
    with serving_fake(studio) as url:
        context = chromium.new_context(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
        page = context.new_page()
        page.goto(url)
        page.fill("#name-dialog input", "Ada")
        page.keyboard.press("Enter")
        page.wait_for_selector("#candidates button")
        photo = page.locator("#photo").bounding_box()
        assert photo is not None
        assert photo["height"] >= 300
        actions = page.locator("#actions").bounding_box()
        for button in page.locator("#candidates button").all():
            box = button.bounding_box()
            assert box is not None
            assert box["height"] >= 44
            assert box["y"] + box["height"] <= actions["y"], "in view, above the actions"
        assert page.locator("#candidates button").count() == 3
        assert actions["y"] + actions["height"] <= 844
        page.click("#filters-toggle")
        page.select_option("#filters [name=class]", "Wren")
        wait_for_text(page, "#total", "9 images")
        for name in PAGES:
            show(page, name)
            page.wait_for_load_state("networkidle")
            assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
        show(page, "grid")
        page.wait_for_selector(".tile img.loaded")
        page.tap("#tile-0")
        page.tap("#tile-1")
        wait_for_text(page, "#grid-selected", "2 photos selected")
        context.close()


def violations(page: Page) -> list[str]:
    """What axe-core finds, with the first element of each finding."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="needs axe-playwright-python")
    found: list[dict[str, Any]] = axe.Axe().run(page).response["violations"]
    return [
        f"{entry['id']}: {entry['nodes'][0]['html'][:120]} ({entry['nodes'][0]['failureSummary']})" for entry in found
    ]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_violation(chromium: Browser, scheme: Any) -> None:
    """On every page and in the dialogs."""
    studio = reviewed_studio()
    studio.live = live_state(2, 120)
    studio.taxonomy = TAXONOMY
    studio.training = FINISHED
    with serving_fake(studio) as url:
        context = chromium.new_context(
            color_scheme=scheme, reduced_motion="reduce", viewport={"width": 1280, "height": 800}
        )
        page = context.new_page()
        page.goto(url)
        page.wait_for_selector("#name-dialog[open]")
        assert violations(page) == [], "the name"
        page.fill("#name-dialog input", "Ada")
        page.keyboard.press("Enter")
        page.wait_for_selector("#candidates button")
        page.wait_for_selector("#live:visible")
        for name in PAGES:
            show(page, name)
            page.wait_for_load_state("networkidle")
            if name == "grid":
                page.wait_for_selector(".tile img.loaded")
                page.keyboard.press("Space")
            assert violations(page) == [], name
        show(page, "grid")
        page.keyboard.press("/")
        page.wait_for_selector("#class-dialog[open]")
        assert violations(page) == [], "the class search"
        page.keyboard.press("Escape")
        page.keyboard.press("h")
        page.wait_for_selector("#help-dialog[open]")
        assert violations(page) == [], "the help"
        page.keyboard.press("Escape")
        page.click("#live")
        page.wait_for_selector("#live-panel .chart")
        assert violations(page) == [], "the live model"
        context.close()


def test_every_class_is_shown_on_the_overview(chromium: Browser) -> None:
    with opened(chromium, FakeStudio(60)) as page:
        show(page, "overview")
        page.wait_for_selector("#overview .class")
        assert page.locator("#overview .class .name").all_inner_texts() == list(NAMES)
        page.click("#map a[aria-label=Siskin]")
        page.wait_for_function("() => location.hash === '#grid?class=Siskin'")
