"""The report in a browser, opened from disk without a network."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.report.test_page import SECTIONS, photos, write_with_photos
from tests.runs.fake_runs import make_groups, planted_counts, write_run

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("report")
    groups = make_groups(4, 4)
    names = ["</script><script>throw 1</script>", *(f"Scarabina fasciiantennata {number}" for number in range(1, 16))]
    common: dict[str, Any] = {"groups": groups, "names": names, "unlabeled": 300, "images_per_class": 40}
    runs = [
        write_run(root / "supervised", "supervised", top1=40.0, **common),
        write_run(root / "soc", top1=60.0, transitions=planted_counts(groups), **common),
    ]
    for run in runs:
        table = pq.read_table(run / "samples.parquet")
        paths = [f"/home/ada/photos of the summer/trap {row % 7}/IMG_{row:04d}.JPG" for row in range(len(table))]
        pq.write_table(table.set_column(1, "path", [paths]), run / "samples.parquet")
    return write_with_photos(runs, root / "report.html", photos(16))


class OpenReport:
    """A page that records console messages, errors and requests."""

    def __init__(self, browser: Any, file: Path, viewport: dict[str, int], scheme: str = "light") -> None:
        touch = viewport == PHONE
        self.context = browser.new_context(viewport=viewport, color_scheme=scheme, offline=True, has_touch=touch)
        self.requests: list[str] = []
        self.messages: list[str] = []
        self.context.route("**/*", self._record)
        self.page = self.context.new_page()
        self.page.on("console", lambda message: self.messages.append(message.text))
        self.page.on("pageerror", lambda error: self.messages.append(str(error)))
        self.page.goto(file.as_uri())

    def _record(self, route: Any) -> None:
        self.requests.append(route.request.url)
        route.continue_() if route.request.url.startswith("file:") else route.abort()


@pytest.fixture
def opened(chromium: Any, report: Path) -> Iterator[OpenReport]:
    page = OpenReport(chromium, report, DESKTOP)
    yield page
    page.context.close()


@pytest.fixture
def phone(chromium: Any, report: Path) -> Iterator[OpenReport]:
    page = OpenReport(chromium, report, PHONE)
    yield page
    page.context.close()


@pytest.mark.parametrize(("viewport", "scheme"), [(DESKTOP, "light"), (PHONE, "dark")], ids=["desktop", "phone"])
def test_opens_without_messages_or_requests(chromium: Any, report: Path, viewport: dict[str, int], scheme: str) -> None:
    opened = OpenReport(chromium, report, viewport, scheme)
    page = opened.page
    assert opened.messages == []
    assert opened.requests == [report.as_uri()]
    for section in SECTIONS:
        box = page.locator(f"section#{section}").bounding_box()
        assert box is not None, section
        assert box["height"] > 40, section
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"], "nothing overflows horizontally"
    assert page.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(251, 251, 250)" if scheme == "light" else "rgb(20, 23, 27)")
    opened.context.close()


def test_curves_show_values_at_the_pointer(opened: OpenReport) -> None:
    page = opened.page
    plot = page.locator("figure[data-curve='0'] .plot")
    assert plot.locator("polyline").count() == 2
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 20, box["y"] + 60)
    tip = plot.locator(".tip")
    assert tip.is_visible()
    assert "step 1000" in tip.inner_text()
    assert "SoC: 60.0 %" in tip.inner_text()
    page.mouse.move(5, 5)
    assert not tip.is_visible()


def test_runs_can_be_hidden_and_shown(opened: OpenReport) -> None:
    page = opened.page
    button = page.locator(".legend button[data-run='0']")
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert page.locator("figure[data-curve='0'] polyline").count() == 1
    button.click()
    assert page.locator("figure[data-curve='0'] polyline").count() == 2


def _drag(page: Any, plot: Any) -> None:
    """Drags over the middle third of a plot."""
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 60)
    page.mouse.up()


def test_dragging_zooms_all_curves(opened: OpenReport) -> None:
    page = opened.page
    before = page.locator("figure[data-curve='1'] polyline").first.get_attribute("points")
    plot = page.locator("figure[data-curve='0'] .plot")
    _drag(page, plot)
    zoomed = page.locator("figure[data-curve='1'] polyline").first.get_attribute("points")
    assert len(zoomed.split()) < len(before.split())
    page.locator("#zoom-out").click()
    assert page.locator("figure[data-curve='1'] polyline").first.get_attribute("points") == before
    assert not page.locator("#zoom-out").is_visible()


def test_the_zoom_out_button_is_no_toggle(opened: OpenReport) -> None:
    page = opened.page
    plot = page.locator("figure[data-curve='0'] .plot")
    for _ in range(2):
        _drag(page, plot)
        assert page.locator("#zoom-out").get_attribute("aria-pressed") is None
        page.locator("#zoom-out").click()


def test_a_tap_shows_values_until_the_next_tap(phone: OpenReport) -> None:
    page = phone.page
    plot = page.locator("figure[data-curve='0'] .plot")
    plot.scroll_into_view_if_needed()
    box = plot.bounding_box()
    page.touchscreen.tap(box["x"] + box["width"] - 20, box["y"] + 60)
    tip = plot.locator(".tip")
    assert tip.is_visible()
    assert "SoC: 60.0 %" in tip.inner_text()
    assert not page.locator("#zoom-out").is_visible(), "a tap does not zoom"
    page.touchscreen.tap(box["x"] + 20, box["y"] - 30)
    assert not tip.is_visible()


def test_dragging_by_touch_zooms(phone: OpenReport) -> None:
    page = phone.page
    plot = page.locator("figure[data-curve='0'] .plot")
    plot.scroll_into_view_if_needed()
    before = plot.locator("polyline").first.get_attribute("points")
    box = plot.bounding_box()
    finger = phone.context.new_cdp_session(page)
    for kind, share in (("touchStart", 0.3), ("touchMove", 0.45), ("touchMove", 0.7), ("touchEnd", None)):
        points = [] if share is None else [{"x": box["x"] + share * box["width"], "y": box["y"] + 80}]
        finger.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})
    page.locator("#zoom-out").wait_for(state="visible")
    assert len(plot.locator("polyline").first.get_attribute("points").split()) < len(before.split())
    assert not plot.locator(".tip").is_visible()


def test_text_in_drawings_is_readable_on_a_phone(phone: OpenReport) -> None:
    sizes = phone.page.evaluate(
        """[...document.querySelectorAll("#labels svg")].map((svg) => ({
            right: svg.getBoundingClientRect().right,
            heights: [...svg.querySelectorAll("text")].map((text) =>
              parseFloat(getComputedStyle(text).fontSize) * svg.getScreenCTM().a),
        }))"""
    )
    assert len(sizes) == 2
    for drawing in sizes:
        assert drawing["right"] <= PHONE["width"], "inside the screen"
        assert min(drawing["heights"]) > 9


def test_pairs_fit_a_phone_without_broken_words(phone: OpenReport) -> None:
    page = phone.page
    table = page.locator(".pairs")
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    assert "Same group: yes" in table.evaluate(
        "table => [...table.querySelectorAll('td')].map(cell => getComputedStyle(cell, '::before').content"
        ".replaceAll('\"', '') + cell.textContent).join('|')"
    )
    broken = table.evaluate(
        """(table) => {
            const found = [];
            for (const name of table.querySelectorAll(".half > span")) {
              const text = name.firstChild;
              for (const word of text.data.matchAll(/[A-Za-z]+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                if (range.getClientRects().length > 1) found.push(word[0]);
              }
            }
            return found;
        }"""
    )
    assert broken == []


def test_a_long_path_is_cut_at_its_start(phone: OpenReport) -> None:
    path = phone.page.locator("#next .path").first
    assert path.evaluate("path => path.scrollWidth > path.clientWidth"), "longer than its card"
    first, last, right = path.evaluate(
        """(path) => {
            const text = document.createTreeWalker(path, NodeFilter.SHOW_TEXT).nextNode();
            const at = (place) => {
              const range = document.createRange();
              range.setStart(text, place);
              range.setEnd(text, place + 1);
              return range.getBoundingClientRect().right;
            };
            return [at(0), at(text.length - 1), path.getBoundingClientRect().right];
        }"""
    )
    assert first < last, "the leading slash is not moved to the end"
    assert last == pytest.approx(right, abs=2), "the file name is visible"


def test_cut_the_tree_and_open_a_branch(opened: OpenReport) -> None:
    page = opened.page
    assert page.locator("#tree-k-shown").inner_text() == "4 groups, 4 of them with several classes"
    page.locator("#tree-k").fill("16")
    assert page.locator("#tree-k-shown").inner_text() == "16 groups, 0 of them with several classes"
    assert page.locator(".branch.cut").count() == 15
    page.locator(".branch").last.dispatch_event("click")
    assert page.locator("#tree-panel h3").inner_text().startswith("16 classes")
    assert page.locator("#tree-panel figure").count() == 16
    assert page.locator("#tree-panel img").count() == 32, "two photos of each class"
    assert page.locator("#tree-panel figcaption", has_text="</script>").count() == 1, (
        "markup in a name is shown as text"
    )


def test_works_without_scripts(chromium: Any, report: Path) -> None:
    context = chromium.new_context(viewport=PHONE, java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(report.as_uri())
    assert page.locator("figure[data-curve='0'] svg").count() == 1
    assert page.locator(".tree .branch").count() == 15
    assert not page.locator("#tree-controls").is_visible()
    context.close()


def test_download_the_list_of_images_to_label(opened: OpenReport) -> None:
    with opened.page.expect_download() as download:
        opened.page.locator("a[download]").click()
    lines = Path(download.value.path()).read_text(encoding="utf-8").splitlines()
    assert download.value.suggested_filename == "label-next.csv"
    assert lines[0] == "path,label,prediction,candidates"
    assert len(lines) > 20


def test_the_axis_ends_at_a_tick_above_the_values(opened: OpenReport) -> None:
    for number in range(opened.page.locator("figure[data-curve]").count()):
        plot = opened.page.locator(f"figure[data-curve='{number}'] .plot")
        lines, points = plot.evaluate(
            """(plot) => [
                [...plot.querySelectorAll(".grid")].map((line) => +line.getAttribute("y1")),
                [...plot.querySelectorAll("polyline")].flatMap((line) =>
                  line.getAttribute("points").split(" ").map((point) => +point.split(",")[1])),
            ]"""
        )
        assert 5 <= len(lines) <= 7
        assert min(lines) <= min(points) + 0.1, "the highest line is not below the highest value"
        assert min(lines) == pytest.approx(10), "the highest line is at the top of the figure"


def test_wide_tables_have_a_shade_at_the_edge(phone: OpenReport) -> None:
    table = phone.page.locator("#results .scroll").first
    width, shown = table.evaluate("box => [box.scrollWidth, box.clientWidth]")
    assert width > shown
    table.scroll_into_view_if_needed()

    def edge() -> list[int]:
        """Returns the gray values of the header at the right edge, from left to right."""
        picture = Image.open(io.BytesIO(table.screenshot())).convert("L")
        return [picture.getpixel((x, 4)) for x in range(picture.width - 30, picture.width - 1)]

    assert edge()[0] > edge()[-1] + 20, "a shade at the edge"
    table.evaluate("box => { box.scrollLeft = box.scrollWidth }")
    assert edge()[0] == pytest.approx(edge()[-2], abs=8), "no shade at the end"
    name = table.locator("tbody th").first.bounding_box()
    assert name["x"] == pytest.approx(table.bounding_box()["x"], abs=2), "the names stay visible"
    assert name["width"] < shown / 2
