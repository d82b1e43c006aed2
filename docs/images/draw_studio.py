"""Takes screenshots of the studio in Chromium, at the size of a desktop, a tablet and a phone.

    python docs/images/draw_studio.py RUN FOLDER

studio.jpg is the label page on a desktop, for a run on 32 species of the synthetic data set.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

SCREENS = {"desktop": (1280, 760, "light"), "tablet": (820, 1100, "dark"), "phone": (390, 780, "light")}

NUM_SKIPPED = 9
"""Images to skip, up to one with similar candidates."""


def main(run: str, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "semifine", "studio", run, "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    url = server.stdout.readline().strip()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, (width, height, scheme) in SCREENS.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
            page.goto(url)
            page.fill("#name-dialog input", "Ada")
            page.keyboard.press("Enter")
            page.wait_for_selector("#candidates button")
            for _ in range(NUM_SKIPPED):
                page.keyboard.press("ArrowRight")
                page.wait_for_timeout(300)
            for section in ("label", "overview", "train"):
                page.click(f"nav a[href='#{section}']")
                page.wait_for_timeout(800)  # photos are loaded one by one
                page.screenshot(path=folder / f"{name}-{section}.jpg", type="jpeg", quality=85)
    server.terminate()
    server.wait()


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
