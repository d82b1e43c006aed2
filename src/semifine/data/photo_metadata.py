"""EXIF metadata of a photo: time, place and camera."""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

from PIL import Image

from semifine.data.decode import read_exif

_MODEL, _MAKER, _EXIF, _GPS = 0x0110, 0x010F, 0x8769, 0x8825
_TAKEN, _OFFSET, _SERIAL, _SUBSECOND = 0x9003, 0x9011, 0xA431, 0x9291

MIN_YEAR = 1900
"""Earlier years are invalid: a camera whose clock was never set writes the year 1."""


@dataclass(frozen=True)
class PhotoMetadata:
    """When, where and with which camera a photo was taken.

    Args:
        time: Capture time with a time zone. Without one in the EXIF metadata, the modification time of the file.
        is_camera_time: Whether ``time`` is from the EXIF metadata.
        is_zone_known: Whether the time zone is from the EXIF metadata or the time is the file's; otherwise the time
            zone is assumed to be UTC.
        place: Latitude and longitude in degrees.
        camera: Maker and model.
    """

    time: datetime
    is_camera_time: bool
    is_zone_known: bool
    place: tuple[float, float] | None
    camera: str


def read_photo_metadata(file: str) -> PhotoMetadata:
    """Reads the metadata of a photo; an unreadable file has no camera and no place.

    Example:
        >>> read_photo_metadata("missing.jpg").is_camera_time
        False
    """
    exif = read_exif(file) or Image.Exif()
    taken = capture_time(exif)
    modified = datetime.fromtimestamp(os.stat(file).st_mtime if os.path.exists(file) else 0, UTC)
    zone = UTC if taken is None else _time_zone(exif)
    time = modified if taken is None else taken.replace(tzinfo=zone or UTC)
    return PhotoMetadata(
        time=time.replace(microsecond=0),
        is_camera_time=taken is not None,
        is_zone_known=zone is not None,
        place=_place(exif),
        camera=camera_name(exif),
    )


def capture_time(exif: Image.Exif) -> datetime | None:
    """The time of the camera's clock, without a time zone; None if it is missing or invalid."""
    details = exif.get_ifd(_EXIF)
    try:
        time = datetime.strptime(str(details[_TAKEN]).strip("\0 "), "%Y:%m:%d %H:%M:%S")
    except (KeyError, ValueError):
        return None
    if time.year < MIN_YEAR:
        return None
    decimals = str(details.get(_SUBSECOND, "")).strip("\0 ")  # blank in photos of cameras without subseconds
    return time.replace(microsecond=int(f"{decimals:0<6.6}")) if decimals.isdecimal() else time


def camera_name(exif: Image.Exif) -> str:
    """Maker and model of the camera, joined by a hyphen."""
    return "-".join(str(exif[tag]).strip("\0 ") for tag in (_MAKER, _MODEL) if tag in exif)


def camera_serial(exif: Image.Exif) -> str:
    """Serial number of the camera, or an empty string."""
    return str(exif.get_ifd(_EXIF).get(_SERIAL, "")).strip("\0 ")


def _time_zone(exif: Image.Exif) -> tzinfo | None:
    """The time zone of the camera's clock; most camera traps do not write it."""
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
    is_valid = abs(place[0]) <= 90 and abs(place[1]) <= 180  # False for NaN, which cameras write without a GPS fix
    return place if is_valid else None


def _degrees(parts: Any, is_negative: bool) -> float:
    degrees, minutes, seconds = (float(part) for part in parts)
    return (degrees + minutes / 60 + seconds / 3600) * (-1 if is_negative else 1)
