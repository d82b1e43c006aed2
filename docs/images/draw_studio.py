"""Takes the screenshots of the studio for docs/how-to/label.md, in Chromium.

    python docs/images/draw_studio.py RUN [FOLDER]

RUN is a run on the synthetic data set, for example:

    semifine train synthetic --data.genera 4 --data.species 5 --data.image_side 256 --data.unlabeled_per_class 30 \
        --backbone tf_efficientnet_lite0 --pretrained --image-size 160 --method probe --out creatures

Two people label some photos first, with the true classes of the data set, and disagree about a few. Their labels are
in a new log in a temporary folder.
"""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from playwright.sync_api import Browser, Page, sync_playwright

from semifine.config import read_settings_file, resolve
from semifine.data.sources import load_catalog

NUM_LABELED = 160
NUM_DISPUTED = 5
BATCH = 20
LEARNED = "() => !document.querySelector('#live-state').textContent"


def main(run: Path, folder: Path) -> None:
    with serving(run) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        label_some(url, run)
        page = open_page(browser, url, 1280, 760)
        page.wait_for_timeout(6000)  # the live model learns from the labels
        page.reload()
        page.wait_for_selector("#candidates button")
        shoot(page, folder / "studio.jpg")
        shoot_grid(page, folder / "studio-grid.jpg")
        show(page, "overview")
        page.wait_for_selector("#map text")
        page.set_viewport_size({"width": 1280, "height": 1230})
        shoot(page, folder / "studio-overview.jpg")
        page.set_viewport_size({"width": 1280, "height": 760})
        show(page, "review")
        page.wait_for_selector("#log tbody tr")
        shoot(page, folder / "studio-review.jpg")
        shoot(open_page(browser, url, 390, 844, "dark"), folder / "studio-phone.jpg")
        browser.close()


@contextmanager
def serving(run: Path) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "semifine", "studio", str(run), "--db", f"{folder}/labels.db", "--no-browser"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert server.stdout is not None
        yield server.stdout.readline().strip()
        server.terminate()
        server.wait()


def label_some(url: str, run: Path) -> None:
    """Labels the first photos of the queue with their true classes; another person contradicts some of them."""
    settings = resolve([read_settings_file(run / "settings.yaml")])
    catalog = load_catalog(settings.data, settings.data_settings)
    pairs = zip(catalog.paths, catalog.truth, strict=True)
    truth = {str(path): catalog.class_names[label] for path, label in pairs}
    ids = get(url, f"queue?person=Ada&count={NUM_LABELED}")["ids"]
    names = [truth[get(url, f"image/{index}")["path"]] for index in ids]
    for index, name in zip(ids, names, strict=True):
        answer(url, run, "Ada", name, index)
    for index, name in list(zip(ids, names, strict=True))[:BATCH]:
        answer(url, run, "Bo", name, index)
    for index, name in list(zip(ids, names[1:], strict=False))[BATCH : BATCH + NUM_DISPUTED]:
        answer(url, run, "Bo", name, index)


def get(url: str, name: str) -> dict:
    return json.load(urlopen(f"{url}api/{name}"))


def answer(url: str, run: Path, person: str, name: str, index: int) -> None:
    """Seen is 0, as if both people had answered at once."""
    body = {"run": run.name, "person": person, "kind": "label", "class": name, "images": [{"id": index, "seen": 0}]}
    headers = {"Origin": "{0.scheme}://{0.netloc}".format(urlsplit(url)), "Content-Type": "application/json"}
    urlopen(Request(f"{url}api/answer", json.dumps(body).encode(), headers)).close()


def open_page(browser: Browser, url: str, width: int, height: int, scheme: str = "light") -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(120_000)
    page.goto(url)
    page.fill("#name-dialog input", "Ada")
    page.keyboard.press("Enter")
    page.wait_for_selector("#candidates button")
    return page


def show(page: Page, address: str) -> None:
    page.evaluate("address => { location.hash = '#' + address; }", address)


def shoot_grid(page: Page, file: Path) -> None:
    """The photos of the most frequent class, with three of them selected."""
    show(page, "classes")
    row = "r => [r.querySelector('.name').textContent, Number(/(\\d+) predicted/.exec(r.textContent)[1])]"
    rows = page.locator("#classes-list li").evaluate_all(f"rows => rows.map({row})")
    name, _ = max(rows, key=lambda row: row[1])
    show(page, f"grid?class={name}&order=outliers")
    page.wait_for_selector(".tile img.loaded")
    page.click("#tile-0")
    page.click("#tile-2", modifiers=["Control"])
    page.click("#tile-3", modifiers=["Control"])
    shoot(page, file)


def shoot(page: Page, file: Path) -> None:
    page.wait_for_function(LEARNED)
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(1500)  # photos are loaded one by one
    page.screenshot(path=file, type="jpeg", quality=72)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent)
