"""Naming a genus or family where the species is not sure. Needs numpy alone."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from semifine.data.text_table import class_name
from semifine.errors import UserError
from semifine.inference.calibration import Probabilities

DELIMITERS = (",", ";", "\t")
"""Of cells; the first one that stands in the header."""


@dataclass(frozen=True)
class Taxon:
    """A name, its rank, and the probability that it holds."""

    name: str
    rank: str
    probability: float


@dataclass(frozen=True, eq=False)
class Level:
    """One rank: its taxa, and which of them each class belongs to."""

    rank: str
    taxa: tuple[str, ...]
    taxon_of: NDArray[np.int64]
    """(K,)"""


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """Ranks from the finest, the classes themselves, to the coarsest."""

    levels: tuple[Level, ...]

    @property
    def identity(self) -> str:
        """A hash of all names and what belongs to what."""
        content = [(level.rank, level.taxa, level.taxon_of.tolist()) for level in self.levels]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    def name(self, probs: Probabilities, sure: float) -> list[Taxon | None]:
        """For each image the lowest taxon whose classes hold at least ``sure`` of the probability, if any."""
        found: list[Taxon | None] = [None] * len(probs)
        for level in reversed(self.levels):
            sums = probs @ (level.taxon_of[:, None] == np.arange(len(level.taxa)))
            best = sums.argmax(axis=1)
            for image in np.flatnonzero(sums.max(axis=1) >= sure).tolist():
                name = level.taxa[best[image]]
                if name:  # a class without, say, a family cannot be named by it
                    found[image] = Taxon(name, level.rank, float(sums[image, best[image]]))
        return found


def read_taxonomy(file: Path, class_names: Sequence[str]) -> Taxonomy:
    """A CSV file whose first column holds the classes and whose others hold ever higher ranks, named in its header.

    Spreadsheets of some countries separate by semicolons; tabs will do as well.
    """
    header, lines = _read(file)
    if len(header) < 2:
        raise UserError(
            f"{file} needs a column of classes and at least one of a higher rank, such as species,genus; "
            f"its first line is '{','.join(header)}'."
        )
    if len(set(header)) < len(header):
        raise UserError(f"{file} has two columns of one name: name each by its rank, such as species,genus,family.")
    ranks_of: dict[str, list[str]] = {}
    for cells in lines:
        if ranks_of.setdefault(cells[0], cells) != cells:
            raise UserError(f"{file} has two lines for '{cells[0]}' that differ: leave one.")
    missing = [name for name in class_names if class_name(name) not in ranks_of]
    if missing:
        raise UserError(f"{file} has no line for the class '{missing[0]}' ({len(missing)} classes are missing).")
    levels = []
    for column, rank in enumerate(header):
        names = [ranks_of[class_name(name)][column] for name in class_names]
        taxa = tuple(dict.fromkeys(names))
        levels.append(Level(rank, taxa, np.array([taxa.index(name) for name in names], np.int64)))
    return Taxonomy(tuple(levels))


def _delimiter(text: str) -> str:
    header = text.lstrip().partition("\n")[0]
    return next((mark for mark in DELIMITERS if mark in header), DELIMITERS[0])


def _read(file: Path) -> tuple[list[str], list[list[str]]]:
    try:
        text = file.read_bytes().decode("utf-8-sig")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
        header, *lines = ([class_name(cell) for cell in cells] for cells in reader if cells)
    except OSError as error:
        raise UserError(f"Cannot read the taxonomy {file}: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"The taxonomy {file} is not a CSV file in UTF-8.") from error
    except ValueError as error:
        raise UserError(f"The taxonomy {file} is empty.") from error
    short = [cells for cells in lines if len(cells) != len(header)]
    if short:
        raise UserError(f"{file}: the line of '{short[0][0]}' has {len(short[0])} cells, the header {len(header)}.")
    return header, lines
