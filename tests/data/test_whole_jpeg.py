"""Which JPEGs are decoded whole: the walk over the header and Pillow agree."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from semifine.data import whole_jpeg
from semifine.data.reading import draft_size
from semifine.data.whole_jpeg import is_whole_jpeg

SIDE = 16


def jpeg(width: int, height: int, mode: str = "RGB", **options: Any) -> bytes:
    file = io.BytesIO()
    Image.new(mode, (width, height)).save(file, "JPEG", **options)
    return file.getvalue()


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


@pytest.mark.parametrize(
    ("data", "whole"),
    [
        (jpeg(40, 30), True),
        (jpeg(40, 30, progressive=True, comment=b"\xff\xe1\xff\xc0", restart_marker_rows=1), True),
        (jpeg(40, 30, icc_profile=bytes(99), exif=orientation(1)), True),
        (jpeg(40, 30, exif=orientation(3)), False),
        (jpeg(40, 30, xmp=b'<x:xmpmeta xmlns:x="adobe:ns:meta/" tiff:Orientation="8"/>'), False),
        (jpeg(40, 30, "L"), False),
        (jpeg(40, 30, "CMYK"), False),
        (jpeg(100, 20), False),
        (jpeg(65, 64), False),
        (jpeg(40, 30)[:20], False),
        (b"\xff\xd8\xff\xff\xff", False),
        (b"", False),
    ],
)
def test_whole_ones_are_told_apart(data: bytes, whole: bool) -> None:
    assert is_whole_jpeg(data, SIDE) == whole


@given(st.integers(1, 200), st.integers(1, 200))
def test_the_draft_is_pillows(width: int, height: int) -> None:
    data = jpeg(width, height)
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, draft_size(image.size, SIDE))
        decoded_whole = image.size == (width, height)
    assert is_whole_jpeg(data, SIDE) == (decoded_whole and max(width, height) <= 4 * min(width, height))


@given(st.binary(max_size=60))
def test_any_bytes_can_be_asked_about(rest: bytes) -> None:
    assert is_whole_jpeg(whole_jpeg.START + rest, SIDE) in (True, False)


def test_both_ways_to_the_size_agree() -> None:
    random = np.random.default_rng(0)
    for width, height in random.integers(1, 300, (20, 2)).tolist():
        data = jpeg(width, height)
        assert whole_jpeg._plain_size(data) == whole_jpeg._upright_size(data) == (width, height)
