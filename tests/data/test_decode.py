from __future__ import annotations

import io
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import EpsImagePlugin, Image

from semifine.data import decode, rgb
from semifine.data.decode import MISSING, FileReader, decode_array, decode_image, read_exif, read_size
from semifine.data.decode_pool import decode_in_processes
from semifine.data.image_files import IMAGE_SUFFIXES
from semifine.data.rgb import to_rgb

from .conftest import SaveImage

SCENE = np.zeros((30, 40, 3), np.uint8)
SCENE[:15, :20] = (250, 20, 20)  # red, upper left
SCENE[15:, 20:] = (20, 20, 250)  # blue, lower right
BLACK = Image.new("RGB", (8, 8))


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *(("PNG", {}), ("JPEG", {"quality": 95}), ("WEBP", {"lossless": True})),
        *(("TIFF", {}), ("TIFF", {"compression": "tiff_lzw"}), ("TIFF", {"save_all": True, "append_images": [BLACK]})),
    ],
)
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, kind: str, options: dict[str, object]) -> None:
    # The pixels as a rotated camera stores them; decoding must restore the scene.
    stored = {
        1: SCENE,
        2: SCENE[:, ::-1],
        3: SCENE[::-1, ::-1],
        4: SCENE[::-1],
        5: SCENE.transpose(1, 0, 2),
        6: np.rot90(SCENE, 1),
        7: np.rot90(SCENE, 2).transpose(1, 0, 2),
        8: np.rot90(SCENE, -1),
    }[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encode(Image.fromarray(np.ascontiguousarray(stored)), kind, exif=exif, **options)
    decoded = decode_image(data, None)
    assert decoded.pixels.shape == SCENE.shape
    assert np.abs(decoded.pixels.astype(int) - SCENE).mean() < (8 if kind == "JPEG" else 1e-9)
    assert (decoded.original_height, decoded.original_width) == (30, 40)
    assert decode_image(data, 15).pixels.shape == (15, 20, 3)


@pytest.mark.filterwarnings("ignore:Corrupt EXIF")
def test_broken_exif_does_not_matter() -> None:
    data = encode(Image.fromarray(SCENE), "JPEG", exif=b"Exif\0\0MM\0*\0\0\xff\xffrubbish", quality=95)
    assert decode_image(data, None).pixels.shape == (30, 40, 3)


@pytest.mark.parametrize(
    ("mode", "kind"),
    [
        *(("1", "PNG"), ("L", "PNG"), ("LA", "PNG"), ("P", "PNG"), ("RGBA", "PNG"), ("P", "GIF"), ("RGB", "WEBP")),
        *(("CMYK", "JPEG"), ("CMYK", "TIFF"), ("YCbCr", "JPEG"), ("LAB", "TIFF"), ("RGB", "BMP"), ("L", "JPEG")),
    ],
)
def test_every_mode_becomes_rgb(mode: str, kind: str) -> None:
    gray = np.full((20, 24, 3), 255, np.uint8)
    gray[:10] = 0
    source = Image.fromarray(gray)
    if mode == "LAB":
        lab = np.zeros((20, 24, 3), np.uint8)
        lab[10:, :, 0] = 255  # lightness; no color
        source = Image.frombytes("LAB", (24, 20), lab.tobytes())
    else:
        source = source.convert(mode)
    pixels = decode_image(encode(source, kind), None).pixels
    assert pixels.dtype == np.uint8
    np.testing.assert_allclose(pixels.astype(int), gray.astype(int), atol=12)


def test_transparent_parts_are_white() -> None:
    drawn = np.zeros((4, 4, 4), np.uint8)
    drawn[:, :, 0] = 200
    drawn[:2, :, 3] = 255
    pixels = decode_image(encode(Image.fromarray(drawn), "PNG"), None).pixels
    assert pixels[0, 0].tolist() == [200, 0, 0]
    assert pixels[3, 3].tolist() == [255, 255, 255]


def test_transparent_palette_color_is_white() -> None:
    image = Image.new("P", (2, 2), 0)
    image.putpalette([10, 20, 30, 40, 50, 60])
    image.putpixel((1, 0), 1)
    pixels = decode_image(encode(image, "PNG", transparency=0), None).pixels
    assert pixels[0, 0].tolist() == [255, 255, 255]
    assert pixels[0, 1].tolist() == [40, 50, 60]


def test_sixteen_bit_gray_is_scaled_by_its_format() -> None:
    deep = np.array([[0, 257 * 100], [257 * 200, 65535]], np.uint16)
    pixels = decode_image(encode(Image.fromarray(deep), "PNG"), None).pixels
    assert pixels[:, :, 0].tolist() == [[0, 100], [200, 255]]
    assert (pixels[:, :, 0] == pixels[:, :, 2]).all()
    as_int = Image.fromarray(deep.astype(np.int32))
    assert np.asarray(to_rgb(as_int))[:, :, 1].tolist() == [[0, 100], [200, 255]]
    as_float = Image.fromarray(np.array([[0.0, 0.5, 1.0, np.nan]], np.float32))
    assert np.asarray(to_rgb(as_float))[0, :, 1].tolist() == [0, 128, 255, 0]


@pytest.mark.parametrize(("width", "height"), [(400, 300), (300, 400), (401, 299)])
def test_shrinks_to_the_shorter_side_and_keeps_the_shape(width: int, height: int) -> None:
    decoded = decode_image(encode(Image.new("RGB", (width, height)), "JPEG"), 64)
    assert min(decoded.pixels.shape[:2]) == 64
    assert decoded.pixels.shape[1] / decoded.pixels.shape[0] == pytest.approx(width / height, abs=0.02)
    assert (decoded.original_height, decoded.original_width) == (height, width)


def test_never_enlarges() -> None:
    assert decode_image(encode(Image.fromarray(SCENE), "PNG"), 500).pixels.shape == (30, 40, 3)


def test_extreme_shapes_keep_their_middle() -> None:
    strip = np.zeros((10, 1000, 3), np.uint8)
    strip[:, 480:520] = 255
    kept = decode_image(encode(Image.fromarray(strip), "PNG"), 10).pixels
    assert kept.shape == (10, 40, 3)
    assert (kept == 255).all()
    assert decode_image(encode(Image.fromarray(strip.transpose(1, 0, 2).copy()), "PNG"), 5).pixels.shape == (20, 5, 3)
    assert decode_image(encode(Image.new("RGB", (1, 1)), "PNG"), 5).pixels.shape == (1, 1, 3)


def test_decoding_at_reduced_size_looks_the_same() -> None:
    random = np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (15, 20, 3), np.uint8))
    data = encode(coarse.resize((1600, 1200), Image.Resampling.BICUBIC), "JPEG", quality=95)
    quick = decode_image(data, 60).pixels.astype(int)
    slow = decode_array(decode_image(data, None).pixels, 60).pixels.astype(int)
    assert np.abs(quick - slow).mean() < 2


