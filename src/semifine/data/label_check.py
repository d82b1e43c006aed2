"""Labels that look wrong, by confident learning (Northcutt, Jiang and Chuang, JAIR 2021), and their table.

The predictions must come from models that were not trained on the images, as in cross-validation.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from semifine.data.csv_table import unquote_formula, write_csv
from semifine.files import damage_as_user_error, write_atomically

Probabilities = NDArray[np.floating[Any]]
Integers = NDArray[np.int64]
Scores = NDArray[np.float64]
COLUMNS = ("path", "label", "prediction", "label_probability", "prediction_probability", "suspect")


def confident_classes(probs: Probabilities, label: Integers) -> Integers:
    """Returns the class that each image confidently shows, -1 for none.

    The threshold of a class is the mean probability of the class over the images with its label. An image confidently
    shows the most probable of the classes whose probability reaches their threshold.

    Args:
        probs: Class probabilities ``(N, K)``.
        label: Class ids ``(N,)``.

    Example:
        >>> probs = np.array([[0.9, 0.1], [0.7, 0.3], [0.2, 0.8], [0.1, 0.9]])
        >>> confident_classes(probs, np.array([0, 0, 0, 1])).tolist()
        [0, 0, -1, 1]
    """
    num_classes = probs.shape[1]
    images = np.bincount(label, minlength=num_classes)
    own = probs[np.arange(len(label)), label].astype(np.float64)
    thresholds = np.bincount(label, own, minlength=num_classes) / np.maximum(images, 1)
    thresholds[images == 0] = np.inf
    reached = np.where(probs >= thresholds - 1e-9, probs, -1.0)  # equal but for rounding
    return np.where((reached >= 0).any(axis=1), reached.argmax(axis=1), -1).astype(np.int64)


def find_suspects(probs: Probabilities, label: Integers) -> Integers:
    """Returns the indices of images whose label looks wrong, the most suspicious first.

    These are the images off the diagonal of the confident joint, see :func:`confident_classes`, whose confident class
    is also their prediction, ordered by the probability of their label minus the probability of the prediction. There
    are none if fewer than half of the images that confidently show a class have its label: models that contradict most
    labels say nothing about a single one.

    Args:
        probs: Class probabilities ``(N, K)``.
        label: Class ids ``(N,)``.

    Example:
        >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
        >>> find_suspects(probs, np.array([0, 0, 0, 1, 1])).tolist()
        [2]
    """
    prediction = probs.argmax(axis=1)
    shown = confident_classes(probs, label)
    if 2 * (shown == label).sum() < (shown >= 0).sum():
        return np.zeros(0, np.int64)
    is_suspect = (prediction != label) & (shown == prediction)
    margin = _margin(probs, label, prediction)
    suspects = np.flatnonzero(is_suspect)
    ordered: Integers = suspects[np.argsort(margin[suspects], kind="stable")]
    return ordered


def _margin(probs: Probabilities, label: Integers, prediction: Integers) -> Scores:
    rows = np.arange(len(label))
    return (probs[rows, label] - probs[rows, prediction]).astype(np.float64)


@dataclass(frozen=True, eq=False)
class LabelCheck:
    """Labels of N images and their predictions, suspects first, then in the order of suspicion.

    Args:
        paths: Catalog paths ``(N,)``.
        label: Class ids ``(N,)``.
        prediction: Class ids ``(N,)``.
        label_probability: Probability of the label ``(N,)``.
        prediction_probability: Probability of the prediction ``(N,)``.
        num_suspects: Number of labels that look wrong; they come first.
    """

    paths: list[str]
    label: Integers
    prediction: Integers
    label_probability: Scores
    prediction_probability: Scores
    num_suspects: int

    def confusion(self, num_classes: int) -> Integers:
        """Returns the number of images of each label and prediction ``(K, K)``."""
        counts = np.zeros((num_classes, num_classes), np.int64)
        np.add.at(counts, (self.label, self.prediction), 1)
        return counts


def check_labels(paths: Sequence[str], probs: Probabilities, label: Integers) -> LabelCheck:
    """Compares labels with predictions.

    Args:
        paths: Paths ``(N,)``.
        probs: Class probabilities ``(N, K)`` of models that were not trained on the images.
        label: Class ids ``(N,)``.

    Example:
        >>> probs = np.array([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.8], [0.3, 0.7]])
        >>> check = check_labels(["a", "b", "c", "d", "e"], probs, np.array([0, 0, 0, 1, 1]))
        >>> check.num_suspects, check.paths[0], int(check.prediction[0])
        (1, 'c', 1)
    """
    prediction = probs.argmax(axis=1)
    suspects = find_suspects(probs, label)
    by_margin = np.argsort(_margin(probs, label, prediction), kind="stable")
    order = np.concatenate([suspects, by_margin[~np.isin(by_margin, suspects)]])
    label, prediction = label[order], prediction[order]
    return LabelCheck(
        [paths[index] for index in order.tolist()],
        label.astype(np.int64),
        prediction.astype(np.int64),
        probs[order, label].astype(np.float64),
        probs[order, prediction].astype(np.float64),
        len(suspects),
    )


def write_label_check(file: Path, check: LabelCheck, class_names: Sequence[str]) -> None:
    """Writes a table with one row per image, suspects first.

    Example:
        >>> check = check_labels(["a.jpg"], np.array([[0.75, 0.25]]), np.array([0]))
        >>> write_label_check(Path("label_check.csv"), check, ["robin", "wren"])
        >>> print(Path("label_check.csv").read_text().splitlines()[1])
        a.jpg,robin,robin,0.7500,0.7500,no
    """
    rows: list[tuple[str, ...]] = [COLUMNS]
    for index, path in enumerate(check.paths):
        probabilities = (check.label_probability[index], check.prediction_probability[index])
        names = (class_names[check.label[index]], class_names[check.prediction[index]])
        suspect = "yes" if index < check.num_suspects else "no"
        rows.append((path, *names, *(f"{value:.4f}" for value in probabilities), suspect))
    text = io.StringIO()
    write_csv(text, rows)
    write_atomically(file, text.getvalue().encode("utf-8", "surrogateescape"))


def read_label_check(file: Path, class_names: Sequence[str]) -> LabelCheck | None:
    """Reads the table of a run; None if the run has none.

    Example:
        >>> check = check_labels(["a.jpg"], np.array([[0.75, 0.25]]), np.array([0]))
        >>> write_label_check(Path("label_check.csv"), check, ["robin", "wren"])
        >>> read_label_check(Path("label_check.csv"), ["robin", "wren"]).paths
        ['a.jpg']
    """
    if not file.is_file():
        return None
    class_of = {name: class_id for class_id, name in enumerate(class_names)}
    with damage_as_user_error(file), file.open(encoding="utf-8", errors="surrogateescape", newline="") as opened:
        rows = [{name: unquote_formula(cell) for name, cell in row.items()} for row in csv.DictReader(opened)]
        return LabelCheck(
            [row["path"] for row in rows],
            np.array([class_of[row["label"]] for row in rows], np.int64),
            np.array([class_of[row["prediction"]] for row in rows], np.int64),
            np.array([row["label_probability"] for row in rows], np.float64),
            np.array([row["prediction_probability"] for row in rows], np.float64),
            sum(row["suspect"] == "yes" for row in rows),
        )
