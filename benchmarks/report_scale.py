"""Measures the report of synthetic runs with 30,000 unlabeled photos of 200 classes, also in Chromium.

    python benchmarks/report_scale.py --out benchmarks/results/report-scale.json

Prints the seconds to write the page and all figures, their size, and the time that the browser needs until the page
is readable, until its scripts have run, and to respond to the tree slider and to the pointer on a curve.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from PIL import Image

from provenance import provenance

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from semifine.data.catalog import Split  # noqa: E402
from semifine.data.sources import load_catalog  # noqa: E402
from tests.runs.fake_runs import make_groups, planted_counts, write_run  # noqa: E402

LABELED = 5

# Milliseconds until the page responds, layout included, mean of a hundred times.
SLIDE = """(() => {
  const slider = document.getElementById("tree-k"), start = performance.now();
  for (let k = 1; k <= 100; k++) {
    slider.value = k;
    slider.dispatchEvent(new Event("input"));
    document.body.offsetHeight;
  }
  return (performance.now() - start) / 100;
})()"""
POINT = """(() => {
  const plot = document.querySelector(".plot"), box = plot.getBoundingClientRect(), start = performance.now();
  for (let i = 0; i < 100; i++) {
    const place = { clientX: box.left + (box.width * i) / 100, clientY: box.top + 50 };
    plot.dispatchEvent(new PointerEvent("pointermove", place));
    document.body.offsetHeight;
  }
  return (performance.now() - start) / 100;
})()"""


def make_photos(root: Path, classes: int, images: int) -> None:
    """Makes a folder data set of links to a few hundred pictures with the detail of photos."""
    random = np.random.default_rng(0)
    (root / "unlabeled").mkdir(parents=True)
    originals = []
    for number in range(classes):
        coarse = Image.fromarray(random.integers(0, 256, (24, 32, 3), np.uint8)).resize((500, 375), Image.BICUBIC)
        grain = random.normal(0, 12, (375, 500, 3))
        buffer = io.BytesIO()
        Image.fromarray(np.clip(np.asarray(coarse) + grain, 0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
        folder = root / "labeled" / f"class {number:03d}"
        folder.mkdir(parents=True)
        originals.append(folder / "0.jpg")
        originals[-1].write_bytes(buffer.getvalue())
        for copy in range(1, LABELED):
            os.link(originals[-1], folder / f"{copy}.jpg")
    for number in range(images):
        os.link(originals[number % classes], root / "unlabeled" / f"{number:06d}.jpg")


def make_runs(folder: Path, data: Path, classes: int, images: int) -> list[Path]:
    groups = make_groups(classes // 5, 5)
    source = f"folder:{data}"
    catalog = load_catalog(source)
    paths = [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)]
    common: dict[str, Any] = {
        "names": catalog.class_names, "groups": groups, "unlabeled": images, "settings": {"data": {"source": source}},
    }  # fmt: skip
    runs = [
        write_run(folder / "supervised", "supervised", top1=45.0, **common),
        write_run(folder / "fixmatch", "fixmatch", top1=50.0, **common),
        write_run(folder / "soc", top1=55.0, transitions=planted_counts(groups), **common),
    ]
    for run in runs:
        table = pq.read_table(run / "samples.parquet")
        pq.write_table(table.set_column(table.column_names.index("path"), "path", [paths]), run / "samples.parquet")
    return runs


def write(runs: list[Path], page: Path, figures: Path | None) -> float:
    """Returns the duration of ``semifine report`` in seconds."""
    command = [sys.executable, "-m", "semifine", "report", *map(str, runs), "--out", str(page)]
    started = time.perf_counter()
    subprocess.run([*command, *(["--figures", str(figures)] if figures else [])], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def open_in_browser(page: Path, picture: Path | None) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        context = browser.new_context(viewport={"width": 1280, "height": 900}, offline=True)
        tab = context.new_page()
        messages: list[str] = []
        tab.on("console", lambda message: messages.append(message.text))
        tab.on("pageerror", lambda error: messages.append(str(error)))
        tab.goto(page.as_uri())
        times = tab.evaluate("(() => { const t = performance.getEntriesByType('navigation')[0];"
                             " return [t.domInteractive, t.loadEventEnd]; })()")  # fmt: skip
        slider, pointer = tab.evaluate(SLIDE), tab.evaluate(POINT)
        if picture:
            tab.screenshot(path=str(picture), full_page=True)
        browser.close()
    return {
        "readable_ms": round(times[0]), "loaded_ms": round(times[1]), "slider_ms": round(slider, 2),
        "pointer_ms": round(pointer, 2), "messages": messages,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=30_000)
    parser.add_argument("--classes", type=int, default=200)
    parser.add_argument("--out", type=Path, help="JSON file for the measurements")
    parser.add_argument("--picture", type=Path, help="PNG file for a screenshot of the whole page")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        make_photos(folder / "photos", options.classes, options.images)
        runs = make_runs(folder / "runs", folder / "photos", options.classes, options.images)
        page = folder / "report.html"
        measured: dict[str, Any] = {
            **provenance(),
            "images": options.images,
            "classes": options.classes,
            "runs": len(runs),
            "cores": len(os.sched_getaffinity(0)),
            "page_seconds": round(write(runs, page, None), 1),
            "page_and_figures_seconds": round(write(runs, page, folder / "figures"), 1),
            "page_megabytes": round(page.stat().st_size / 1e6, 2),
            "figures_megabytes": round(sum(file.stat().st_size for file in (folder / "figures").iterdir()) / 1e6, 2),
            **open_in_browser(page, options.picture),
        }
    for name, value in measured.items():
        print(f"{name:>26}  {value}")
    if options.out:
        options.out.write_text(json.dumps(measured, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
