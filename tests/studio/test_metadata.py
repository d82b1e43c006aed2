"""Dates and places of photos, and searches for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import Catalog, Split
from semifine.data.decode import FileReader
from semifine.errors import UserError
from semifine.studio.metadata import MetadataIndex, parse_date
from tests.studio.photos import write_photo

DATES = ["2023-12-31T23:59:59", "2024-05-01T00:00:00", "2024-05-31T12:00:00", None, "2024-06-01T00:00:00"]


@pytest.fixture
def index(tmp_path: Path) -> MetadataIndex:
    paths = [f"ridge/{number}.jpg" for number in range(len(DATES))]
    for number, (path, date) in enumerate(zip(paths, DATES, strict=True)):
        write_photo(tmp_path / path, number, date and date.replace("-", ":").replace("T", " "), (-33.5, 18.25))
    unknown = [-1] * len(paths)
    reader = FileReader(paths, [tmp_path])
    catalog = Catalog("traps", ("robin",), paths, unknown, [Split.UNLABELED] * len(paths), unknown, reader)
    index = MetadataIndex(catalog, np.arange(len(paths)))
    index.start()
    assert index.wait(60)
    return index


def slow_is_between(date: str | None, after: str, before: str) -> bool:
    if date is None:
        return False
    return (not after or date >= after) and (not before or date[: len(before)] <= before)


@pytest.mark.parametrize("after", ["", "2024", "2024-05", "2024-05-02", "2025"])
@pytest.mark.parametrize("before", ["", "2023", "2024-05", "2024-05-31", "2024-06-01"])
def test_limits_are_days_months_or_years(index: MetadataIndex, after: str, before: str) -> None:
    assert index.is_between(after, before).tolist() == [slow_is_between(date, after, before) for date in DATES]


@pytest.mark.parametrize("text", ["2024-05", "12", "t12:00", "robin", "9999"])
def test_dates_are_searched_as_text(index: MetadataIndex, text: str) -> None:
    assert index.matches_text(text).tolist() == [date is not None and text.upper() in date for date in DATES]


def test_an_image_is_described(index: MetadataIndex) -> None:
    assert index.describe(1, "ridge/1.jpg") == {
        "file": "1.jpg",
        "folder": "ridge",
        "date": "2024-05-01T00:00:00",
        "place": [-33.5, 18.25],
        "size": [50, 40],
    }
    assert index.describe(3, "3.jpg")["date"] is None


def test_reading_stops_when_the_studio_closes(index: MetadataIndex) -> None:
    index.close()
    index.start()
    index.close()
    assert not index._thread.is_alive()  # type: ignore[union-attr]


@pytest.mark.parametrize("text", ["24-05", "2024-5", "May", "2024-05-06T07", "2024-05; drop"])
def test_other_dates_give_one_sentence(text: str) -> None:
    with pytest.raises(UserError, match=r"'after' must be a date such as .*\.$"):
        parse_date(text, "after")
