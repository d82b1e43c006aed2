"""The table of samples holds what the batches held."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from semifine.training.sample_stats import Columns, write_sample_table


def batch(start: int, target: np.ndarray) -> Columns:
    index = np.arange(start, start + len(target))
    return {
        "index": index,
        "path": np.array([f"é/{i}.jpg" for i in index], dtype=object),
        "hit": index % 2 == 0,
        "candidates": target,
    }


def test_candidates_become_lists_of_classes_the_most_probable_first(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    shares = ((4, 0.5), (1, 1.0), (3, 0.0), (5, 0.2))
    targets = [random.random((size, 9)) * (random.random((size, 9)) < share) for size, share in shares]
    starts = np.cumsum([0, *map(len, targets)])
    batches = [batch(start, target) for start, target in zip(starts, targets, strict=False)]
    numeric = write_sample_table(tmp_path / "new" / "samples.parquet", iter(batches))
    table = pq.read_table(tmp_path / "new" / "samples.parquet")
    expected = [sorted(np.flatnonzero(row), key=lambda i: -row[i]) for target in targets for row in target]
    assert table.column("candidates").to_pylist() == expected
    assert table.schema.field("candidates").type == pa.list_(pa.int32())
    assert table.column("path").to_pylist() == [f"é/{i}.jpg" for i in range(13)]
    assert numeric is not None
    assert {name: column.tolist() for name, column in numeric.items()} == table.select(["index", "hit"]).to_pydict()
    assert [file.name for file in (tmp_path / "new").iterdir()] == ["samples.parquet"]


def test_without_images_there_is_no_table(tmp_path: Path) -> None:
    assert write_sample_table(tmp_path / "samples.parquet", iter(())) is None
    assert not (tmp_path / "samples.parquet").exists()
