"""What a GPU makes of files is what Pillow and numpy make of them; here with the CPU in the place of the GPU."""

from __future__ import annotations

import csv
import sys
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from PIL import Image

from semifine.data.in_order import map_in_order
from semifine.inference import predicting
from semifine.inference.device_sight import DeviceSight
from semifine.inference.export import export
from semifine.inference.knowledge import Knowledge
from semifine.inference.prediction import Questions
from semifine.inference.run import Run, load
from semifine.inference.sight import HostSight

# torchvision says that its decoders will go; without them Pillow decodes, as a test shows
pytestmark = pytest.mark.filterwarnings("ignore:The image decoding:DeprecationWarning")

DEVICES: tuple[Literal["cpu", "cuda"], ...] = ("cpu", "cuda")
NO_COLOURS = (0.0, 0.0, 0.0)
KNOWN = Knowledge(("a", "b"), image_size=56, stored_side=64, mean=NO_COLOURS, std=NO_COLOURS, backbone="none")


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


KINDS: dict[str, tuple[Image.Image, str, dict[str, Any], bool]] = {
    "wide": (photo(125, 94), "jpg", {"quality": 85}, True),
    "tall": (photo(94, 125), "jpg", {"quality": 85}, True),
    "full colour": (photo(125, 94), "jpg", {"quality": 95, "subsampling": 0}, True),
    "progressive": (photo(125, 94), "jpg", {"progressive": True}, True),
    "smaller than stored": (photo(50, 40), "jpg", {}, True),
    "one row": (photo(3, 1), "jpg", {}, True),
    "the largest whole one": (photo(260, 255), "jpg", {}, True),
    "decoded at a half": (photo(300, 256), "jpg", {}, False),
    "a strip": (photo(500, 100), "jpg", {}, False),
    "turned": (photo(125, 94), "jpg", {"exif": turned()}, False),
    "grey": (photo(125, 94).convert("L"), "jpg", {}, False),
    "for print": (photo(125, 94).convert("CMYK"), "jpg", {}, False),
    "png": (photo(125, 94), "png", {}, False),
    "transparent": (photo(125, 94).convert("RGBA"), "png", {}, False),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("kinds")
    made = {}
    for name, (image, suffix, options, _) in KINDS.items():
        made[name] = str(folder / f"{name}.{suffix}")
        image.save(made[name], **options)
    return made


@pytest.mark.parametrize("size", [56, 20])  # 20: a store larger than its views, which are oversampled
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda:0", marks=pytest.mark.gpu)])
def test_levels_are_those_of_the_host_in_every_thread(files: dict[str, str], device: str, size: int) -> None:
    known = Knowledge(("a", "b"), size, 64, NO_COLOURS, NO_COLOURS, "none")
    host, sight = HostSight(known), DeviceSight(known, torch.device(device))

    def look(names: list[str]) -> list[np.ndarray]:
        return [view.cpu().numpy() for view in sight.views([sight.decode_file(name) for name in names])]

    names = list(files.values())
    wanted = host.views([host.decode_file(name) for name in names])
    for found in map_in_order(look, [names] * 12, workers=6):
        for kind, expected, levels in zip(files, wanted, found, strict=True):
            assert levels.shape == (size, size, 3)
            assert levels.dtype == np.uint8
            assert np.abs(levels.astype(int) - expected).max() <= 2, kind


@pytest.mark.parametrize("kind", KINDS)
def test_only_whole_jpegs_are_left_to_the_gpu(files: dict[str, str], kind: str) -> None:
    image, _, _, whole = KINDS[kind]
    pixels = DeviceSight(KNOWN, torch.device("cpu")).decode_file(files[kind])
    assert (pixels.shape[:2] == image.size[::-1]) == (whole or min(image.size) <= KNOWN.stored_side)
    if whole:
        np.testing.assert_array_equal(pixels, np.asarray(Image.open(files[kind])))


@pytest.mark.parametrize("content", [b"", b"no image", b"\xff\xd8\xff\xe0", None])
def test_what_cannot_be_read_has_the_reason_of_the_host(files: dict[str, str], tmp_path: Path, content: bytes) -> None:
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(Path(files["wide"]).read_bytes()[:-900] if content is None else content)
    reasons = []
    for sight in (HostSight(KNOWN), DeviceSight(KNOWN, torch.device("cpu"))):
        with pytest.raises(OSError, match=r"broken\.jpg") as error:
            sight.decode_file(str(broken))
        reasons.append(str(error.value))
    assert reasons[0] == reasons[1]


def test_without_torchvisions_decoder_pillow_decodes(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchvision.io", None)
    host, device = HostSight(KNOWN), DeviceSight(KNOWN, torch.device("cpu"))
    np.testing.assert_array_equal(device.decode_file(files["wide"]), host.decode_file(files["wide"]))


def test_no_images_have_no_views() -> None:
    assert len(DeviceSight(KNOWN, torch.device("cpu")).views([])) == 0


def test_tables_agree(soc_run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    for number in range(40):
        photo(*((125, 94) if number % 3 else (80, 100)), seed=number).save(folder / f"{number:02d}.jpg")
    (folder / "17.jpg").write_bytes(b"no image")
    photos = sorted(map(str, folder.iterdir()))
    tables = []
    for sight in (soc_run.sight, DeviceSight(soc_run.uncalibrated, torch.device("cpu"))):
        monkeypatch.setattr(soc_run, "sight", sight)
        out = tmp_path / f"{type(sight).__name__}.csv"
        tally = predicting.predict_into(out, soc_run, photos, Questions(top=6), batch=8, workers=3)
        assert (tally.images, tally.unreadable) == (40, 1)
        with out.open(encoding="utf-8", newline="") as file:
            tables.append(list(csv.DictReader(file)))
    for host, device in zip(*tables, strict=True):
        assert host["path"] == device["path"]
        first, second = (
            dict(zip(row["names"].split("|"), map(float, row["probabilities"].split("|")), strict=True))
            for row in (host, device)
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
    views = run.sight.views([run.sight.decode_file(file) for file in files.values()])
    assert np.isfinite(run.logits(views)).all()
