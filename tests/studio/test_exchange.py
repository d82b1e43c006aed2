"""Labels survive a round trip through each format, and labels that do not fit are reported."""

from __future__ import annotations

import json
import os
import string
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from semifine.data.boxes import Box
from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.label_log import LABEL, Event, LabelLog, current_labels
from semifine.errors import UserError
from semifine.studio.exchange import (
    FORMATS,
    PhotoTable,
    collect_labels,
    export_as,
    guess_format,
    import_text,
    needs_size,
    record_labels,
)
from semifine.studio.exchange_camtrap import read_camtrap, read_package
from semifine.studio.exchange_formats import Label, Skipped, read_coco, read_fiftyone, read_label_studio

NAMES = ("robin", "Żółtodzióbek", "=1+1", 'a "b", c')
TIME = "2026-05-06T07:08:09+00:00"


def catalog_of(paths: list[str], root: Path, boxes: list[Box | None] | None = None) -> Catalog:
    columns = np.array([[np.nan] * 4 if box is None else box[:4] for box in boxes]) if boxes else None
    unknown = [-1] * len(paths)
    reader = FileReader(paths, [root], boxes=columns)
    return Catalog("birds", NAMES, paths, unknown, [Split.UNLABELED] * len(paths), unknown, reader, root=root)


