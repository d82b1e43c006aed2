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

    The (B, K) labels in the column ``candidates`` become lists of class ids, the most probable first.
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


def _offsets_and_classes(target: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The classes above 0 in the rows of (B, K) labels, one row after the other, and (B + 1,) where each row begins.

    The most probable class of a row comes first, equally probable ones in the order of the classes.
    """
    sizes = (target > 0).sum(axis=1)
    order = np.argsort(-target, axis=1, kind="stable")
    classes = order[np.arange(target.shape[1]) < sizes[:, None]]
    return np.append(0, sizes.cumsum()).astype(np.int32), classes.astype(np.int32)
