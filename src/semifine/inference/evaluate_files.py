"""Evaluation of a trained model on a split of its data, or on a folder or table of labeled photos."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from semifine.data.catalog import Split, normalize_class_name
from semifine.data.csv_table import backslash_hint
from semifine.data.image_files import find_images, list_folder
from semifine.data.label_check import LabelCheck, check_labels
from semifine.data.parallel import usable_cores
from semifine.data.sources.folder import SPLIT_OF
from semifine.data.sources.table import read_rows
from semifine.errors import UserError, first_few
from semifine.files import atomic_file
from semifine.inference.calibration import Logits
from semifine.inference.network import check_finite
from semifine.inference.pipeline import run_inference
from semifine.inference.prediction import ModelMetadata, PredictOptions, predict_from_logits
from semifine.inference.preprocess import Preprocessor, batched
from semifine.inference.scores import Scores, compute_scores
from semifine.inference.tables import ROW_GROUP_SIZE, SCHEMA, as_record, check_output, create_table, printable
from semifine.models.forward import Output
from semifine.runs.run import Run

SPLITS = ("test", "val")
"""Splits of the data of a run that ``evaluate`` accepts by name."""
TABLE_SUFFIXES = (".csv", ".tsv")
MAX_LISTED = 20
"""Number of classes and files that a note lists; ``as_dict`` contains all."""


class Model(Protocol):
    """A trained model with its run."""

    run: Run

    @property
    def metadata(self) -> ModelMetadata: ...
    @property
    def preprocessor(self) -> Preprocessor: ...
    @property
    def batch_size(self) -> int: ...
    def logits(self, images: Sequence[Any]) -> Logits: ...
    def outputs(self, rows: NDArray[np.int64]) -> Iterator[Output]: ...


@dataclass(frozen=True)
class LabeledPhotos:
    """Photos of the classes of a model.

    Args:
        paths: Files ``(N,)``.
        label: Class ids ``(N,)``.
        unknown_classes: Number of photos of each class that the model does not know, by class name.
        without_class: Number of photos without a class.
    """

    paths: list[str]
    label: NDArray[np.int64]
    unknown_classes: Mapping[str, int] = field(default_factory=dict)
    without_class: int = 0


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model, and the predictions behind them.

    Args:
        data: ``{"split": name}`` or ``{"path": path}``.
        photos: The evaluated photos.
        logits: Logits ``(N, K)``.
        scores: The scores.
        unreadable: Files that cannot be read, with the reason.
        trained_on: Number of evaluated files that are labeled training photos of the run.
        label_check: The labels compared with the predictions; labels that look wrong come first.
    """

    data: Mapping[str, str]
    photos: LabeledPhotos
    logits: Logits
    scores: Scores
    label_check: LabelCheck
    unreadable: Mapping[str, str] = field(default_factory=dict)
    trained_on: int = 0

    def suspects(self, class_names: Sequence[str]) -> list[dict[str, str]]:
        """Returns path, label and prediction of each image whose label looks wrong, the most suspicious first."""
        check = self.label_check
        return [
            {"path": path, "label": class_names[label], "prediction": class_names[prediction]}
            for path, label, prediction, _ in zip(
                check.paths, check.label, check.prediction, range(check.num_suspects), strict=False
            )
        ]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, as ``semifine evaluate --json`` prints them."""
        result = {**self.data, **self.scores.as_dict()}
        if "path" in self.data:
            result |= {
                "unknown_classes": dict(self.photos.unknown_classes),
                "without_class": self.photos.without_class,
                "unreadable": dict(self.unreadable),
                "trained_on": self.trained_on,
            }
        return result

    def notes(self) -> list[str]:
        """Describes what was left out, and what limits the meaning of the scores."""
        notes, photos = [], self.photos
        if unknown := photos.unknown_classes:
            names = [f"'{name}' ({count})" for name, count in unknown.items()]
            notes.append(
                f"photos of classes that the run does not know are left out: {sum(unknown.values())}, of the classes "
                f"{first_few(names, MAX_LISTED)}"
            )
        if photos.without_class:
            notes.append(f"photos without a class are left out: {photos.without_class}")
        if self.unreadable:
            files = [f"{path} ({reason})" for path, reason in self.unreadable.items()]
            notes.append(f"unreadable photos are left out: {len(files)}: {first_few(files, MAX_LISTED)}")
        if self.trained_on:
            notes.append(
                f"{self.trained_on} of the {self.scores.images} photos are labeled training photos of the run; "
                "accuracy on new photos is lower"
            )
        return notes


def evaluate(model: Model, data: str | Path) -> Evaluation:
    """Evaluates a model on a split of the data of its run, or on labeled photos.

    Args:
        model: The model.
        data: ``"test"``, ``"val"``, or the path of a folder or table, see :func:`evaluate_path`. Write the path of a
            folder that is named like a split as ``./test``.
    """
    return evaluate_split(model, str(data)) if data in SPLITS else evaluate_path(model, data)


def evaluate_split(model: Model, split: str, progress: Callable[[int], object] | None = None) -> Evaluation:
    """Evaluates a model on a split of the data of its run.

    Args:
        model: The model.
        split: ``"test"`` or ``"val"``.
        progress: Called with the number of processed images.
    """
    catalog = model.run.dataset.catalog
    rows = catalog.rows(Split[split.upper()])
    if not len(rows):
        raise UserError(f"{catalog.name} has no {split} images.")
    logits: list[torch.Tensor] = []
    done = 0
    for output in model.outputs(rows):
        logits.append(output.logits)
        done += len(output.logits)
        if progress is not None:
            progress(done)
    photos = LabeledPhotos([printable(catalog.paths[row]) for row in rows.tolist()], catalog.label[rows])
    return _evaluation(model, {"split": split}, photos, torch.cat(logits).numpy())


def evaluate_path(
    model: Model, path: str | Path, split: str | None = None, progress: Callable[[int], object] | None = None
) -> Evaluation:
    """Evaluates a model on labeled photos.

    Args:
        model: The model.
        path: A folder with one folder per class, or a CSV or TSV file with the columns ``path`` and ``label``.
        split: For a table with a column ``split``: the rows to evaluate; by default all rows with a class.
        progress: Called with the number of processed images.
    """
    photos = read_labeled_photos(Path(path), model.run.class_names, split)
    groups = model.preprocessor.decode_files(iter(photos.paths), usable_cores())
    num_classes, done = len(model.run.class_names), 0
    logits: list[Logits] = []
    reasons: dict[int, str] = {}
    for batch in run_inference(model.logits, model.preprocessor, groups, num_classes, model.batch_size):
        check_finite(batch.logits, model.run.path)
        logits.append(batch.logits)
        reasons |= {done + index: reason for index, reason in batch.errors.items()}
        done += batch.size
        if progress is not None:
            progress(done)
    unreadable = {printable(photos.paths[index]): printable(reason) for index, reason in reasons.items()}
    if len(reasons) == len(photos.paths):
        file, reason = next(iter(unreadable.items()))
        hint = backslash_hint(photos.paths)
        raise UserError(f"None of the {done} photos of {path} can be read, the first one: {file}: {reason}.{hint}")
    readable = [index for index in range(done) if index not in reasons]
    files = [photos.paths[index] for index in readable]
    photos = LabeledPhotos(
        [printable(file) for file in files], photos.label[readable], photos.unknown_classes, photos.without_class
    )
    trained_on = _count_training_photos(model.run, files)
    return _evaluation(model, {"path": str(path)}, photos, np.concatenate(logits), unreadable, trained_on)


def _evaluation(
    model: Model,
    data: Mapping[str, str],
    photos: LabeledPhotos,
    logits: Logits,
    unreadable: Mapping[str, str] | None = None,
    trained_on: int = 0,
) -> Evaluation:
    scores = compute_scores(logits, photos.label, model.metadata.calibration)
    check = check_labels(photos.paths, model.metadata.calibration.probabilities(logits), photos.label)
    return Evaluation(data, photos, logits, scores, check, unreadable or {}, trained_on)


def _count_training_photos(run: Run, files: Sequence[str]) -> int:
    """Counts the files that are labeled training photos of a run; 0 if the data of the run cannot be opened."""
    try:
        catalog = run.catalog
    except (UserError, OSError):
        return 0
    if catalog.root is None:
        return 0
    rows = catalog.rows(Split.LABELED).tolist()
    trained = {os.path.realpath(os.path.join(catalog.root, catalog.paths[row])) for row in rows}
    return sum(os.path.realpath(file) in trained for file in files)


def match_classes(names: Sequence[str], class_names: Sequence[str]) -> dict[str, int]:
    """Returns the class id of each name that a model knows.

    A name that differs from a class only in Unicode normalization or case is that class, unless the case distinguishes
    two classes.

    Example:
        >>> match_classes(["wren", "Robin", "owl"], ("robin", "wren", "Wren"))
        {'wren': 1, 'Robin': 0}
    """
    exact = {normalize_class_name(name): class_id for class_id, name in enumerate(class_names)}
    same_letters = Counter(name.casefold() for name in exact)
    folded = {name.casefold(): class_id for name, class_id in exact.items() if same_letters[name.casefold()] == 1}
    found = {}
    for name in names:
        normalized = normalize_class_name(name)
        class_id = exact.get(normalized, folded.get(normalized.casefold()))
        if class_id is not None:
            found[name] = class_id
    return found


def read_labeled_photos(path: Path, class_names: Sequence[str], split: str | None = None) -> LabeledPhotos:
    """Lists the photos of a folder or table whose classes a model knows.

    Args:
        path: A folder with one folder per class, or a CSV or TSV file with the columns ``path`` and ``label``.
        class_names: The classes of the model.
        split: For a table with a column ``split``: the rows to use; by default all rows with a class.

    Raises:
        UserError: If no photo has a class of the model.
    """
    if path.is_dir():
        if split is not None:
            raise UserError(f"--split selects rows of a table, and {path} is a folder: omit --split.")
        names, without_class = _folder_photos(path)
    elif path.is_file() and path.suffix.lower() in TABLE_SUFFIXES:
        names, without_class = _table_photos(path, split)
    else:
        problem = "is neither a folder nor a table" if path.exists() else "does not exist"
        raise UserError(
            f"{path} {problem}: give a folder with one folder per class, or a .csv or .tsv file with the columns path "
            "and label."
        )
    if not any(names.values()):
        raise UserError(_no_photos(path, without_class, split))
    class_ids = match_classes(list(names), class_names)
    unknown = {name: len(files) for name, files in names.items() if name not in class_ids}
    pairs = [(file, class_ids[name]) for name, files in names.items() if name in class_ids for file in files]
    if not pairs:
        raise UserError(
            f"{path} has no photo of a class of the run: it has the classes {first_few(list(unknown))}, and the run "
            f"knows {first_few(class_names)}; give each class the name that it has in the run.{_split_hint(path)}"
        )
    files, label = zip(*pairs, strict=True)
    return LabeledPhotos(list(files), np.array(label, np.int64), unknown, without_class)


def _folder_photos(root: Path) -> tuple[dict[str, list[str]], int]:
    """The photos in each folder of a class, and the number of photos beside these folders."""
    content = list_folder(root)
    photos = {}
    for folder in content.folders:
        if found := find_images(root, folder, keep_unreadable_folders=True):
            photos[folder] = [os.path.join(root, file) for file in found]
    return photos, len(content.images)


def _table_photos(file: Path, split: str | None) -> tuple[dict[str, list[str]], int]:
    """The photos of each class of a table, and the number of rows without a class."""
    photos: dict[str, list[str]] = {}
    rows = [row for row in read_rows(file) if split is None or row.split == Split[split.upper()]]
    for row in rows:
        if row.truth:
            photos.setdefault(row.truth, []).append(os.path.join(file.parent, row.path))
    by_class = {name: list(dict.fromkeys(paths)) for name, paths in photos.items()}
    return by_class, sum(not row.truth for row in rows)


def _no_photos(path: Path, without_class: int, split: str | None) -> str:
    if without_class:
        return f"No photo of {path} has a class: put each photo into the folder of its class, or name it in the table."
    return f"{path} has no rows of the split '{split}'." if split else f"No photos found in {path}."


def _split_hint(path: Path) -> str:
    """Names a split of a data set if its root was given."""
    if not path.is_dir():
        return ""
    split_of = {name: SPLIT_OF.get(name.lower()) for name in list_folder(path).folders}
    inside = next(
        (name for wanted in (Split.TEST, Split.VAL) for name, split in split_of.items() if split == wanted), ""
    )
    return f" To evaluate on a split of that data set, give {path / inside}." if inside else ""


def write_predictions(out: Path, evaluation: Evaluation, metadata: ModelMetadata) -> None:
    """Writes the prediction of each photo to a table, with the true class in the column ``label``.

    Args:
        out: The table, ``.csv``, ``.jsonl`` or ``.parquet``; must not exist.
        evaluation: The evaluation.
        metadata: The metadata of the model.
    """
    check_new_table(out)
    photos, logits, options = evaluation.photos, evaluation.logits, PredictOptions()
    schema = {"path": "text", "label": "text", **SCHEMA}
    with atomic_file(out) as partial, create_table(partial, out.suffix, schema) as add_rows:
        for chunk in batched(range(len(logits)), ROW_GROUP_SIZE):
            predictions = predict_from_logits(logits[chunk], metadata, options)
            add_rows(
                [
                    {**as_record(photos.paths[index], prediction), "label": metadata.class_names[photos.label[index]]}
                    for index, prediction in zip(chunk, predictions, strict=True)
                ]
            )


def check_new_table(out: Path) -> None:
    """Raises ``UserError`` if a new table cannot be written to ``out``."""
    check_output(out)
    if out.exists():
        raise UserError(f"{out} exists already; choose another --out.")
