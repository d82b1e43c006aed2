"""Images that are deleted or changed during a run, or before it is resumed."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

from semifine.config import RunSettings, resolve
from semifine.data.store import PIXELS
from semifine.errors import Interrupted, UserError
from semifine.training.fit import fit
from semifine.training.progress import Display

Change = Callable[[Path, Path], None]


class HookedDisplay(Display):
    """Calls a function after the third step, and records the log lines."""

    def __init__(self, after_third_step: Callable[[], None] | None = None) -> None:
        super().__init__(quiet=True)
        self.hook = after_third_step
        self.lines: list[str] = []

    def log(self, text: str) -> None:
        self.lines.append(text)

    def log_metrics(self, step: int, *_: Any) -> None:
        if step == 3 and self.hook:
            self.hook()


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("original") / "photos"
    rng = np.random.default_rng(0)
    for place in ("labeled/a", "labeled/b", "unlabeled", "test/a", "test/b"):
        (root / place).mkdir(parents=True)
        for number in range(8 if place == "unlabeled" else 2):
            Image.fromarray(rng.integers(0, 256, (24, 24, 3), np.uint8)).save(root / place / f"{number}.png")
    return root


@pytest.fixture
def photos(original: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(original, tmp_path / "photos"))


def settings(photos: Path) -> RunSettings:
    options = "iterations 6 batch_size 2 mu 2 image_size 16 backbone test_resnet device cpu log_every 1 save_every 3"
    words = options.split()
    cache = str(photos.parent / "cache")
    return resolve([{"data.source": str(photos), "cache": cache, **dict(zip(words[::2], words[1::2], strict=True))}])


def weights(out: Path) -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def remove(photos: Path, _: Path) -> None:
    shutil.rmtree(photos / "unlabeled")
    (photos / "labeled" / "a" / "0.png").unlink()


def repaint(photos: Path, _: Path) -> None:
    for file in (photos / "unlabeled").iterdir():
        Image.new("RGB", (30, 30), "green").save(file)


def remove_decoded(_: Path, cache: Path) -> None:
    shutil.rmtree(cache)


@pytest.mark.parametrize("change", [remove, repaint, remove_decoded])
def test_a_run_continues_with_the_images_from_its_start(change: Change, photos: Path, tmp_path: Path) -> None:
    fit(settings(photos), tmp_path / "whole", display=HookedDisplay())
    fit(settings(photos), tmp_path / "run", display=HookedDisplay(lambda: change(photos, photos.parent / "cache")))
    torch.testing.assert_close(weights(tmp_path / "run"), weights(tmp_path / "whole"), rtol=0, atol=0)


def stopped_run(photos: Path, out: Path) -> None:
    with pytest.raises(Interrupted):
        fit(settings(photos), out, display=HookedDisplay(lambda: os.kill(os.getpid(), signal.SIGTERM)))


def test_images_changed_before_a_resume_are_logged(photos: Path, tmp_path: Path) -> None:
    stopped_run(photos, tmp_path / "run")
    Image.new("RGB", (30, 30), "green").save(photos / "unlabeled" / "0.png")
    display = HookedDisplay()
    fit(settings(photos), tmp_path / "run", resume=True, display=display)
    assert any("1 image changed (unlabeled/0.png); decoded 16 images" in text for text in display.lines)


def test_missing_images_stop_a_resume(photos: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_run(photos, out)
    (photos / "unlabeled" / "0.png").rename(tmp_path / "kept.png")
    with pytest.raises(UserError, match=r"images of the run .* have changed .*'unlabeled': 8.*'unlabeled': 7"):
        fit(settings(photos), out, resume=True, display=HookedDisplay())
    (tmp_path / "kept.png").rename(photos / "unlabeled" / "0.png")
    assert fit(settings(photos), out, resume=True, display=HookedDisplay())["images"]["unlabeled"] == 8


def test_a_flipped_bit_in_the_decoded_images_is_detected(photos: Path, tmp_path: Path) -> None:
    fit(settings(photos), tmp_path / "whole", display=HookedDisplay())
    store = next((photos.parent / "cache").glob(f"images-*/{PIXELS}"))
    content = bytearray(store.read_bytes())
    content[len(content) // 3] ^= 1
    store.write_bytes(content)
    display = HookedDisplay()
    fit(settings(photos), tmp_path / "run", display=display)
    assert any("are damaged" in text and "decoded 16 images" in text for text in display.lines)
    torch.testing.assert_close(weights(tmp_path / "run"), weights(tmp_path / "whole"), rtol=0, atol=0)