def test_shrinking_is_antialiased() -> None:
    stripes = np.zeros((256, 256, 3), np.uint8)
    stripes[:, ::2] = 255
    assert decode_array(stripes, 32).pixels.std() < 10  # without antialiasing it would be black or white


@pytest.mark.parametrize("content", [b"", b"not an image", b"\xff\xd8\xff\xe0", b"\x89PNG\r\n\x1a\n" + b"\0" * 40])
def test_unreadable_files_are_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "broken one.jpg").write_bytes(content)
    with pytest.raises(OSError, match=r"broken one\.jpg"):
        FileReader(["broken one.jpg"], [tmp_path]).read(0)


def test_truncated_and_missing_files_are_named(tmp_path: Path, save_image: SaveImage) -> None:
    file = save_image("a.jpg", 200, 200)
    file.write_bytes(file.read_bytes()[:3000])
    reader = FileReader(["a.jpg", "b.jpg"], [tmp_path])
    with pytest.raises(OSError, match=r"a\.jpg cannot be read"):
        reader.read(0)
    with pytest.raises(OSError, match=r"b\.jpg"):
        reader.read(1)


def test_decompression_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, save_image: SaveImage) -> None:
    save_image("bomb.png", 100, 100)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with pytest.raises(OSError, match=r"bomb\.png.*decompression bomb"):
        FileReader(["bomb.png"], [tmp_path]).read(0)


