"""What a camera wrote into a photo: when, where and with what it was taken."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from PIL import Image

from semifine.data.decode import read_exif

_MODEL, _MAKER, _EXIF, _GPS = 0x0110, 0x010F, 0x8769, 0x8825
_TAKEN, _OFFSET, _SERIAL, _SUBSECOND = 0x9003, 0x9011, 0xA431, 0x9291

FIRST_YEAR = 1900
"""A clock that was never set says 0001."""


@dataclass(frozen=True)
class PhotoMetadata:
    """Where a photo does not say its time, that of the file stands for it."""

    time: datetime
    """With a time zone: that of the camera, else UTC."""
    is_camera_time: bool
    is_zone_known: bool
    """Whether UTC is more than an assumption: the camera wrote its zone, or the time is that of the file."""
    place: tuple[float, float] | None
    """Latitude and longitude in degrees."""
    camera: str


def photo_metadata(file: str) -> PhotoMetadata:
    exif = read_exif(file) or Image.Exif()
    taken = taken_at(exif)
    modified = datetime.fromtimestamp(os.stat(file).st_mtime if os.path.exists(file) else 0, UTC)
    zone = UTC if taken is None else _zone(exif)
    time = modified if taken is None else taken.replace(tzinfo=zone or UTC)
    return PhotoMetadata(
        time=time.replace(microsecond=0),
        is_camera_time=taken is not None,
        is_zone_known=zone is not None,
        place=_place(exif),
        camera=camera_name(exif),
    )


def taken_at(exif: Image.Exif) -> datetime | None:
    """When a photo was taken, by the clock of the camera; None where it does not say."""
    details = exif.get_ifd(_EXIF)
    try:
        time = datetime.strptime(str(details[_TAKEN]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (KeyError, ValueError):
        return None
    if time.year < FIRST_YEAR:
        return None
    decimals = str(details.get(_SUBSECOND, "")).strip("\0 ")  # cameras without them leave it blank
    return time.replace(microsecond=int(f"{decimals:0<6.6}")) if decimals.isdecimal() else time


def camera_name(exif: Image.Exif) -> str:
    """Maker and model."""
    return "-".join(str(exif[tag]).strip("\0 ") for tag in (_MAKER, _MODEL) if tag in exif)


def camera_serial(exif: Image.Exif) -> str:
    return str(exif.get_ifd(_EXIF).get(_SERIAL, "")).strip("\0 ")


def _zone(exif: Image.Exif) -> tzinfo | None:
    """That of the camera's clock; None where it does not say, as most camera traps do not."""
    offset = str(exif.get_ifd(_EXIF).get(_OFFSET, "")).strip("\0 ")
    try:
        return datetime.strptime(offset, "%z").tzinfo
    except ValueError:
        return None


def _place(exif: Image.Exif) -> tuple[float, float] | None:
    gps = exif.get_ifd(_GPS)
    try:
        place = _degrees(gps[2], gps[1] in ("S", b"S")), _degrees(gps[4], gps[3] in ("W", b"W"))
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    is_on_earth = abs(place[0]) <= 90 and abs(place[1]) <= 180  # no number at all where there were no satellites
    return place if is_on_earth else None


def _degrees(parts: Any, is_negative: bool) -> float:
    degrees, minutes, seconds = (float(part) for part in parts)
    return (degrees + minutes / 60 + seconds / 3600) * (-1 if is_negative else 1)