def photos_of(catalog: Catalog) -> PhotoTable:
    return PhotoTable(catalog, range(len(catalog)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos with names that formats have to quote, in several folders."""
    root = tmp_path_factory.mktemp("photos")
    for number, path in enumerate(PATHS):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40 + number, 30)).save(root / path, "PNG")
    return root


PATHS = ["1.jpg", "a/1.jpg", "a/2 %20.jpg", "b/Ö&?d=x#.png", "=2.jpg", "c/d/it's [3].jpeg"]


def as_text(format_name: str, content: bytes, folder: Path) -> str:
    """The text that the reader of a format gets for an exported file."""
    if format_name != "camtrapdp":
        return content.decode()
    (folder / "package.zip").write_bytes(content)
    return read_package(folder / "package.zip")


@pytest.mark.parametrize("format_name", FORMATS)
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_round_trip(format_name: str, folder: Path, tmp_path: Path, data: st.DataObject) -> None:
    photos = photos_of(catalog_of(PATHS, folder))
    chosen = data.draw(st.dictionaries(st.sampled_from(PATHS), st.sampled_from(NAMES)))
    events = [Event("Ada", path, LABEL, name, time=TIME) for path, name in chosen.items()]
    labels = collect_labels(current_labels(events).items(), photos, needs_size(format_name))
    text = as_text(format_name, export_as(format_name, labels, NAMES, photos), tmp_path)
    result = import_text(format_name, "file", text, photos, NAMES)
    assert {photos.path(row): name for row, name in result.labels} == chosen
    assert result.skipped == []


boxes = st.tuples(*[st.integers(0, 6), st.integers(0, 6), st.integers(2, 4), st.integers(2, 4)]).map(
    lambda sides: Box(*(side / 10 for side in sides))
)


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "csv"])
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=st.lists(st.tuples(st.none() | boxes, st.none() | st.sampled_from(NAMES)), min_size=6, max_size=6))
def test_round_trip_of_boxes(
    format_name: str, folder: Path, tmp_path: Path, drawn: list[tuple[Box | None, str | None]]
) -> None:
    photos = photos_of(catalog_of(PATHS, folder, [box for box, _ in drawn]))
    chosen = {path: name for path, (_, name) in zip(PATHS, drawn, strict=True) if name}
    events = [Event("Ada", path, LABEL, name, time=TIME) for path, name in chosen.items()]
    labels = collect_labels(current_labels(events).items(), photos, needs_size(format_name))
    text = as_text(format_name, export_as(format_name, labels, NAMES, photos), tmp_path)
    result = import_text(format_name, "file", text, photos, NAMES)
    assert {photos.path(row): name for row, name in result.labels} == chosen
    assert result.skipped == []


def test_unknown_photos_and_classes_are_reported(folder: Path) -> None:
    photos = photos_of(catalog_of(PATHS, folder))
    table = "path,label\n1.jpg,robin\nelsewhere/1.jpg,robin\nmissing.jpg,robin\na/2 %20.jpg,wren\n"
    result = import_text("csv", "labels.csv", table, photos, NAMES)
    assert [(photos.path(row), name) for row, name in result.labels] == [("1.jpg", "robin")]
    assert [item.path for item in result.skipped] == ["missing.jpg", "a/2 %20.jpg"]
    assert "'wren' is not a class" in result.skipped[1].reason


def test_paths_match_by_their_ends_and_ambiguous_names_do_not(folder: Path) -> None:
    photos = photos_of(catalog_of(["x/1.jpg", "y/1.jpg", "y/2.jpg"], folder))
    for path, row in (("x/1.jpg", 0), ("/data/birds/y/1.jpg", 1), ("2.jpg", 2), ("y\\1.jpg", 1), ("./x/1.jpg", 0)):
        assert photos.find(Label(path, "robin")) == row
    assert "2 photos have this name" in str(photos.find(Label("1.jpg", "robin")))
    assert "no such photo" in str(photos.find(Label("z/2.jpg", "robin"))), "another camera's photo with the same name"


def test_two_classes_of_one_photo_are_not_imported(folder: Path) -> None:
    photos = photos_of(catalog_of(PATHS, folder))
    result = import_text("csv", "labels.csv", "path,label\n1.jpg,robin\n1.jpg,=1+1\n", photos, NAMES)
    assert result.labels == []
    assert result.skipped == [Skipped("1.jpg", "the file gives it two classes")]


def test_a_box_labels_the_image_that_it_overlaps(folder: Path) -> None:
    photos = photos_of(catalog_of(["1.jpg"], folder, [Box(0.1, 0.1, 0.4, 0.4)]))
    assert photos.find(Label("1.jpg", "robin", Box(0.12, 0.1, 0.4, 0.4))) == 0
    assert "overlaps" in str(photos.find(Label("1.jpg", "robin", Box(0.6, 0.6, 0.3, 0.3))))


def test_label_studio_as_it_exports() -> None:
    """The layout of https://labelstud.io/guide/task_format."""
    rectangle = {"x": 50.0, "y": 5.0, "width": 12.0, "height": 10.0, "rotation": 0, "rectanglelabels": ["robin"]}
    results = [
        {"from_name": "tag", "to_name": "img", "type": "rectanglelabels", "value": rectangle},
        {"from_name": "tag", "to_name": "img", "type": "rectanglelabels", "value": {**rectangle, "rotation": 9}},
        {"from_name": "c", "to_name": "img", "type": "choices", "value": {"choices": ["robin", "wren"]}},
        {"from_name": "t", "to_name": "img", "type": "textarea", "value": {"text": ["note"]}},
    ]
    choice = {"type": "choices", "value": {"choices": ["wren"]}}
    canceled = {"was_cancelled": True, "result": [choice]}  # codespell:ignore cancelled
    task = {
        "id": 1,
        "data": {"note": "x", "photo": "https://example.com/opensource/1%20a.jpg"},
        "annotations": [{"completed_by": 10, "result": results}, canceled],
        "predictions": [{"result": [{"type": "choices", "value": {"choices": ["wren"]}}]}],
    }
    first, *others = read_label_studio("tasks.json", json.dumps([task]))
    assert first == Label("opensource/1 a.jpg", "robin", Box(0.5, 0.05, 0.12, 0.1))
    assert [type(entry) for entry in others] == [Skipped, Skipped]


def test_fiftyone_labels_without_classes_and_with_unlabeled_photos() -> None:
    text = json.dumps({"classes": None, "labels": {"a/1": "robin", "2": None, "3": {"label": "wren"}, "4": 7}})
    found = list(read_fiftyone("labels.json", text))
    assert found[:2] == [Label("a/1", "robin"), Label("3", "wren")]
    assert isinstance(found[2], Skipped)


def test_fiftyone_cannot_tell_suffixes_apart(folder: Path) -> None:
    photos = photos_of(catalog_of(["1.jpg", "1.png"], folder))
    with pytest.raises(UserError, match=r"cannot tell 1\.jpg and 1\.png apart"):
        export_as("fiftyone", [Label("1.jpg", "robin"), Label("1.png", "robin")], NAMES, photos)


def test_coco_boxes_without_the_size_of_the_photo_are_reported() -> None:
    images = [{"id": 1, "file_name": "1.jpg"}, {"id": "b", "file_name": "2.jpg", "width": 10, "height": 10}]
    annotations = [
        {"image_id": 1, "category_id": 3, "bbox": [1, 1, 2, 2]},
        {"image_id": "b", "category_id": 3, "bbox": [1, 1, 20, 2]},
        {"image_id": "b", "category_id": 3},
        {"image_id": 5, "category_id": 3},
    ]
    coco = {"images": images, "annotations": annotations, "categories": [{"id": 3, "name": "robin"}]}
    found = list(read_coco("coco.json", json.dumps(coco)))
    assert [type(entry) for entry in found] == [Skipped, Skipped, Label, Skipped]


def test_camtrap_observations_of_another_program() -> None:
    media = "mediaID,filePath,fileName\nm1,https://example.com/x,IMG 1.jpg\nm2,deployment/2.jpg,2.jpg\n"
    observations = (
        "observationID,mediaID,observationType,scientificName,classificationMethod,bboxX,bboxY,bboxWidth,bboxHeight\n"
        "o1,m1,animal,robin,human,,,,\no2,m2,animal,robin,,0.1,0.1,0.2,0.2\no3,m2,animal,robin,machine,,,,\n"
        "o4,m2,blank,,human,,,,\no5,,animal,robin,human,,,,\n"
    )
    text = json.dumps({"observations.csv": observations, "media.csv": media})
    found = list(read_camtrap("package", text))
    assert found[:2] == [Label("IMG 1.jpg", "robin"), Label("deployment/2.jpg", "robin", Box(0.1, 0.1, 0.2, 0.2))]
    assert all(isinstance(entry, Skipped) for entry in found[2:])
    assert len(found) == 5


def test_camtrap_package_names_the_person_and_the_method(folder: Path, tmp_path: Path) -> None:
    photos = photos_of(catalog_of(PATHS, folder))
    content = export_as("camtrapdp", [Label("a/1.jpg", "robin", None, None, "Ada", TIME)], NAMES, photos)
    (tmp_path / "package.zip").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "package.zip") as archive:
        assert set(archive.namelist()) == {"datapackage.json", "deployments.csv", "media.csv", "observations.csv"}
        observations = archive.read("observations.csv").decode()
        media = archive.read("media.csv").decode()
    assert "human,Ada,2026-05-06T07:08:09+00:00" in observations
    assert "a/1.jpg,a," in media


INVALID = ["", "no json", "[" * 3000, "null", "{}", "[{}]", '{"labels": 5}', '{"images": 1}', "1", '"text"', "\x00"]


@pytest.mark.parametrize("format_name", FORMATS)
@pytest.mark.parametrize("text", INVALID)
def test_other_files_give_one_sentence(format_name: str, text: str, folder: Path) -> None:
    with pytest.raises(UserError, match=r"^(file|observations\.csv)\b.*\.$"):
        import_text(format_name, "file", text, photos_of(catalog_of(PATHS, folder)), NAMES)


KEYS = (
    *("images", "annotations", "categories", "labels", "classes", "data", "image", "result", "value", "type", "bbox"),
    *("id", "image_id", "category_id", "file_name", "width", "height", "name", "label", "bounding_box", "choices"),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(string.ascii_letters, max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5),
    max_leaves=20,
)


@pytest.mark.parametrize("format_name", ["labelstudio", "coco", "fiftyone"])
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=values)
def test_any_json_is_imported_or_rejected(format_name: str, folder: Path, content: object) -> None:
    with suppress(UserError):
        import_text(format_name, "file", json.dumps(content), photos_of(catalog_of(PATHS, folder)), NAMES)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[LabelLog]:
    log = LabelLog(tmp_path / "labels.db")
    yield log
    log.close()


