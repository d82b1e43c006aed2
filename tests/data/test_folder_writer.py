"""A written folder reads back as the data set that it was."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import UNKNOWN, Split
from semifine.data.folder_writer import write_folder
from semifine.data.sources import folder, load_catalog, synthetic
from semifine.errors import UserError


def test_classes_splits_and_pixels_survive(tmp_path: Path) -> None:
    settings = synthetic.Settings(genera=2, species=2, unlabelled_per_class=3, val_per_class=1, test_per_class=2)
    catalog = load_catalog("synthetic", settings)
    write_folder(catalog, tmp_path / "photos")
    again = folder.load(tmp_path / "photos", folder.Settings())
    assert set(again.class_names) == set(catalog.class_names)
    for split in Split:
        assert len(again.rows(split)) == len(catalog.rows(split))
    assert (again.truth[again.rows(Split.UNLABELLED)] == UNKNOWN).all()
    for row in range(len(again)):
        original = int(Path(again.paths[row]).stem)
        assert np.array_equal(again.reader.read(row), catalog.reader.read(original))
        if catalog.label[original] != UNKNOWN:
            assert again.class_names[again.label[row]] == catalog.class_names[catalog.label[original]]
    with pytest.raises(UserError, match="exists already"):
        write_folder(catalog, tmp_path / "photos")
