"""Measures how smoothly the studio's grid scrolls, in Chromium.

    PYTHONPATH=. python benchmarks/grid_scroll.py --images 100000 --out benchmarks/results/grid-scroll.json

A studio in memory serves made-up photos, so the page is measured, not the model. The grid scrolls for some seconds at
constant speeds; requestAnimationFrame gives the time of every frame. A frame is late if it takes more than 1.5 times
1/60 s. Chromium has no GPU here and draws on the processor.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from provenance import provenance
from tests.browser.fake_studio import FakeStudio, serving_fake

FRAME = 1000 / 60
ROWS_PER_SECOND = (5, 20, 100)
SECONDS = 5

SCROLL = """async ([rows, seconds]) => {
  const grid = document.querySelector("#grid-scroll");
  const [tile] = document.querySelectorAll(".tile");
  const speed = (rows * tile.getBoundingClientRect().height) / 1000;
  const times = [];
  let most = 0;
  await new Promise((done) => {
    const start = performance.now();
    const from = grid.scrollTop;
    const frame = (now) => {
      times.push(now);
      grid.scrollTop = from + speed * Math.max(0, now - start);
      most = Math.max(most, document.querySelectorAll(".tile:not([hidden])").length);
      if (now - start < 1000 * seconds) requestAnimationFrame(frame);
      else done();
    };
    requestAnimationFrame(frame);
  });
  return { times, most };
}"""


def measure_scrolling(page: Page, rows_per_second: float, seconds: float = SECONDS) -> dict[str, Any]:
    """Scrolls the grid that the page shows. Returns frames per second, late frames and the most tiles in the page."""
    measured = page.evaluate(SCROLL, [rows_per_second, seconds])
    times = measured["times"]
    frames = [later - earlier for earlier, later in pairwise(times)]
    return {
        "rows_per_second": rows_per_second,
        "frames_per_second": round(1000 * len(frames) / (times[-1] - times[0]), 1),
        "median_frame_ms": round(statistics.median(frames), 1),
        "worst_frame_ms": round(max(frames), 1),
        "late_frames": sum(frame > 1.5 * FRAME for frame in frames),
        "frames": len(frames),
        "most_tiles": measured["most"],
    }


def open_grid(page: Page, url: str) -> dict[str, float]:
    """Opens the grid. Returns the seconds until the first photo and until every photo in view is shown."""
    page.goto(url)
    page.fill("#name-dialog input", "Ada")
    page.keyboard.press("Enter")
    page.wait_for_selector("#candidates button")
    start = time.perf_counter()
    page.evaluate("location.hash = '#grid'")
    page.wait_for_selector(".tile img.loaded")
    first = time.perf_counter() - start
    page.wait_for_function("() => !document.querySelector('.tile:not([hidden]) img:not(.loaded)')")
    return {"first_photo_seconds": round(first, 2), "all_photos_seconds": round(time.perf_counter() - start, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=100_000)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with serving_fake(FakeStudio(options.images)) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.set_default_timeout(120_000)
        result = {"images": options.images, **open_grid(page, url)}
        result["idle"] = measure_scrolling(page, 0, 2)
        result["scrolling"] = [measure_scrolling(page, rows) for rows in ROWS_PER_SECOND]
        browser.close()
    text = json.dumps({**provenance(), **result}, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
