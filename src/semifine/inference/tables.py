"""Prediction tables in CSV, JSON lines or Parquet, and the journal that makes jobs resumable."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from semifine.data.csv_table import quote_formula
from semifine.errors import UserError
from semifine.files import errors_name, lock_file, open_regular, sync_to_disk
from semifine.inference.prediction import COLUMNS, Prediction

Record = dict[str, Any]


class Journal:
    """JSON lines in a file beside the output: first the header of the job, then one record per image, in order.

    While the journal is open, no other job can write to the same output.

    Args:
        out: The prediction table.
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        self.path = out.with_name(out.name + ".unfinished")
        self._file: IO[str] | None = None
        self._is_new_and_empty = False

    def begin(self, header: Record, resume: bool) -> bool:
        """Starts a journal, or continues an existing one; never overwrites anything.

        Args:
            header: Everything except the images that the predictions depend on.
            resume: Whether an existing journal may be continued.

        Returns:
            Whether an existing journal is continued.
        """
        self._check_output()
        self._file = open_regular(self.path, "a", encoding="utf-8")
        if lock_file(self._file) is False:
            raise UserError(f"Another job is writing {self.out} now: wait for it, or choose another --out.")
        self._check_output()  # the job that held the lock may have finished in the meantime
        if self._has_no_header(header):
            self._write_header(header)
            return False
        if not resume:
            raise UserError(f"{self.path} contains unfinished predictions: continue with --resume, or remove it.")
        if next(self._complete_lines(), None) != header:
            raise UserError(
                f"{self.path} was started with another model or other options: repeat the command with these, or "
                "remove the file."
            )
        return True

    def append(self, records: list[Record]) -> None:
        """Writes a batch of records, which survives the end of this process.

        The records are synced to disk when the journal is closed. After a power failure, the last seconds of images are
        predicted again.
        """
        assert self._file is not None
        with errors_name(self.path):
            self._file.writelines(map(_as_line, records))
            self._file.flush()
        self._is_new_and_empty = False

    def records(self) -> Iterator[Record]:
        """Yields all records; afterwards, an incomplete last line is cut off."""
        lines = self._complete_lines()
        next(lines, None)
        return lines

    def finish(self) -> None:
        """Removes the journal of a finished job, whose table is on the disk already."""
        self._is_new_and_empty = False
        self.path.unlink()

    def close(self) -> None:
        """Closes the journal; removes it if it contains nothing to resume."""
        if self._is_new_and_empty:
            self.path.unlink(missing_ok=True)
        if self._file is None:
            return
        with suppress(OSError):  # a full disk, which has been reported
            self._file.close()
        if self.path.exists():
            sync_to_disk(self.path)

    def _has_no_header(self, header: Record) -> bool:
        """Whether the journal is empty, or its header is incomplete after a power failure."""
        with self.path.open("rb") as file:
            start = file.read(len(_as_line(header)) + 1)
        return _as_line(header).encode().startswith(start.rstrip(b"\0")) and not start.endswith(b"\n")

    def _write_header(self, header: Record) -> None:
        assert self._file is not None
        self._is_new_and_empty = True
        self._file.truncate(0)
        with errors_name(self.path):
            self._file.write(_as_line(header))
            self._file.flush()
        sync_to_disk(self.path)
        sync_to_disk(self.path.parent)

    def _check_output(self) -> None:
        if self.out.exists():
            raise UserError(f"{self.out} exists already; choose another --out.")

    def _complete_lines(self) -> Iterator[Record]:
        """Yields all lines; then cuts off an incomplete last line, so that the next batch starts on a new line."""
        length = 0
        with self.path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line)
                except (ValueError, RecursionError):
                    break
                if not line.endswith(b"\n"):
                    break
                length += len(line)
                yield record
        if 0 < length < self.path.stat().st_size:  # a file without any valid line is not a journal
            os.truncate(self.path, length)


def _as_line(record: Record) -> str:
    return json.dumps(record) + "\n"


SUFFIXES = (".csv", ".jsonl", ".parquet")
SEPARATOR = "|"
"""Separates the names of a list in CSV; escaped with a backslash inside a name."""
SCHEMA = {"path": "text", **{column.name: column.kind for column in COLUMNS}}
"""Columns of a table and their kinds."""
ROW_GROUP_SIZE = 10_000
"""Smallest number of rows of a Parquet row group, except for the last."""

AddRows = Callable[[Sequence[Record]], object]


def check_output(out: Path) -> None:
    """Raises ``UserError`` if a table cannot be written to ``out``."""
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out must end in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, not '{out.name}'.")
    if not out.absolute().parent.is_dir():
        raise UserError(f"{out.absolute().parent}, the folder of --out, does not exist.")


def printable(path: str) -> str:
    """Returns a file name as valid text: bytes that are not UTF-8 become \\xNN."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def as_record(path: str, prediction: Prediction) -> Record:
    """Returns the columns of one image."""
    return {"path": path, **{column.name: column.value(prediction) for column in COLUMNS}}


def create_table(path: Path, suffix: str, schema: Mapping[str, str] = SCHEMA) -> AbstractContextManager[AddRows]:
    """Returns a context manager that creates a table and yields a function that adds rows to it.

    Args:
        path: The file to write.
        suffix: Selects the format, one of ``SUFFIXES``.
        schema: Columns of the table and their kinds.
    """
    return {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".parquet": _parquet_rows}[suffix.lower()](path, schema)


@contextmanager
def _csv_rows(path: Path, schema: Mapping[str, str]) -> Iterator[AddRows]:
    formats = [(name, _FORMATS.get(kind)) for name, kind in schema.items()]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(schema)
        yield lambda records: writer.writerows(
            [format(record[name]) if format and record[name] is not None else record[name] for name, format in formats]
            for record in records
        )


_FORMATS: dict[str, Callable[[Any], str]] = {
    "text": quote_formula,
    "texts": lambda names: quote_formula(SEPARATOR.join(name.replace(SEPARATOR, f"\\{SEPARATOR}") for name in names)),
    "numbers": lambda values: SEPARATOR.join(map(str, values)),
    "flag": lambda value: str(value).lower(),
}
"""Formats text, and values of types that CSV does not have."""


@contextmanager
def _jsonl_rows(path: Path, schema: Mapping[str, str]) -> Iterator[AddRows]:
    with path.open("w", encoding="utf-8") as file:
        yield lambda records: file.writelines(
            json.dumps({name: record[name] for name in schema}, ensure_ascii=False) + "\n" for record in records
        )


@contextmanager
def _parquet_rows(path: Path, schema: Mapping[str, str]) -> Iterator[AddRows]:
    # Slow to import, and only needed for Parquet.
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {"text": pa.string(), "texts": pa.list_(pa.string()), "number": pa.float64(), "flag": pa.bool_()}
    kinds["numbers"] = pa.list_(pa.float64())
    arrow_schema = pa.schema([(name, kinds[kind]) for name, kind in schema.items()])
    pending: list[Record] = []

    def write_group() -> None:
        writer.write_table(pa.Table.from_pylist(pending, schema=arrow_schema))
        pending.clear()

    def add(records: Sequence[Record]) -> None:
        pending.extend(records)
        if len(pending) >= ROW_GROUP_SIZE:
            write_group()

    with pq.ParquetWriter(path, arrow_schema) as writer:
        yield add
        if pending:
            write_group()
