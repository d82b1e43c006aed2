"""Prediction of a genus or family if the species is uncertain. Needs NumPy only."""

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

from semifine.data.catalog import normalize_class_name
from semifine.data.csv_table import unquote_formula
from semifine.errors import UserError
from semifine.files import read_text
from semifine.inference.calibration import Probabilities

MAX_BYTES = 64 << 20
DELIMITERS = (",", ";", "\t")
"""The first of these characters in the header separates the cells."""


@dataclass(frozen=True)
class Taxon:
    """A predicted taxon and its probability."""

    name: str
    rank: str
    probability: float


@dataclass(frozen=True, eq=False)
class Level:
    """One rank of a taxonomy.

    Args:
        rank: Name of the rank, such as ``genus``.
        taxa: Names of the taxa.
        taxon_of: Index of the taxon of each class ``(K,)``.
    """

    rank: str
    taxa: tuple[str, ...]
    taxon_of: NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Taxonomy:
    """Ranks from the finest, the classes themselves, to the coarsest.

    Example:
        >>> species = Level("species", ("P. major", "P. minor"), np.array([0, 1]))
        >>> genus = Level("genus", ("Parus",), np.array([0, 0]))
        >>> Taxonomy((species, genus)).predict(np.array([[0.6, 0.4]]), threshold=0.9)
        [Taxon(name='Parus', rank='genus', probability=1.0)]
    """

    levels: tuple[Level, ...]

    @property
    def identity(self) -> str:
        """Hash of all ranks, taxa and assignments."""
        content = [(level.rank, level.taxa, level.taxon_of.tolist()) for level in self.levels]
        return hashlib.blake2b(json.dumps(content).encode(), digest_size=16).hexdigest()

    def predict(self, probs: Probabilities, threshold: float) -> list[Taxon | None]:
        """Returns for each image the lowest taxon whose classes have a total probability of at least ``threshold``.

        Args:
            probs: Class probabilities ``(N, K)``.
            threshold: Lowest probability of a taxon.

        Returns:
            N taxa; None if no taxon reaches the threshold.
        """
        predicted: list[Taxon | None] = [None] * len(probs)
        for level in reversed(self.levels):
            sums = probs @ (level.taxon_of[:, None] == np.arange(len(level.taxa)))
            best = sums.argmax(axis=1)
            for image in np.flatnonzero(sums.max(axis=1) >= threshold).tolist():
                name = level.taxa[best[image]]
                if name:  # the cell of a class without, for example, a family is empty
                    predicted[image] = Taxon(name, level.rank, float(sums[image, best[image]]))
        return predicted


def read_taxonomy(file: Path, class_names: Sequence[str]) -> Taxonomy:
    """Reads a taxonomy from a CSV file.

    Args:
        file: File with the classes in the first column and higher ranks in the following columns. The header names the
            ranks. Cells are separated by commas, semicolons or tabs.
        class_names: Names of the classes of the model.
    """
    header, lines = read_lines(file)
    if len(header) < 2:
        raise UserError(
            f"{file} needs a column of classes and at least one of a higher rank, such as species,genus; "
            f"its first line is '{','.join(header)}'."
        )
    if len(set(header)) < len(header):
        raise UserError(
            f"{file} has two columns with the same name: name each column by its rank, such as species,genus,family."
        )
    ranks_of: dict[str, list[str]] = {}
    for cells in lines:
        if ranks_of.setdefault(cells[0], cells) != cells:
            raise UserError(f"{file} has two different lines for '{cells[0]}': remove one of them.")
    missing = [name for name in class_names if normalize_class_name(name) not in ranks_of]
    if missing:
        raise UserError(
            f"{file} has no line for the class '{missing[0]}': add it ({len(missing)} classes are missing)."
        )
    levels = []
    for column, rank in enumerate(header):
        names = [ranks_of[normalize_class_name(name)][column] for name in class_names]
        taxa = tuple(dict.fromkeys(names))
        levels.append(Level(rank, taxa, np.array([taxa.index(name) for name in names], np.int64)))
    return Taxonomy(tuple(levels))


def _delimiter(text: str) -> str:
    header = text.lstrip().partition("\n")[0]
    return next((mark for mark in DELIMITERS if mark in header), DELIMITERS[0])


def read_lines(file: Path) -> tuple[list[str], list[list[str]]]:
    """Reads the header and the cells of each line of a taxonomy file."""
    try:
        text = read_text(file, MAX_BYTES).removeprefix("\ufeff")
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=_delimiter(text))
        rows = ([unquote_formula(cell.strip()) for cell in cells] for cells in reader if cells)
        header, *lines = ([normalize_class_name(cell) for cell in cells] for cells in rows)
    except OSError as error:
        raise UserError(f"Cannot read the taxonomy {file}: {error.strerror or error}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"The taxonomy {file} is not a CSV file in UTF-8: save it in that format.") from error
    except ValueError as error:
        problem = "is empty" if file.is_file() and file.stat().st_size <= MAX_BYTES else "is too large"
        raise UserError(f"The taxonomy {file} {problem}: write a header and a line per class.") from error
    wrong = next((cells for cells in lines if len(cells) != len(header)), None)
    if wrong:
        raise UserError(
            f"{file}: the line for '{wrong[0]}' has {len(wrong)} cells, but the header has {len(header)}: "
            "make them equal."
        )
    return header, lines
