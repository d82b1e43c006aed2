"""The GPU preprocessor agrees with Pillow and numpy. Most tests run it on the CPU."""

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
from semifine.inference.prediction import PredictOptions
from semifine.inference.preprocess import CpuPreprocessor

DEVICES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
IMAGE_SIZE, STORED_SIDE = 56, 64
CPU = torch.device("cpu")


def photo(width: int, height: int, seed: int = 0) -> Image.Image:
    """Returns soft shapes with some noise, like a photo."""
    random = np.random.default_rng(seed)
    shapes = Image.fromarray(random.integers(0, 256, (9, 12, 3), np.uint8)).resize((width, height))
    noisy = np.asarray(shapes, np.int16) + random.integers(-20, 21, (height, width, 3))
    return Image.fromarray(np.clip(noisy, 0, 255).astype(np.uint8))


def turned() -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


class Kind(NamedTuple):
    """An image, its file format, and its height and width when it is uploaded."""

    image: Image.Image
    suffix: str
    options: dict[str, Any]
    uploaded: tuple[int, int]


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


@pytest.mark.parametrize("size", [56, 20])  # 20 needs oversampling
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_pixels_agree_with_the_cpu_preprocessor(files: dict[str, str], device: str, size: int) -> None:
    expected, found = (
        preprocessor.transform(preprocessor.collate([preprocessor.decode_file(name) for name in files.values()]))
        for preprocessor in (
            CpuPreprocessor(size, STORED_SIDE),
            GpuPreprocessor(size, STORED_SIDE, torch.device(device)),
        )
    )
    for kind, wanted, image in zip(files, expected, found, strict=True):
        assert image.shape == (size, size, 3)
        assert image.dtype == torch.uint8
        difference = np.abs(image.cpu().numpy().astype(int) - wanted)
        assert difference.max() <= 1, kind
        # The CPU shrinks before it rotates, so the two axes are rounded in the other order.
        assert difference.mean() < (0.3 if kind == "turned" else 0.02), kind


@pytest.mark.parametrize("kind", KINDS)
def test_only_large_images_are_shrunk_before_the_upload(files: dict[str, str], kind: str) -> None:
    pixels = GpuPreprocessor(IMAGE_SIZE, STORED_SIDE, CPU).decode_file(files[kind])
    assert not isinstance(pixels, str)
    assert pixels.shape == (*KINDS[kind].uploaded, 3)


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0", None])
def test_unreadable_files_have_the_reason_of_the_cpu_preprocessor(
    files: dict[str, str], tmp_path: Path, content: bytes
) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(Path(files["wide"]).read_bytes()[:-900] if content is None else content)
    reasons = []
    for preprocessor in (CpuPreprocessor(IMAGE_SIZE, STORED_SIDE), GpuPreprocessor(IMAGE_SIZE, STORED_SIDE, CPU)):
        reasons.append(preprocessor.decode_file(str(broken)))
    assert reasons[0] == reasons[1]
    assert "broken.jpg" in str(reasons[0])


def test_an_empty_group_can_be_transformed() -> None:
    preprocessor = GpuPreprocessor(IMAGE_SIZE, STORED_SIDE, CPU)
    assert len(preprocessor.transform(preprocessor.collate([]))) == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("spread", ["threads", "processes"])
def test_tables_agree(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spread: str, device: Literal["cpu", "cuda"]
) -> None:
    monkeypatch.setattr(gpu, "MIN_FILES_FOR_PROCESSES", 41 if spread == "threads" else 40)
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        photo(*((125, 94) if number % 3 else (80, 100)), seed=number).save(folder / f"{number:02d}.jpg")
    (folder / "17.jpg").write_bytes(b"no image")
    photos = sorted(map(str, folder.iterdir()))
    tables = []
    plain, other = load(soc_folder, device="cpu"), load(soc_folder, device=device)
    image_size, stored_side = other.settings.image_size, other.settings.stored_side
    monkeypatch.setattr(other, "preprocessor", GpuPreprocessor(image_size, stored_side, torch.device(device)))
    for run in (plain, other):
        out = tmp_path / f"{type(run.preprocessor).__name__}.csv"
        summary = predict.predict_to_table(out, run, photos, PredictOptions(top=6), batch_size=8, workers=3)
        assert (summary.predicted, summary.unreadable) == (39, 1)
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
def test_predictions_on_gpu_and_cpu_agree(soc_folder: Path, files: dict[str, str]) -> None:
    on_cpu, on_gpu = (load(soc_folder, device=device).predict(list(files.values()), top=6) for device in DEVICES)
    for first, second in zip(on_cpu, on_gpu, strict=True):
        wanted = dict(zip(first.names, first.probabilities, strict=True))
        found = dict(zip(second.names, second.probabilities, strict=True))
        assert found == pytest.approx(wanted, abs=0.01)


@pytest.mark.gpu
def test_export_leaves_the_model_on_its_gpu(soc_folder: Path, files: dict[str, str], tmp_path: Path) -> None:
    run = load(soc_folder, device="cuda")
    before = run.predict(list(files.values()))
    export(run, tmp_path / "model.safetensors", "safetensors")
    assert run.predict(list(files.values())) == before


@pytest.mark.gpu
def test_logits_too_large_for_float16_are_computed_in_float32(soc_folder: Path, files: dict[str, str]) -> None:
    run = load(soc_folder, device="cuda")
    with torch.no_grad():
        for parameter in list(run.network.parameters())[-2:]:
            parameter.mul_(1e6)
    images = run.preprocessor.transform(
        run.preprocessor.collate([run.preprocessor.decode_file(file) for file in files.values()])
    )
    assert np.isfinite(run.logits(images)).all()
