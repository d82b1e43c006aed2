"""What a GPU makes of files is what Pillow and numpy make of them; here with the CPU in the place of the GPU."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image

from semifine.inference import gpu, predict
from semifine.inference.export import export
from semifine.inference.gpu import GpuPreprocessor
from semifine.inference.model import load
from semifine.inference.prediction import ModelMetadata, PredictOptions
from semifine.inference.preprocess import CpuPreprocessor

DEVICES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
NO_COLORS = (0.0, 0.0, 0.0)
KNOWN = ModelMetadata(("a", "b"), image_size=56, stored_side=64, mean=NO_COLORS, std=NO_COLORS, backbone="none")


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Soft shapes and some noise, as photos have them."""
    random = np.random.default_rng(seed)
    shapes = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((width, height))
    noisy = np.asarray(shapes, np.int16) + random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


class Kind(NamedTuple):
    """An image, how it is saved, and the height and width that are left to the GPU."""

    image: Image.Image
    suffix: str
    options: dict[str, Any]
    left: tuple[int, int]


KINDS = {
    "wide": Kind(photo(125, 94), "jpg", {"quality": 85}, (94, 125)),
    "tall": Kind(photo(94, 125), "jpg", {"quality": 85}, (125, 94)),
    "full color": Kind(photo(125, 94), "jpg", {"quality": 95, "subsampling": 0}, (94, 125)),
    "progressive": Kind(photo(125, 94), "jpg", {"progressive": True}, (94, 125)),
    "smaller than stored": Kind(photo(50, 40), "jpg", {}, (40, 50)),
    "one row": Kind(photo(3, 1), "jpg", {}, (1, 3)),
    "the largest whole one": Kind(photo(260, 255), "jpg", {}, (255, 260)),
    "decoded at a half": Kind(photo(300, 256), "jpg", {}, (128, 150)),
    "a strip": Kind(photo(500, 100), "jpg", {}, (64, 256)),
    "turned": Kind(photo(125, 94), "jpg", {"exif": turned()}, (125, 94)),
    "gray": Kind(photo(125, 94).convert("L"), "jpg", {}, (94, 125)),
    "for print": Kind(photo(125, 94).convert("CMYK"), "jpg", {}, (94, 125)),
    "png": Kind(photo(125, 94), "png", {}, (94, 125)),
    "transparent": Kind(photo(125, 94).convert("RGBA"), "png", {}, (94, 125)),
    "too large for one step": Kind(photo(500, 384), "png", {}, (64, 83)),
    "of many pixels": Kind(photo(1300, 800), "png", {}, (64, 104)),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kinds")
    made = {}
    for name, kind in KINDS.items():
        made[name] = str(folder / f"{name}.{kind.suffix}")
        kind.image.save(made[name], **kind.options)
    return made


@pytest.mark.parametrize("size", [56, 20])  # 20: a store larger than its views, which are oversampled
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_levels_are_those_of_the_host(files: dict[str, str], device: str, size: int) -> None:
    known = ModelMetadata(("a", "b"), size, 64, NO_COLORS, NO_COLORS, "none")
    expected, found = (
        preprocessor.views(preprocessor.gather([preprocessor.decode_file(name) for name in files.values()]))
        for preprocessor in (CpuPreprocessor(known), GpuPreprocessor(known, torch.device(device)))
    )
    for kind, wanted, view in zip(files, expected, found, strict=True):
        assert view.shape == (size, size, 3)
        assert view.dtype == torch.uint8
        apart = np.abs(view.cpu().numpy().astype(int) - wanted)
        assert apart.max() <= 1, kind
        # The host shrinks before it turns, so that the two axes are rounded in the other order.
        assert apart.mean() < (0.3 if kind == "turned" else 0.02), kind


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_gpu_can_shrink_is_left_to_it(files: dict[str, str], kind: str) -> None:
    pixels = GpuPreprocessor(KNOWN, torch.device("cpu")).decode_file(files[kind])
    assert not isinstance(pixels, str)
    assert pixels.shape == (*KINDS[kind].left, 3)


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0", None])
def test_what_cannot_be_read_has_the_reason_of_the_host(files: dict[str, str], tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(Path(files["wide"]).read_bytes()[:-900] if content is None else content)
    reasons = []
    for preprocessor in (CpuPreprocessor(KNOWN), GpuPreprocessor(KNOWN, torch.device("cpu"))):
        reasons.append(preprocessor.decode_file(str(broken)))
    assert reasons[0] == reasons[1]
    assert "broken.jpg" in str(reasons[0])


def test_no_images_have_no_views() -> None:
    preprocessor = GpuPreprocessor(KNOWN, torch.device("cpu"))
    assert len(preprocessor.views(preprocessor.gather([]))) == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("spread", ["threads", "processes"])
def test_tables_agree(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: str, device: Literal["cpu", "cuda"]
) -> None:
    monkeypatch.setattr(gpu, "MANY", 41 if spread == "threads" else 40)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        photo(*((125, 94) if number % 3 else (80, 100)), seed=number).save(folder / f"{number:02d}.jpg")
    (folder / "17.jpg").write_bytes(b"no image")
    photos = sorted(map(str, folder.iterdir()))
    tables = []
    plain, other = load(soc_folder, device="cpu"), load(soc_folder, device=device)
    monkeypatch.setattr(other, "sight", GpuPreprocessor(other.uncalibrated, torch.device(device)))
    for run in (plain, other):
        out = tmp_path / f"{type(run.preprocessor).__name__}.csv"
        tally = predict.predict_into(out, run, photos, PredictOptions(top=6), batch=8, workers=3)
        assert (tally.predicted, tally.unreadable) == (39, 1)
        with out.open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    for host, found in zip(*tables, strict=True):
        assert host["path"] == found["path"]
        first, second = (
            dict(zip(row["names"].split("|"), map(float, row["probabilities"].split("|")), strict=True))
            for row in (host, found)
        )
        assert first == pytest.approx(second, abs=0.02)


@pytest.mark.gpu
def test_a_run_on_a_gpu_predicts_what_it_does_on_a_cpu(soc_folder: Path, files: dict[str, str]) -> None:
    on_cpu, on_gpu = (load(soc_folder, device=device).predict(list(files.values()), top=6) for device in DEVICES)
    for first, second in zip(on_cpu, on_gpu, strict=True):
        wanted = dict(zip(first.names, first.probabilities, strict=True))
        found = dict(zip(second.names, second.probabilities, strict=True))
        assert found == pytest.approx(wanted, abs=0.01)


@pytest.mark.gpu
def test_a_run_goes_on_on_its_gpu_after_an_export(soc_folder: Path, files: dict[str, str], tmp_path: Path) -> None:
    run = load(soc_folder, device="cuda")
    before = run.predict(list(files.values()))
    export(run, tmp_path / "model.safetensors", "safetensors")
    assert run.predict(list(files.values())) == before


@pytest.mark.gpu
def test_numbers_too_large_for_float16_are_no_reason_to_fail(soc_folder: Path, files: dict[str, str]) -> None:
    run = load(soc_folder, device="cuda")
    with torch.no_grad():
        for parameter in list(run.network.parameters())[-2:]:
            parameter.mul_(1e6)
    views = run.preprocessor.views(
        run.preprocessor.gather([run.preprocessor.decode_file(file) for file in files.values()])
    )
    assert np.isfinite(run.logits(views)).all()
