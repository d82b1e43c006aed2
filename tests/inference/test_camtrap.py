"""The tables of a Camtrap DP package are consistent and contain only known facts."""

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
from semifine.data.photo_metadata import PhotoMetadata, read_photo_metadata
from semifine.errors import UserError
from semifine.inference import camtrap
from semifine.inference.camtrap import check_folder, write_package

FILE_PATH = r"^(?=^[^./~])(^((?!\.{2}).)*$).*$"
"""Pattern of a filePath in the schema of Camtrap DP 1.0.1."""


def write_photo(file: Path, seconds: int, zone: str = "+02:00") -> None:
    """Writes a photo with the EXIF data of a camera trap."""
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
        write_photo(tmp_path / "card" / "ridge" / f"IMG {second}.jpg", second)
    Image.new("RGB", (30, 30), "green").save(tmp_path / "card" / "no time.png")
    names = json.loads((soc_folder / "classes.json").read_text())["names"]
    (tmp_path / "taxa.csv").write_text("species,kingdom\n" + "".join(f"{name},Animalia\n" for name in names))
    options = ["--out", "p.csv", "--camtrap-dp", "package", "--taxonomy", "taxa.csv", "--device", "cpu"]
    assert main(["predict", str(soc_folder), "card", *options, "--false-alarms", "0.01"]) == 0
    return tmp_path / "package"


def test_tables_are_consistent(package: Path) -> None:
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
            assert row["scientificName"] == "Animalia", "so short a run predicts no species with a high probability"
    described = json.loads((package / "datapackage.json").read_text())
    assert {"scientificName": "Animalia", "taxonRank": "kingdom"} in described["taxonomic"]
    assert [resource["path"] for resource in described["resources"]] == [
        "deployments.csv",
        "media.csv",
        "observations.csv",
    ]


def test_names_are_no_formulas_for_a_spreadsheet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_photo(tmp_path / "=card" / "=1+1.jpg", 3)
    record = {"name": "=cmd", "probability": 0.9, "is_ood": False, "candidates": ["=cmd"], "box_x": -0.5}
    write_package([{"path": str(tmp_path / "=card" / "=1+1.jpg"), **record}], tmp_path, "semifine")
    deployments, media, observations = (read(tmp_path / f"{n}.csv") for n in ("deployments", "media", "observations"))
    assert deployments[0]["deploymentID"] == media[0]["deploymentID"] == "'=card"
    assert deployments[0]["latitude"] == "-33.51", "numbers stay numbers"
    assert media[0]["filePath"] == (tmp_path / "=card" / "=1+1.jpg").as_uri(), "a path cannot be quoted"
    assert media[0]["fileName"] == "'=1+1.jpg"
    assert (observations[0]["scientificName"], observations[0]["bboxX"]) == ("'=cmd", "-0.5")


def test_times_and_places_come_from_exif(package: Path) -> None:
    deployments = {row["deploymentID"]: row for row in read(package / "deployments.csv")}
    ridge, other = deployments["card/ridge"], deployments["card"]
    assert (ridge["deploymentStart"], ridge["deploymentEnd"]) == (
        "2024-05-06T07:08:03+02:00",
        "2024-05-06T07:08:09+02:00",
    )
    assert (float(ridge["latitude"]), float(ridge["longitude"])) == (-33.51, 18.25)
    assert (ridge["cameraModel"], ridge["timestampIssues"]) == ("Reconyx-PC800", "false")
    assert (other["latitude"], other["timestampIssues"]) == ("", "true"), "unknown values stay empty"


def test_an_existing_package_is_not_overwritten(package: Path, soc_folder: Path) -> None:
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


def test_model_classes_are_not_a_taxonomic_class(tmp_path: Path) -> None:
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
    assert taxa_of(tmp_path / "c") == {"Parus major": None}, "the rank of the classes is unknown"


