"""Prediction tables: CSV, JSON lines or Parquet, with a journal so that a stopped job can go on."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any, TextIO

from semifine.errors import UserError
from semifine.files import lock_file
from semifine.inference.prediction import COLUMNS, Prediction

Record = dict[str, Any]


class Journal:
    """JSON lines beside the output: first what was asked for, then one record an image, in order.

    From its beginning until it is closed no other job can write to the same output.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".unfinished")
        self._file: TextIO | None = None
        self._is_bare = False
        """Whether it was begun here and holds no record yet."""

    def begin(self, asked: Record, resume: bool) -> bool:
        """Starts the journal, or goes on with the one that is there; nothing is ever overwritten.

        Gives back whether it goes on.
        """
        self._check_output()
        self._file = self.path.open("a", encoding="utf-8")
        if lock_file(self._file) is False:
            raise UserError(f"Another job is writing {self.out} now: wait for it, or choose another --out.")
        self._check_output()  # a job that had the lock may have ended meanwhile
        if not self.path.stat().st_size:
            self.append([asked])
            self._is_bare = True
            return False
        if not resume:
            raise UserError(f"{self.path} holds unfinished predictions: go on with --resume, or remove it.")
        if next(self._whole_lines(), None) != asked:
            raise UserError(f"{self.path} was begun with another model or other options: repeat them, or remove it.")
        return True

    def append(self, records: list[Record]) -> None:
        """Keeps a batch, whatever becomes of this program.

        Nothing waits for the disk: after a power failure the last seconds' images are predicted again.
        """
        assert self._file is not None
        self._is_bare = False
        self._file.writelines(json.dumps(record) + "\n" for record in records)
        self._file.flush()

    def records(self) -> Iterator[Record]:
        """All records so far, one after the other; a torn end is cut off when they have been read."""
        lines = self._whole_lines()
        next(lines, None)
        return lines

    def finish(self) -> None:
        """All is done that can be done."""
        self._is_bare = False
        self.path.unlink()

    def close(self) -> None:
        if self._is_bare:
            self.path.unlink(missing_ok=True)  # there is nothing to go on with, so nobody needs to choose --resume
        if self._file is not None:
            self._file.close()

    def _check_output(self) -> None:
        if self.out.exists():
            raise UserError(f"{self.out} exists already; choose another --out.")

    def _whole_lines(self) -> Iterator[Record]:
        """The records; a torn end is cut off, so that the next batch begins on a line of its own."""
        good = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except ValueError:
                    break
                if not line.endswith(b"\n"):
                    break
                good += len(line)
                yield record
        if 0 < good < self.path.stat().st_size:  # else it is no journal, and not ours to change
            os.truncate(self.path, good)


SUFFIXES = (".csv", ".jsonl", ".parquet")
SEPARATOR = "|"
"""Between the names of a list in CSV; in a name a backslash stands before it."""
SCHEMA = {"path": "text", **{column.name: column.kind for column in COLUMNS}}
"""Columns of a table and their kinds."""
ROWS = 10_000
"""Rows of a Parquet group, at least, but for the last."""

AddRows = Callable[[Sequence[Record]], object]


def check_suffix(out: Path) -> None:
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, not '{out.name}'.")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent}, the folder of --out, does not exist.")


def as_record(path: str, prediction: Prediction) -> Record:
    """Returns the columns of one image."""
    return {"path": path, **{column.name: column.value(prediction) for column in COLUMNS}}


def table_rows(path: Path, suffix: str) -> AbstractContextManager[AddRows]:
    """Gives a function that adds rows to a new table; it is complete when the block has ended."""
    return {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[suffix.lower()](path)


@contextmanager
def _csv_rows(path: Path) -> Iterator[AddRows]:
    as_cell = [(name, _CELLS.get(kind)) for name, kind in SCHEMA.items()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(SCHEMA)
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
    schema = pa.schema([(name, kinds[kind]) for name, kind in SCHEMA.items()])
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
