"""EXIF metadata of photos in several formats, including missing and malformed values."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from PIL import Image
from PIL.TiffImagePlugin import IFDRational

from semifine.data.decode import FileReader, read_exif
from semifine.data.photo_metadata import capture_time, read_photo_metadata
from semifine.data.splits import burst_groups


def shoot(file: Path, subsecond: str | None = None, offset: str | None = None) -> Path:
    exif = Image.Exif()
    exif[0x0110] = "PC800"
    exif.get_ifd(0x8769)[0x9003] = "2024:05:06 07:08:09"
    if subsecond is not None:
        exif.get_ifd(0x8769)[0x9291] = subsecond
    if offset is not None:
        exif.get_ifd(0x8769)[0x9011] = offset
    exif.get_ifd(0x8825).update({1: "S", 2: (33.0, 30.0, 36.0), 3: "E", 4: (18.0, 15.0, 0.0)})
    Image.new("RGB", (20, 20)).save(file, exif=exif.tobytes())  # a TIFF would keep only a part of the object
    return file


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tif"])
def test_time_place_and_camera_of_every_format(tmp_path: Path, suffix: str) -> None:
    stats = read_photo_metadata(str(shoot(tmp_path / f"a.{suffix}")))
    assert stats.is_camera_time
    assert (stats.time, stats.camera) == (datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC), "PC800")
    assert stats.place == pytest.approx((-33.51, 18.25))


@pytest.mark.parametrize(
    ("written", "microseconds"),
    [
        *((None, 0), ("", 0), ("   ", 0), ("\0", 0), ("unknown", 0)),
        *(("5", 500_000), ("05", 50_000), ("05 ", 50_000), ("57\0", 570_000), ("123456789", 123_456)),
    ],
)
def test_subseconds_are_decimals_or_ignored(tmp_path: Path, written: str | None, microseconds: int) -> None:
    exif = read_exif(str(shoot(tmp_path / "a.jpg", written)))
    assert exif is not None
    assert capture_time(exif) == datetime(2024, 5, 6, 7, 8, 9, microseconds)


def test_blank_subseconds_do_not_split_a_burst(tmp_path: Path) -> None:
    shots = [shoot(tmp_path / "a.jpg", "  "), shoot(tmp_path / "b.jpg", "05"), shoot(tmp_path / "c.tif")]
    assert len(set(burst_groups(FileReader([str(shot) for shot in shots]), 1.0).groups.tolist())) == 1


def test_a_photo_without_exif_time_has_the_file_time(tmp_path: Path) -> None:
    Image.new("RGB", (20, 20)).save(tmp_path / "a.jpg")
    stats = read_photo_metadata(str(tmp_path / "a.jpg"))
    assert not stats.is_camera_time
    assert stats.is_zone_known, "modification times are in UTC"
    assert stats.time.timestamp() == int((tmp_path / "a.jpg").stat().st_mtime)


@pytest.mark.parametrize(
    ("written", "hours"), [("+02:00", 2), ("-0500", -5), ("Z\0", 0), ("   :  ", None), ("", None), (None, None)]
)
def test_utc_is_assumed_without_a_time_zone(tmp_path: Path, written: str | None, hours: int | None) -> None:
    stats = read_photo_metadata(str(shoot(tmp_path / "a.jpg", offset=written)))
    assert stats.is_zone_known == (hours is not None)
    assert stats.time == datetime(2024, 5, 6, 7, 8, 9, tzinfo=timezone(timedelta(hours=hours or 0)))


def test_the_time_of_a_clock_that_was_never_set_is_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0x9003] = "0001:01:01 00:00:00"
    Image.new("RGB", (20, 20)).save(file, exif=exif.tobytes())
    assert not read_photo_metadata(str(file)).is_camera_time
    assert len(burst_groups(FileReader([str(file)]), 1.0).groups) == 1


def test_coordinates_without_gps_fix_are_ignored(tmp_path: Path) -> None:
    file = tmp_path / "a.jpg"
    exif = Image.Exif()
    nowhere = (IFDRational(0, 0), IFDRational(0, 0), IFDRational(0, 0))
    exif.get_ifd(0x8825).update({1: "N", 2: nowhere, 3: "E", 4: nowhere})
    Image.new("RGB", (20, 20)).save(file, exif=exif.tobytes())
    assert read_photo_metadata(str(file)).place is None