def test_imported_labels_do_not_replace_those_of_other_people(log: LabelLog) -> None:
    log.append([Event("Ada", "1.jpg", LABEL, "robin"), Event("Bo", "2.jpg", LABEL, "robin")])
    pairs = [("1.jpg", "wren"), ("2.jpg", "wren"), ("3.jpg", "wren")]
    assert record_labels(log, "Bo", pairs, "coco") == 3
    state = current_labels(log.events())
    assert state["1.jpg"].in_conflict
    assert (state["2.jpg"].label, state["3.jpg"].label) == ("wren", "wren")
    assert len({event.time for event in log.events()[2:]}) == 1, "one undo takes all of them back"
    assert record_labels(log, "Bo", pairs, "coco") == 0, "a second import adds nothing"


def test_the_format_of_a_file_is_guessed(tmp_path: Path) -> None:
    assert [guess_format(Path(name)) for name in ("a.csv", "a.tsv", "a.zip")] == ["csv", "csv", "camtrapdp"]
    assert guess_format(tmp_path) == "camtrapdp"
    with pytest.raises(UserError, match="--format"):
        guess_format(Path("a.json"))


def damaged_archive(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("observations.csv", "mediaID,observationType,scientificName\n" * 1000)
    content = bytearray(path.read_bytes())
    content[60:80] = b"\xff" * 20
    path.write_bytes(content)


def endless_table(path: Path) -> None:
    path.mkdir()
    (path / "observations.csv").symlink_to("/dev/zero")


def pipe_as_table(path: Path) -> None:
    path.mkdir()
    os.mkfifo(path / "observations.csv")


@pytest.mark.parametrize("write", [damaged_archive, endless_table, pipe_as_table, os.mkfifo])
def test_packages_made_to_harm_give_one_sentence(
    write: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("semifine.studio.exchange_camtrap.MAX_BYTES", 1 << 20)
    write(tmp_path / "package.zip")
    with pytest.raises(UserError, match="Cannot read the package"):
        read_package(tmp_path / "package.zip")
