"""The facts of all samples as a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semifine.engine.facts import Columns


def write_sample_table(path: Path, batches: Iterator[Columns]) -> Columns | None:
    """Writes batch after batch, and returns the numeric columns whole; None when there is no batch.

    The candidates of an image become a list of class ids.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    writer: pq.ParquetWriter | None = None
    numeric: list[Columns] = []
    for columns in batches:
        lists = pa.ListArray.from_arrays(*_offsets_and_classes(columns["candidates"]))
        table = pa.table({**columns, "candidates": lists})
        writer = writer or pq.ParquetWriter(partial, table.schema)
        writer.write_table(table)
        numeric.append({name: column for name, column in columns.items() if name not in ("path", "candidates")})
    if writer is None:
        return None
    writer.close()
    os.replace(partial, path)
    return {name: np.concatenate([part[name] for part in numeric]) for name in numeric[0]}


def _offsets_and_classes(mask: NDArray[np.bool_]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The classes that the rows of a (B, K) mask hold, one row after the other, and (B + 1,) where each row begins."""
    offsets = np.append(0, mask.sum(axis=1).cumsum())
    return offsets.astype(np.int32), mask.nonzero()[1].astype(np.int32)
