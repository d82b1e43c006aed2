"""Chromium, and a run for the studio."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.studio.runs import small_run


@pytest.fixture(scope="module")  # not "session": while it is open, other tests cannot run asyncio
def chromium() -> Iterator[Any]:
    """Debian's Chromium, controlled by Playwright."""
    api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium")
    if program is None:
        pytest.skip("needs chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    learns_fast = {"data__test_per_class": 20, "iterations": 6, "ema": 0.9, "lr": 0.1}
    return small_run(tmp_path_factory.mktemp("runs") / "birds", evaluate_every=30, save_every=30, **learns_fast)


@pytest.fixture
def own_run(run: Path, tmp_path: Path) -> Path:
    """A copy of the run with a separate label log."""
    return Path(shutil.copytree(run, tmp_path / "birds", symlinks=True))
