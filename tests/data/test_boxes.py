"""Boxes of three formats, and photos that are cropped to them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semifine.config.autotune import median_side
from semifine.data import decode
from semifine.data.boxes import MARGIN, Box, Crop, crop_around, read_boxes
from semifine.data.catalog import Split
from semifine.data.crops import CropSettings, FileCrops, crop_catalog
from semifine.data.dataset import Dataset
from semifine.data.decode import FileReader, decode_image, try_decode_file
from semifine.data.decode_pool import PackedImages, Reasons, decode_in_processes, supports_processes
from semifine.data.sources import load_catalog
from semifine.data.sources.folder import Settings
from semifine.data.store import open_store
from semifine.errors import UserError

from .conftest import MakeCatalog, SaveImage

MEGADETECTOR = {
    "info": {"format_version": "1.3"},
    "detection_categories": {"1": "animal", "2": "person"},
    "images": [
        {
            "file": "site 1\\a.jpg",
            "detections": [
                {"category": "1", "conf": 0.3, "bbox": [0.1, 0.2, 0.3, 0.4]},
                {"category": "2", "conf": 0.99, "bbox": [0, 0, 1, 1]},
                {"category": "1", "conf": 0.8, "bbox": [0.5, 0.5, 0.504, 0.25]},
                {"category": "1", "conf": 0.19, "bbox": [0.5, 0.5, 0.1, 0.1]},
            ],
        },
        {"file": "./b.jpg", "detections": []},
        {"file": "c.jpg", "failure": "image access failure", "detections": None},
    ],
}
COCO = {
    "images": [
        {"id": 7, "file_name": "site 1/a.jpg", "width": 400, "height": 200},
        {"id": "x", "file_name": "b.jpg", "width": 100, "height": 100},
    ],
    "annotations": [
        {"id": 1, "image_id": 7, "category_id": 3, "bbox": [40, 40, 120, 80]},
        {"id": 2, "image_id": "x", "category_id": 0},
    ],
    "categories": [{"id": 0, "name": "empty"}, {"id": 3, "name": "Parus major"}],
}


def write(path: Path, content: Any) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_megadetector_boxes_of_animals_are_sorted_by_confidence(tmp_path: Path) -> None:
    table = read_boxes(write(tmp_path / "md.json", MEGADETECTOR))
    first, second = table.boxes["site 1/a.jpg"]
    assert second == (0.1, 0.2, 0.3, 0.4, 0.3)
    assert first == pytest.approx((0.5, 0.5, 0.5, 0.25, 0.8)), "rounded boxes are clipped to the photo"
    assert (table.boxes["b.jpg"], table.boxes["c.jpg"]) == ([], [])
    assert len(read_boxes(tmp_path / "md.json", min_confidence=0.1).boxes["site 1/a.jpg"]) == 3
    assert len(read_boxes(tmp_path / "md.json", min_confidence=0.5).boxes["site 1/a.jpg"]) == 1


def test_coco_boxes_are_divided_by_the_size_of_the_photo(tmp_path: Path) -> None:
    boxes = read_boxes(write(tmp_path / "coco.json", COCO)).boxes
    (box,) = boxes["site 1/a.jpg"]
    assert (boxes["b.jpg"], box.confidence) == ([], None)
    assert box[:4] == pytest.approx((0.1, 0.2, 0.3, 0.4))


def test_coco_category_animal_excludes_others(tmp_path: Path) -> None:
    boxes = [{"image_id": "x", "category_id": c, "bbox": [c, 0, 9, 9], "score": 0.1 * c} for c in (3, 4)]
    content = {**COCO, "annotations": boxes, "categories": [{"id": 3, "name": "animal"}, {"id": 4, "name": "person"}]}
    ((box,),) = [found for found in read_boxes(write(tmp_path / "c.json", content)).boxes.values() if found]
    assert box.x == pytest.approx(0.03)
    assert box.confidence == pytest.approx(0.3)
    assert not any(read_boxes(tmp_path / "c.json", min_confidence=0.5).boxes.values())


def test_table_holds_fractions_or_pixels(tmp_path: Path) -> None:
    header = "path;x;y;width;height;confidence\n"
    lines = "a.jpg;0;0;1;1;0.4\na.jpg;0.1;0.2;0.3;0.4;0.9\nb.jpg;;;;;\n"
    relative = read_boxes(write(tmp_path / "r.csv", header + lines))
    assert relative.boxes == {"a.jpg": [(0.1, 0.2, 0.3, 0.4, 0.9), (0, 0, 1, 1, 0.4)], "b.jpg": []}
    pixels = read_boxes(write(tmp_path / "p.csv", header + "a.jpg;40;40;120;80;\n"))
    (box,) = pixels.boxes["a.jpg"]
    assert pixels.as_fractions("a.jpg", box, (400, 200))[:4] == pytest.approx((0.1, 0.2, 0.3, 0.4))
    with pytest.raises(UserError, match=r"p\.csv: the box of a\.jpg is not inside the photo of 100 x 100 pixels"):
        pixels.as_fractions("a.jpg", box, (100, 100))


def changed(content: dict[str, Any], path: list[Any], value: Any) -> dict[str, Any]:
    """A copy of JSON content with another value at a path of keys."""
    copy: dict[str, Any] = json.loads(json.dumps(content))
    entry: Any = copy
    for key in path[:-1]:
        entry = entry[key]
    entry[path[-1]] = value
    return copy


DETECTION = ["images", 0, "detections", 0]
BBOX = [*DETECTION, "bbox"]
HEADER = "path,x,y,width,height\n"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", "{", "a.json is not valid JSON"),
        ("a.json", [1], "a.json has no key 'images'"),
        ("a.json", {"images": 3}, "a.json: images must be a list"),
        ("a.json", changed(MEGADETECTOR, BBOX, [0.1, 0.2, 0.3]), "images[0].detections[0].bbox must be 4 numbers"),
        ("a.json", changed(MEGADETECTOR, BBOX, None), "detections[0].bbox must be 4 numbers, not missing"),
        ("a.json", changed(MEGADETECTOR, BBOX, [9, 9, 80, 80]), "detections[0].bbox is not inside the photo, whose"),
        ("a.json", changed(MEGADETECTOR, BBOX, [0.1, 0.2, -0.3, 0.4]), "detections[0].bbox is not inside"),
        ("a.json", changed(MEGADETECTOR, [*DETECTION, "conf"], "high"), "detections[0].conf must be a number"),
        (
            "a.json",
            changed(MEGADETECTOR, [*DETECTION, "conf"], 10**400),
            "detections[0].conf must be a number, not 1000",
        ),
        (
            "a.json",
            changed(MEGADETECTOR, ["images", 1, "file"], 3),
            "images[1].file must be the path of a photo, not 3",
        ),
        ("a.json", changed(MEGADETECTOR, ["detection_categories"], {"1": "bird"}), "detection_categories must contain"),
        ("a.json", changed(COCO, ["images", 0, "width"], None), "images[0].width must be a number, not missing"),
        ("a.json", changed(COCO, ["images", 0, "height"], 0), "images[0].width and height must be at least"),
        ("a.json", changed(COCO, ["annotations", 0, "image_id"], 8), "annotations[0].image_id names no image"),
        ("a.json", changed(COCO, ["annotations", 0, "image_id"], [8]), "annotations[0].image_id must be a number or"),
        ("a.json", changed(COCO, ["annotations", 0, "bbox"], [40, 40, 400, 80]), "annotations[0].bbox is not inside"),
        ("a.csv", "path,x,y,width\n", "a.csv has no column 'height'"),
        ("a.csv", HEADER + "a.jpg,1,2,three,4\n", "a.csv: line 2, x, y, width and height must be 4 numbers"),
        ("a.csv", HEADER + "a.jpg,0.5,0.5,0.6,0.2\n", "a.csv: line 2 is not inside the photo"),
        ("a.csv", HEADER + ",0.5,0.5,0.6,0.2\n", "a.csv: line 2, path must be the path of a photo"),
        ("a.txt", "", "a.txt: boxes are read from a .json, .csv or .tsv file"),
    ],
)
def test_errors_name_file_and_key(tmp_path: Path, name: str, content: Any, message: str) -> None:
    with pytest.raises(UserError, match=re.escape(message)) as error:
        read_boxes(write(tmp_path / name, content))
    assert "\n" not in str(error.value)


def test_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"none\.json, the file of the boxes, does not exist"):
        read_boxes(tmp_path / "none.json")


fractions = st.floats(0, 1)


@given(x=fractions, y=fractions, w=fractions, h=fractions, width=st.integers(1, 3000), height=st.integers(1, 3000))
def test_crops_contain_the_box_and_its_margin(x: float, y: float, w: float, h: float, width: int, height: int) -> None:
    box = Box(x * (1 - w), y * (1 - h), w, h)
    left, upper, right, lower = crop_around(box, (width, height))
    assert 0 <= left < right <= width
    assert 0 <= upper < lower <= height
    extent = max(w * width, h * height) * (1 + 2 * MARGIN)
    for start, end, side, first, length in ((left, right, width, box.x, w), (upper, lower, height, box.y, h)):
        assert start <= first * side + 0.51
        assert end >= (first + length) * side - 0.51
        assert end - start == min(side, max(math.ceil(extent - 1e-6), 1)), "a square that is moved into the photo"


def scene(width: int = 400, height: int = 300) -> np.ndarray:
    """Noise, in which every region differs from every other."""
    small = np.random.default_rng(0).integers(0, 256, (height // 10, width // 10, 3), np.uint8)
    return small.repeat(10, 0).repeat(10, 1)


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "JPEG"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_boxes_refer_to_the_upright_photo(tmp_path: Path, orientation: int, kind: str) -> None:
    stored = {1: scene(), 3: scene()[::-1, ::-1], 6: np.rot90(scene(), 1), 8: np.rot90(scene(), -1)}[orientation]
    exif = Image.Exif()
    exif[0x0112] = orientation
    file = tmp_path / f"a.{kind}"
    Image.fromarray(np.ascontiguousarray(stored)).save(file, kind, exif=exif, quality=95, subsampling=0)
    box = Box(0.5, 0.2, 0.1, 0.2)
    left, upper, right, lower = crop_around(box, (400, 300))
    found = decode_image(file.read_bytes(), None, box)
    assert (found.original_height, found.original_width) == (lower - upper, right - left) == found.pixels.shape[:2]
    difference = np.abs(found.pixels.astype(int) - scene()[upper:lower, left:right])
    assert difference.mean() < (12 if kind == "JPEG" else 1e-9)
    assert decode.read_size(str(file)) == (400, 300)


def test_jpeg_is_decoded_at_the_size_that_the_crop_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.jpg"
    Image.fromarray(scene(1600, 1200)).save(file, quality=95)
    drafts = []
    plain = decode.to_rgb
    monkeypatch.setattr(decode, "to_rgb", lambda image: drafts.append(image.size) or plain(image))
    whole = decode_image(file.read_bytes(), 64)
    small = decode_image(file.read_bytes(), 64, Box(0.5, 0.5, 0.05, 0.05))
    large = decode_image(file.read_bytes(), 64, Box(0.3, 0.3, 0.3, 0.3))
    assert drafts == [(200, 150), (1600, 1200), (400, 300)]
    assert small.pixels.shape == large.pixels.shape == (64, 64, 3)
    assert (small.original_height, small.original_width) == (104, 104)
    assert len({whole.digest, small.digest, large.digest}) == 3, "caches must not confuse crops of one file"


def test_small_crops_are_not_enlarged(save_image: SaveImage) -> None:
    file = save_image("a.png", width=60, height=40)
    pixels = try_decode_file(Crop(str(file), Box(0.5, 0.5, 0.1, 0.1)), 32, full_size_pixels=10_000)
    assert not isinstance(pixels, str)
    assert pixels.shape == (8, 8, 3)
    large = try_decode_file(Crop(str(file), Box(0, 0, 1, 1)), 16, full_size_pixels=10_000)
    assert not isinstance(large, str)
    assert large.shape == (16, 24, 3), "crops are shrunk even if a whole photo may keep its size"


@pytest.mark.skipif(not supports_processes(), reason="this system has no memory for processes to share")
def test_processes_decode_the_same_crops(save_image: SaveImage) -> None:
    file = str(save_image("a.png", width=60, height=40))
    photos = [Crop(file, Box(0.5, 0.5, 0.1, 0.1, 0.75)), file, Crop(file, Box(0, 0, 0.2, 0.5))]

    def take(packed: PackedImages, reasons: Reasons) -> tuple[np.ndarray, list[int]]:
        assert reasons == [None] * 3
        return packed.pixels.copy(), packed.order

    options = {"shorter_side": 16, "full_size_pixels": 0, "group_size": 3, "workers": 1}
    ((pixels, order),) = decode_in_processes([photos], take, **options)
    expected = [try_decode_file(photos[index], 16) for index in order]
    np.testing.assert_array_equal(pixels, np.concatenate([np.ravel(image) for image in expected]))


def test_photos_are_cropped_to_their_most_confident_box(
    save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path
) -> None:
    paths = ["site 1/a.jpg", "b.jpg", "c.jpg", "d.jpg"]
    for path in paths:
        save_image(path, width=100, height=100)
    boxes = write(tmp_path / "md.json", MEGADETECTOR)
    settings = CropSettings(crops=str(boxes))
    catalog = crop_catalog(make_catalog(paths), settings)
    assert catalog.notes == ("crops: 1 of 4 photos have a box; the others are used whole",)
    assert [catalog.reader.read(row).shape for row in range(4)] == [(65, 65, 3), *[(100, 100, 3)] * 3]
    subset = crop_catalog(make_catalog(paths).take(np.array([1, 0])), settings)
    assert [subset.reader.read(row).shape for row in range(2)] == [(100, 100, 3), (65, 65, 3)]
    assert subset.notes == ("crops: 1 of 2 photos have a box; the others are used whole",)


def test_sizes_are_those_of_the_crops(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    """Image size is chosen from them."""
    for name in ("a.png", "b.png"):
        save_image(name, width=300, height=200)
    boxes = write(tmp_path / "b.csv", "path,x,y,width,height\na.png,50,50,40,20\n")
    catalog = crop_catalog(
        make_catalog(["b.png", "a.png", "none.png"]).take(np.array([1, 0, 2])), CropSettings(str(boxes))
    )
    assert [decode.read_row_size(catalog.reader, row) for row in range(3)] == [(52, 52), (300, 200), None]
    assert median_side(catalog.take(np.array([0]))) == 52


def test_paths_of_boxes_may_be_absolute(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    file = save_image("a.png", width=100, height=100)
    boxes = write(tmp_path / "b.csv", f"path,x,y,width,height\n{file},20,30,10,10\n")
    catalog = crop_catalog(make_catalog(["a.png"]), CropSettings(crops=str(boxes)))
    assert isinstance(catalog.reader, FileReader)
    box = catalog.reader.box(0)
    assert box is not None
    assert box[:4] == pytest.approx((0.2, 0.3, 0.1, 0.1))


def test_boxes_of_other_photos_are_an_error(save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path) -> None:
    save_image("a.png")
    boxes = write(tmp_path / "b.csv", "path,x,y,width,height\nphotos/a.png,0.2,0.3,0.1,0.1\n")
    with pytest.raises(UserError, match=r"b\.csv contains none of the photos \(it lists photos/a\.png, for example"):
        crop_catalog(make_catalog(["a.png"]), CropSettings(crops=str(boxes)))


def test_stores_of_other_boxes_are_other_stores(
    save_image: SaveImage, make_catalog: MakeCatalog, tmp_path: Path
) -> None:
    save_image("a.png", width=100, height=100)
    stores = []
    for box in ("0,0,0.1,0.1", "0,0,0.2,0.2", "0,0,0.1,0.1"):
        boxes = write(tmp_path / "b.csv", f"path,x,y,width,height\na.png,{box}\n")
        catalog = crop_catalog(make_catalog(["a.png"]), CropSettings(crops=str(boxes)))
        stores.append(open_store(catalog, 64, cache_dir=tmp_path / "cache"))
    whole = open_store(make_catalog(["a.png"]), 64, cache_dir=tmp_path / "cache")
    assert [int(store.width[0]) for store in (*stores, whole)] == [13, 26, 13, 64]
    assert ["taken from" in store.note for store in stores] == [False, False, True]
    assert len({store.digest.tobytes() for store in (*stores, whole)}) == 3


def test_folder_of_photos_takes_crops_as_a_setting(save_image: SaveImage, tmp_path: Path) -> None:
    lines = ["path,x,y,width,height"]
    for number in range(3):
        for name in ("robin", "wren"):
            path = f"labeled/{name}/{number}.png"
            save_image(f"photos/{path}", width=100, height=80)
            lines.append(path.replace("/", "\\") + ",50,40,10,10")
    save_image("photos/unlabeled/x.png", width=100, height=80)
    boxes = write(tmp_path / "boxes.csv", "\n".join(lines))
    settings = {"crops": str(boxes), "val_share": "0"}
    dataset = Dataset.open(str(tmp_path / "photos"), settings)
    notes: list[str] = []
    store = dataset.open_store(64, cache_dir=tmp_path / "cache", log=notes.append)
    assert "crops: 6 of 7 photos have a box; the others are used whole" in notes
    labeled = dataset.catalog.rows(Split.LABELED)
    assert {(int(store.height[row]), int(store.width[row])) for row in labeled} == {(13, 13)}
    plain = load_catalog(str(tmp_path / "photos"), Settings())
    assert plain.reader.read(0).shape == (80, 100, 3)


def test_crops_of_files_follow_the_order_of_files_and_boxes(tmp_path: Path) -> None:
    table = read_boxes(write(tmp_path / "md.json", MEGADETECTOR))
    files = ["photos/d.jpg", "photos/site 1/a.jpg", "photos/b.jpg"]
    photos = FileCrops(files, table, ["photos/"])
    d, first, second, b = photos
    assert photos.describe() == "crops: 1 of 3 photos have a box; the others are used whole"
    assert (d, b) == ("photos/d.jpg", "photos/b.jpg")
    assert isinstance(first, Crop)
    assert isinstance(second, Crop)
    assert (first.file, first.box.confidence, second.box.confidence) == ("photos/site 1/a.jpg", 0.8, 0.3)
    assert next(FileCrops(["./site 1/a.jpg"], table)) == ("./site 1/a.jpg", first.box)
    assert list(FileCrops(files, table, ["photos/site 1"])) == [d, first, second, b], "relative to a parent folder"
    files = ["photos/d.jpg", "photos/site 2/a.jpg"]
    with pytest.raises(UserError, match=r"md\.json contains none of the photos .* the folder given as PATH"):
        FileCrops(files, table, ["photos/site 1"])