def test_a_package_in_the_folder_of_photos_has_relative_paths(tmp_path: Path) -> None:
    write_photo(tmp_path / "card" / "ridge" / "IMG 3.jpg", 3)
    write_photo(tmp_path / "other" / "IMG..4.jpg", 4)
    write_photo(tmp_path / "card" / ".hidden.jpg", 5)
    paths = [str(tmp_path / name) for name in ("card/ridge/IMG 3.jpg", "other/IMG..4.jpg", "card/.hidden.jpg")]
    notes = write_package([record(path, "Parus", "Parus", "genus") for path in paths], tmp_path / "card", "test")
    named = [row["filePath"] for row in read(tmp_path / "card" / "media.csv")]
    assert named[0] == "ridge/IMG 3.jpg"
    assert all(name.startswith("file:///") for name in named[1:])
    assert all(re.match(FILE_PATH, name) for name in named)
    assert any("2 photos are outside the package" in note for note in notes)
    with pytest.raises(UserError, match=r"contains datapackage\.json already"):
        check_folder(tmp_path / "card")


def test_a_missing_time_zone_is_reported(tmp_path: Path) -> None:
    write_photo(tmp_path / "ridge" / "a.jpg", 3)
    write_photo(tmp_path / "valley" / "b.jpg", 4, zone="")
    write_photo(tmp_path / "valley" / "c.jpg", 5)
    paths = [str(tmp_path / name) for name in ("ridge/a.jpg", "valley/b.jpg", "valley/c.jpg")]
    notes = write_package([record(path, "Parus", "Parus", "genus") for path in paths], tmp_path / "package", "test")
    deployments = read(tmp_path / "package" / "deployments.csv")
    assert [row["timestampIssues"] for row in deployments] == ["false", "true"]
    assert "deployments.csv: 1 deployment: the cameras record no time zone; UTC is assumed" in notes


def test_the_current_folder_is_a_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = tmp_path / "card"
    paths = ["a.jpg", "photos/b.jpg", "card/c.jpg"]
    for second, path in enumerate(paths):
        write_photo(card / path, second)
    monkeypatch.chdir(card)
    write_package([record(path, "Parus", "Parus", "genus") for path in paths], Path(), "test")
    deployments = read(card / "deployments.csv")
    assert [row["deploymentID"] for row in deployments] == [".", "photos", "card"]
    assert [row["locationName"] for row in deployments] == ["card", "photos", "card"]
    described = json.loads((card / "datapackage.json").read_text())
    assert (described["project"]["title"], described["name"]) == ("card", "card")


def test_media_types_are_image_types_for_any_suffix(tmp_path: Path) -> None:
    names = {"x.txt": "image/jpeg", "y.mpg": "image/png", "none": "image/webp", "z.png": "image/png"}
    for name, kind in names.items():
        Image.new("RGB", (20, 20)).save(tmp_path / name, kind.removeprefix("image/"))
    paths = [*names, "gone.bin"]
    write_package([record(str(tmp_path / path), "Parus", "Parus", "genus") for path in paths], tmp_path, "test")
    assert [row["fileMediatype"] for row in read(tmp_path / "media.csv")] == [*names.values(), "image/jpeg"]


def test_missing_fields_are_printed_even_with_quiet(
    onnx_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_photo(tmp_path / "a.jpg", 3)
    options = ["--out", str(tmp_path / "p.csv"), "--camtrap-dp", str(tmp_path / "package"), "--quiet"]
    assert main(["predict", str(onnx_file), str(tmp_path / "a.jpg"), *options]) == 0
    assert "contributors, project and licenses have to be filled in" in capsys.readouterr().err


def test_a_package_is_complete_or_absent(
    soc_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for second in (3, 9):
        write_photo(tmp_path / "card" / f"{second}.jpg", second)
    card, package = tmp_path / "card", tmp_path / "package"
    command = ["predict", str(soc_folder), str(card), "--out", str(tmp_path / "p.csv"), "--device", "cpu"]
    command += ["--camtrap-dp", str(package), "--resume"]

    def stop(file: str) -> PhotoMetadata:
        if file.endswith("9.jpg"):
            raise KeyboardInterrupt
        return read_photo_metadata(file)

    with monkeypatch.context() as patched:
        patched.setattr(camtrap, "read_photo_metadata", stop)
        assert main(command) == 130
    assert "repeat the command with --resume" in capsys.readouterr().err
    assert not list(package.iterdir())
    assert main(command) == 0
    assert len(read(package / "media.csv")) == 2
