"""Draws report.jpg from the page of the demo.

python docs/images/draw_report.py demo/index.html
"""

import io
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1180, 1390
SECTIONS = ("summary", "clusters")


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(Path(sys.argv[1]).resolve().as_uri())
        shots = []
        for section in SECTIONS:
            page.evaluate(f"document.getElementById('{section}').scrollIntoView({{behavior: 'instant'}})")
            page.wait_for_timeout(500)
            shots.append(Image.open(io.BytesIO(page.screenshot())))
    picture = Image.new("RGB", (2 * WIDTH + 40, HEIGHT), "white")
    for number, shot in enumerate(shots):
        picture.paste(shot, (number * (WIDTH + 40), 0))
    picture.thumbnail((1400, 1400))
    picture.save(Path(__file__).with_name("report.jpg"), quality=80)


if __name__ == "__main__":
    main()
