"""The table of samples holds what the batches held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semifine.engine.facts import Columns
from semifine.engine.sample_table import write_sample_table


def batch(start: int, mask: np.ndarray) -> Columns:
    index = np.arange(start, start + len(mask))
    return {
        "index": index,
        "path": np.array([f"é/{i}.jpg" for i in index], dtype=object),
        "hit": index % 2 == 0,
        "candidates": mask,
    }


def test_candidates_become_lists_of_classes(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    masks = [random.random((size, 9)) < share for size, share in ((4, 0.5), (1, 1.0), (3, 0.0), (5, 0.2))]
    starts = np.cumsum([0, *map(len, masks)])
    batches = [batch(start, mask) for start, mask in zip(starts, masks, strict=False)]
    numeric = write_sample_table(tmp_path / "new" / "samples.parquet", iter(batches))
    table = pq.read_table(tmp_path / "new" / "samples.parquet")
    assert table.column("candidates").to_pylist() == [np.flatnonzero(row).tolist() for mask in masks for row in mask]
    assert table.schema.field("candidates").type == pa.list_(pa.int32())
    assert table.column("path").to_pylist() == [f"é/{i}.jpg" for i in range(13)]
    assert numeric is not None
    assert {name: column.tolist() for name, column in numeric.items()} == table.select(["index", "hit"]).to_pydict()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["samples.parquet"]


def test_without_images_there_is_no_table(tmp_path: Path) -> None:
    assert write_sample_table(tmp_path / "samples.parquet", iter(())) is None
    assert not (tmp_path / "samples.parquet").exists()
