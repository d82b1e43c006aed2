"""A Camtrap DP package of predictions: its tables refer to each other and say only what is known."""

from __future__ import annotations

import csv
import json
import re
from datetime import datetime
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from semifine.cli.main import main
from semifine.data.photo_metadata import PhotoMetadata, photo_metadata
from semifine.errors import UserError
from semifine.inference import camtrap
from semifine.inference.camtrap import check_folder, write_package

FILE_PATH = r"^(?=^[^./~])(^((?!\.{2}).)*$).*$"
"""What the schema of Camtrap DP 1.0.1 wants of a filePath."""


def shoot(file: Path, seconds: int, zone: str = "+02:00") -> None:
    """A photo with time, zone, place and camera, as a camera trap writes them."""
    file.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x010F], exif[0x0110] = "Reconyx", "PC800"
    exif.get_ifd(0x8769).update({0x9003: f"2024:05:06 07:08:{seconds:02d}", 0x9011: zone})
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (18.0, 15.0, 0.0)})
    pixels = np.random.default_rng(seconds).integers(0, 256, (40, 50, 3), np.uint8)
    Image.fromarray(pixels).save(file, exif=exif)


def read(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def package(soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for second in (3, 9):
        shoot(tmp_path / "card" / "ridge" / f"IMG {second}.jpg", second)
    Image.new("RGB", (30, 30), "green").save(tmp_path / "card" / "no time.png")
    names = json.loads((soc_folder / "classes.json").read_text())["names"]
    (tmp_path / "taxa.csv").write_text("species,kingdom\n" + "".join(f"{name},Animalia\n" for name in names))
    options = ["--out", "p.csv", "--camtrap-dp", "package", "--taxonomy", "taxa.csv", "--device", "cpu"]
    assert main(["predict", str(soc_folder), "card", *options, "--false-alarms", "0.01"]) == 0
    return tmp_path / "package"


def test_the_tables_fit_together(package: Path) -> None:
    deployments, media, observations = (read(package / f"{n}.csv") for n in ("deployments", "media", "observations"))
    assert {row["deploymentID"] for row in media} == {row["deploymentID"] for row in deployments}
    assert [row["mediaID"] for row in observations] == [row["mediaID"] for row in media]
    photos = package.parent / "card"
    assert [row["filePath"] for row in media] == [
        (photos / name).as_uri() for name in ("no time.png", "ridge/IMG 3.jpg", "ridge/IMG 9.jpg")
    ], "the photos are not in the package"
    for row in observations:
        assert row["classificationMethod"] == "machine"
        assert row["classifiedBy"].startswith("semifine")
        assert datetime.fromisoformat(row["classificationTimestamp"]).tzinfo is not None
        if row["observationType"] == "animal":
            assert 0.9 <= float(row["classificationProbability"]) <= 1
            assert row["scientificName"] == "Animalia", "so short a run is sure of no species"
    described = json.loads((package / "datapackage.json").read_text())
    assert {"scientificName": "Animalia", "taxonRank": "kingdom"} in described["taxonomic"]
    assert [resource["path"] for resource in described["resources"]] == [
        "deployments.csv",
        "media.csv",
        "observations.csv",
    ]


def test_times_and_places_are_those_of_the_camera(package: Path) -> None:
    deployments = {row["deploymentID"]: row for row in read(package / "deployments.csv")}
    ridge, other = deployments["card/ridge"], deployments["card"]
    assert (ridge["deploymentStart"], ridge["deploymentEnd"]) == (
        "2024-05-06T07:08:03+02:00",
        "2024-05-06T07:08:09+02:00",
    )
    assert (float(ridge["latitude"]), float(ridge["longitude"])) == (-33.51, 18.25)
    assert (ridge["cameraModel"], ridge["timestampIssues"]) == ("Reconyx-PC800", "false")
    assert (other["latitude"], other["timestampIssues"]) == ("", "true"), "what is not known is not invented"


def test_a_folder_with_something_in_it_is_left_alone(package: Path, soc_folder: Path) -> None:
    options = ["--out", "q.csv", "--camtrap-dp", "package", "--device", "cpu"]
    assert main(["predict", str(soc_folder), "card", *options]) == 2
    assert not (package.parent / "q.csv").exists()


def record(path: str, name: str, taxon: str, rank: str) -> dict[str, object]:
    return {
        "path": path,
        "name": name,
        "probability": 0.9,
        "taxon": taxon,
        "rank": rank,
        "taxon_probability": 0.95,
        "is_ood": False,
        "candidates": [name],
    }


def taxa_of(package: Path) -> dict[str, str | None]:
    described = json.loads((package / "datapackage.json").read_text())
    return {taxon["scientificName"]: taxon.get("taxonRank") for taxon in described["taxonomic"]}


def test_the_classes_of_a_model_are_no_taxonomic_class(tmp_path: Path) -> None:
    records = [record("a.jpg", "Parus major", "Parus major", "class"), record("b.jpg", "Parus major", "Parus", "genus")]
    write_package(records, tmp_path / "a", "test", ["class", "genus"])
    assert taxa_of(tmp_path / "a") == {"Parus major": None, "Parus": "genus"}
    records = [
        record("a.jpg", "Parus major", "Parus major", "Species"),
        record("b.jpg", "Parus major", "Aves", "class"),
    ]
    write_package(records, tmp_path / "b", "test", ["Species", "class"])
    assert taxa_of(tmp_path / "b") == {"Parus major": "species", "Aves": "class"}
    write_package(records[:1], tmp_path / "c", "test")
    assert taxa_of(tmp_path / "c") == {"Parus major": None}, "nobody said what the classes are"


def test_a_package_beside_its_photos_names_them_by_their_place_in_it(tmp_path: Path) -> None:
    shoot(tmp_path / "card" / "ridge" / "IMG 3.jpg", 3)
    shoot(tmp_path / "other" / "IMG..4.jpg", 4)
    shoot(tmp_path / "card" / ".hidden.jpg", 5)
    paths = [str(tmp_path / name) for name in ("card/ridge/IMG 3.jpg", "other/IMG..4.jpg", "card/.hidden.jpg")]
    gaps = write_package([record(path, "Parus", "Parus", "genus") for path in paths], tmp_path / "card", "test")
    named = [row["filePath"] for row in read(tmp_path / "card" / "media.csv")]
    assert named[0] == "ridge/IMG 3.jpg"
    assert all(name.startswith("file:///") for name in named[1:])
    assert all(re.match(FILE_PATH, name) for name in named)
    assert any("2 photos are not in the package" in gap for gap in gaps)
    with pytest.raises(UserError, match=r"holds datapackage\.json already"):
        check_folder(tmp_path / "card")


def test_a_camera_that_gives_no_time_zone_is_told_of(tmp_path: Path) -> None:
    shoot(tmp_path / "ridge" / "a.jpg", 3)
    shoot(tmp_path / "valley" / "b.jpg", 4, zone="")
    shoot(tmp_path / "valley" / "c.jpg", 5)
    paths = [str(tmp_path / name) for name in ("ridge/a.jpg", "valley/b.jpg", "valley/c.jpg")]
    gaps = write_package([record(path, "Parus", "Parus", "genus") for path in paths], tmp_path / "package", "test")
    deployments = read(tmp_path / "package" / "deployments.csv")
    assert [row["timestampIssues"] for row in deployments] == ["false", "true"]
    assert "deployments.csv: 1 deployment: the cameras give no time zone; UTC is assumed" in gaps


def test_the_current_folder_is_a_deployment_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "card"
    paths = ["a.jpg", "photos/b.jpg", "card/c.jpg"]
    for second, path in enumerate(paths):
        shoot(card / path, second)
    monkeypatch.chdir(card)
    write_package([record(path, "Parus", "Parus", "genus") for path in paths], Path(), "test")
    deployments = read(card / "deployments.csv")
    assert [row["deploymentID"] for row in deployments] == [".", "photos", "card"]
    assert [row["locationName"] for row in deployments] == ["card", "photos", "card"]
    described = json.loads((card / "datapackage.json").read_text())
    assert (described["project"]["title"], described["name"]) == ("card", "card")


def test_every_medium_is_an_image_whatever_its_name(tmp_path: Path) -> None:
    names = {"x.txt": "image/jpeg", "y.mpg": "image/png", "none": "image/webp", "z.png": "image/png"}
    for name, kind in names.items():
        Image.new("RGB", (20, 20)).save(tmp_path / name, kind.removeprefix("image/"))
    paths = [*names, "gone.bin"]
    write_package([record(str(tmp_path / path), "Parus", "Parus", "genus") for path in paths], tmp_path, "test")
    assert [row["fileMediatype"] for row in read(tmp_path / "media.csv")] == [*names.values(), "image/jpeg"]


def test_what_is_to_be_filled_in_is_said_even_when_quiet(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shoot(tmp_path / "a.jpg", 3)
    options = ["--out", str(tmp_path / "p.csv"), "--camtrap-dp", str(tmp_path / "package"), "--quiet"]
    assert main(["predict", str(onnx_file), str(tmp_path / "a.jpg"), *options]) == 0
    assert "contributors, project and licenses are yours to fill in" in capsys.readouterr().err


def test_a_package_is_whole_or_absent(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for second in (3, 9):
        shoot(tmp_path / "card" / f"{second}.jpg", second)
    card, package = tmp_path / "card", tmp_path / "package"
    command = ["predict", str(soc_folder), str(card), "--out", str(tmp_path / "p.csv"), "--device", "cpu"]
    command += ["--camtrap-dp", str(package), "--resume"]

    def stop(file: str) -> PhotoMetadata:
        if file.endswith("9.jpg"):
            raise KeyboardInterrupt
        return photo_metadata(file)

    with monkeypatch.context() as patched:
        patched.setattr(camtrap, "photo_metadata", stop)
        assert main(command) == 130
    assert "repeat the command with --resume" in capsys.readouterr().err
    assert not list(package.iterdir())
    assert main(command) == 0
    assert len(read(package / "media.csv")) == 2
