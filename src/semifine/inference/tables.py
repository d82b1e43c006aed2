"""Predictions as a file: CSV, JSON lines or Parquet, complete or absent."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from semifine.errors import UserError
from semifine.inference.journal import Record
from semifine.inference.prediction import Prediction

SUFFIXES = (".csv", ".jsonl", ".parquet")
SEPARATOR = "|"
"""Between the names of a list in CSV; in a name a backslash stands before it."""
ROWS = 10_000
"""Rows of a Parquet group, at least, but for the last."""

AddRows = Callable[[Sequence[Record]], object]


def check_suffix(out: Path) -> None:
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, not '{out.name}'.")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent}, the folder of --out, does not exist.")


def as_record(path: str, prediction: Prediction) -> Record:
    """The columns of one image."""
    taxon = prediction.taxon
    return {
        "path": path,
        "name": prediction.name,
        "probability": round(prediction.probability, 6),
        "names": prediction.names,
        "probabilities": [round(probability, 6) for probability in prediction.probabilities],
        "candidates": prediction.candidates,
        "conformal_set": prediction.conformal_set,
        "ood_score": round(prediction.ood_score, 4),
        "is_ood": prediction.is_ood,
        "taxon": taxon and taxon.name,
        "rank": taxon and taxon.rank,
        "taxon_probability": taxon and round(taxon.probability, 6),
    }


@contextmanager
def put_in_place(out: Path) -> Iterator[Path]:
    """A file beside it to write to, which is moved when the block has ended, so that nobody sees half a table or one
    without what belongs to it."""
    partial = out.with_name(f".{out.name}.partial")
    try:
        yield partial
        os.replace(partial, out)
    finally:
        partial.unlink(missing_ok=True)


def table_rows(path: Path, suffix: str) -> AbstractContextManager[AddRows]:
    """Gives a function that adds rows to a new table; it is complete when the block has ended."""
    return {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[suffix.lower()](path)


@contextmanager
def _csv_rows(path: Path) -> Iterator[AddRows]:
    as_cell = [(name, _CELLS.get(kind)) for name, kind in _schema().items()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(_schema())
        yield lambda records: writer.writerows(
            [write(record[name]) if write and record[name] is not None else record[name] for name, write in as_cell]
            for record in records
        )


_CELLS: dict[str, Callable[[Any], str]] = {
    "texts": lambda names: SEPARATOR.join(name.replace(SEPARATOR, f"\\{SEPARATOR}") for name in names),
    "numbers": lambda values: SEPARATOR.join(map(str, values)),
    "flag": lambda value: str(value).lower(),
}
"""How values of a kind that CSV does not know are written."""


@contextmanager
def _jsonl_rows(path: Path) -> Iterator[AddRows]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda records: file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


@contextmanager
def _parquet_rows(path: Path) -> Iterator[AddRows]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(), "flag": pa.bool_()}
    kinds["numbers"] = pa.list_(pa.float64())
    schema = pa.schema([(name, kinds[kind]) for name, kind in _schema().items()])
    waiting: list[Record] = []

    def write_group() -> None:
        writer.write_table(pa.Table.from_pylist(waiting, schema=schema))
        waiting.clear()

    def add(records: Sequence[Record]) -> None:
        waiting.extend(records)
        if len(waiting) >= ROWS:
            write_group()

    with pq.ParquetWriter(path, schema) as writer:
        yield add
        if waiting:
            write_group()


def _schema() -> dict[str, str]:
    return {
        "path": "text",
        "name": "text",
        "probability": "number",
        "names": "texts",
        "probabilities": "numbers",
        "candidates": "texts",
        "conformal_set": "texts",
        "ood_score": "number",
        "is_ood": "flag",
        "taxon": "text",
        "rank": "text",
        "taxon_probability": "number",
    }