def test_only_regular_files_of_a_data_set_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.jpg")
    reader = FileReader(["pipe.jpg"], [tmp_path])
    with pytest.raises(OSError, match=r"pipe\.jpg is not a regular file"):
        reader.read(0)
    assert read_size(reader.file(0)) is None
    assert read_exif(reader.file(0)) is None


def test_a_named_pipe_given_as_a_file_is_read(tmp_path: Path, save_image: SaveImage) -> None:
    """Shells pass the output of a program as a named pipe."""
    pipe, image = tmp_path / "pipe", save_image("a.png")
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(image.read_bytes()))
    writer.start()
    found = decode.try_decode_file(str(pipe), 8)
    writer.join()
    assert not isinstance(found, str)
    assert found.shape == (8, 10, 3)


HOLIDAY = b"""%!PS-Adobe-3.0 EPSF-3.0
%%BoundingBox: 0 0 8 8
%%EndComments
showpage
%%EOF
"""


@pytest.fixture
def ghostscript(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A program ``gs`` that leaves a file; returns the file."""
    started = tmp_path / "started"
    program = tmp_path / "bin" / "gs"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ntouch {started}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for the program once
    return started


def test_pillow_starts_ghostscript(ghostscript: Path) -> None:
    """Verifies that the next test can fail."""
    with pytest.raises(OSError, match=r".*"), Image.open(io.BytesIO(HOLIDAY)) as image:
        image.load()
    assert ghostscript.exists()


def test_a_photo_starts_no_program(ghostscript: Path, tmp_path: Path) -> None:
    photo = tmp_path / "holiday.jpg"
    photo.write_bytes(HOLIDAY)
    with pytest.raises(OSError, match=r"holiday\.jpg cannot be read as an image \(not a supported image format\)"):
        FileReader([str(photo)]).read(0)
    assert "not a supported image format" in str(decode.try_decode_file(str(photo), 8))
    found = decode_in_processes(
        [[str(photo)]], lambda _, reasons: reasons, shorter_side=8, full_size_pixels=64, group_size=1, workers=1
    )
    assert "not a supported image format" in str(list(found))
    assert (read_size(str(photo)), read_exif(str(photo)), decode.read_media_type(str(photo))) == (None, None, None)
    assert not ghostscript.exists()


def test_images_are_opened_in_one_place() -> None:
    """``Image.open`` without a list of formats could start a program."""
    sources = Path(decode.__file__).parents[1]
    found = [file.name for file in sources.rglob("*.py") if "Image.open(" in file.read_text(encoding="utf-8")]
    assert found == ["decode.py"]
    assert Path(decode.__file__).read_text(encoding="utf-8").count("Image.open(") == 1


def test_every_documented_suffix_has_a_format() -> None:
    Image.init()
    formats = {Image.EXTENSION.get(suffix) for suffix in IMAGE_SUFFIXES} - {None}
    assert formats <= {*decode.FORMATS}
    assert {*decode.FORMATS} - {"HEIF"} <= formats | {"AVIF"}


def test_huge_files_are_not_read(tmp_path: Path) -> None:
    photo = tmp_path / "x.jpg"
    with photo.open("wb") as file:
        file.truncate(40 << 30)  # takes no space on the disk
    with pytest.raises(OSError, match=r"x\.jpg cannot be read as an image \(it is larger than 513 MB\)"):
        FileReader([str(photo)]).read(0)
    assert (read_size(str(photo)), read_exif(str(photo))) == (None, None)


def test_endless_files_are_unreadable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode, "MAX_FILE_BYTES", 3 << 20)
    assert decode.try_decode_file("/dev/zero", 8) == "/dev/zero cannot be read as an image (it is larger than 3 MB)"


@pytest.mark.parametrize("mode", ["RGBA", "LA", "PA", "P", "LAB", "I", "F", "I;16", "I;16B"])
def test_conversion_in_strips_changes_no_pixel(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).integers(0, 256, (30, 40, 4), np.uint8)
    if mode in ("I", "F"):
        image = Image.fromarray(values.view(np.int32 if mode == "I" else np.float32)[..., 0])
    elif mode.startswith("I;16"):
        image = Image.frombytes(mode, (20, 30), values[:, :10].tobytes())
    elif mode in ("P", "PA"):
        image = Image.fromarray(values[..., :3]).convert("P")
        image.info["transparency"] = 7
        image = image.convert(mode)
    else:
        image = Image.frombytes(mode, (40, 30), values[..., : len(Image.new(mode, (1, 1)).getbands())].tobytes())
    whole = np.asarray(to_rgb(image))
    monkeypatch.setattr(rgb, "STRIP_PIXELS", 7 * 40)
    assert np.array_equal(np.asarray(to_rgb(image)), whole)


def test_exhausted_memory_names_the_file(
    save_image: SaveImage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_image("a.png")

    def exhaust(_: Image.Image) -> Image.Image:
        raise MemoryError

    monkeypatch.setattr(decode, "to_rgb", exhaust)
    with pytest.raises(OSError, match=r"a\.png cannot be read as an image \(there is not enough memory to decode it\)"):
        FileReader(["a.png"], [tmp_path]).read(0)


def test_fingerprint_follows_the_file(tmp_path: Path, save_image: SaveImage) -> None:
    file = save_image("a.png")
    reader = FileReader(["a.png", "none.png"], [tmp_path])
    first = reader.fingerprint()
    assert first[1] == MISSING
    assert first == reader.fingerprint()
    os.utime(file, ns=(1, 1))
    assert reader.fingerprint()[0] != first[0]


def test_rows_may_be_in_different_folders(tmp_path: Path, save_image: SaveImage) -> None:
    save_image("one/x.png", width=5)
    save_image("two/x.png", width=6)
    reader = FileReader(["x.png", "x.png"], [tmp_path / "one", tmp_path / "two"], np.array([1, 0], np.uint8))
    assert [reader.read(row).shape[1] for row in (0, 1)] == [6, 5]


def test_arrays_of_the_wrong_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="uint8"):
        decode_array(np.zeros((4, 4), np.uint8), None)


def test_heic_photos_are_read(tmp_path: Path) -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    pixels = np.full((60, 90, 3), (200, 40, 90), np.uint8)
    file = tmp_path / "IMG_0001.HEIC"
    pillow_heif.from_pillow(Image.fromarray(pixels)).save(file)
    found = FileReader([str(file)]).read(0)
    assert found.shape == (60, 90, 3)
    assert np.abs(found.astype(int) - pixels).max() < 12


def test_a_missing_heic_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    decode._register_heif.cache_clear()
    (tmp_path / "a.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(100))
    with pytest.raises(OSError, match=r"pip install 'semifine\[heic\]'"):
        FileReader([str(tmp_path / "a.heic")]).read(0)
    decode._register_heif.cache_clear()


def test_the_first_picture_of_an_animation_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (20, 10), color) for color in ("red", "blue")]
    frames[0].save(tmp_path / "a.GIF", save_all=True, append_images=frames[1:])
    assert FileReader([str(tmp_path / "a.GIF")]).read(0)[5, 5].tolist() == [255, 0, 0]
