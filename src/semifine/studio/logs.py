"""Where the labels of a run are, and what they are as a table."""

from __future__ import annotations

from pathlib import Path

from semifine.config import read_train_settings
from semifine.engine.extra_labels import labels_as_csv, read_labels
from semifine.errors import UserError
from semifine.labelling.log import is_sqlite
from semifine.run_folder import RunFolder, write_atomically


def log_of_run(run: Path) -> Path:
    """The log that the run learnt from, to go on with it; else a file beside the run, which no training overwrites."""
    labels = read_train_settings(RunFolder(run).settings).labels
    if labels and Path(labels).is_file() and is_sqlite(Path(labels)):
        return Path(labels)
    return run.with_name(run.name + ".studio.db")


def export_labels(log: Path, file: Path) -> int:
    """Writes path and label of every undisputed image, and returns how many; an existing file is left alone."""
    if file.exists():
        raise UserError(f"{file} exists already: choose another name, or move it away.")
    if not log.exists():
        raise UserError(f"There are no labels yet: {log} does not exist.")
    pairs = read_labels(log).pairs
    write_atomically(file, labels_as_csv(pairs))
    return len(pairs)
