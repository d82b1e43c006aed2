"""Published split lists, as Su et al. (CVPR 2021) gave them out: one image a line, ``path label``.

The readers of the single datasets state what is particular to each; what they share is here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.sources.scan import checked_path, folder_of_images
from semifine.errors import UserError

MOST_CLASSES = 1_000_000


@dataclass(frozen=True)
class Settings:
    """What can be chosen about a published dataset."""

    unlabeled: Literal["in", "inout"] = field(
        default="in", metadata={"help": "unlabeled images: of known classes only, or of other classes, too"}
    )
    labels: Literal["l_train_val", "l_train"] = field(
        default="l_train_val",
        metadata={"help": "labeled list; with l_train the list val.txt is for validation"},
    )
    images: str | None = field(
        default=None, metadata={"help": "folder of the images; default: the root", "is_path": True}
    )


@dataclass(frozen=True)
class ListFile:
    """The lines of a list file."""

    file: Path
    paths: list[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """Images of one list, the split they belong to, and the truth that metrics may see."""

    listed: ListFile
    split: Split
    truth: NDArray[np.int64]

    @property
    def label(self) -> NDArray[np.int64]:
        """What training may see: nothing of unlabeled images, whatever their list says."""
        return np.full_like(self.truth, UNKNOWN) if self.split == Split.UNLABELED else self.truth


@dataclass(frozen=True)
class Listed:
    """A dataset as far as its lists tell, without its images."""

    class_names: tuple[str, ...]
    class_groups: tuple[str, ...] | None
    parts: list[Part]


def find_lists(root: Path, *tasks: str) -> Path:
    """The folder of the list files: the root, ``splits`` in it, or one named after the dataset."""
    candidates = [root, root / "splits", *(root / task for task in tasks)]
    for folder in candidates:
        if (folder / "l_train_val.txt").is_file() or (folder / "l_train.txt").is_file():
            return folder
    raise UserError(
        f"No list file l_train_val.txt or l_train.txt was found in {', '.join(map(str, candidates))}: "
        f"put the published lists of {tasks[0]} there."
    )


def read_list(file: Path) -> ListFile:
    """Reads ``path label`` lines. Paths keep all their spaces: folders that end in one do exist."""
    paths, labels = [], []
    for number, line in _lines(file):
        path, space, label = line.rpartition(" ")
        if not space or not path:
            raise UserError(f"{file}, line {number}: expected 'path label', found '{line}'.")
        labels.append(_label(label, f"{file}, line {number}"))
        paths.append(checked_path(path, f"{file}, line {number}"))
    if not paths:
        raise UserError(f"{file} is empty.")
    return ListFile(file, paths, np.array(labels, np.int64))


def _label(text: str, where: str) -> int:
    try:
        label = int(text)
    except ValueError:
        raise UserError(f"{where}: the label '{text}' is not a whole number.") from None
    if not UNKNOWN <= label < MOST_CLASSES:
        raise UserError(f"{where}: the label {text} is outside of -1 (unknown) to {MOST_CLASSES - 1}.")
    return label


def _lines(file: Path) -> list[tuple[int, str]]:
    try:
        text = file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"The list file {file} is missing: put the published lists there.") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"The list file {file} cannot be read: {error}.") from error
    lines = text.split("\n")  # not splitlines(), which also cuts at characters that a path may hold
    if lines[-1] == "":
        lines.pop()
    return list(enumerate(lines, start=1))


def read_species(
    root: Path, settings: Settings, task: str, names_file: str, tidy: Callable[[str], str] = str.strip
) -> Listed:
    """What the lists of a data set of species say, with the truth in oracle files and the names in one of their own."""
    folder = find_lists(root, task)
    num_classes, parts = read_labeled(folder, settings)
    parts += read_unlabeled_with_oracle(folder, settings, num_classes)
    candidates = [folder / "species_names.txt", folder / names_file, folder.parent / names_file]
    names = species_names(candidates, num_classes, tidy)
    return Listed(names, genera(names), parts)


def read_labeled(folder: Path, settings: Settings) -> tuple[int, list[Part]]:
    """The number of classes, and the parts with labels: training list, val where chosen and present, test."""
    labeled = read_list(folder / f"{settings.labels}.txt")
    num_classes = _count_classes(labeled)
    parts = [Part(labeled, Split.LABELED, labeled.labels)]
    if settings.labels == "l_train" and (folder / "val.txt").is_file():
        parts.append(_labeled_part(folder / "val.txt", Split.VAL, num_classes))
    parts.append(_labeled_part(folder / "test.txt", Split.TEST, num_classes))
    return num_classes, parts


def _count_classes(labeled: ListFile) -> int:
    present = np.unique(labeled.labels)
    if not np.array_equal(present, np.arange(len(present))):
        raise UserError(f"{labeled.file}: the labels must be 0, 1, 2, … without a gap.")
    return len(present)


def _labeled_part(file: Path, split: Split, num_classes: int) -> Part:
    listed = read_list(file)
    outside = np.flatnonzero((listed.labels < 0) | (listed.labels >= num_classes))
    if len(outside):
        line = outside[0]
        raise UserError(
            f"{file}, line {line + 1}: label {listed.labels[line]} has no labeled image; "
            f"labels go from 0 to {num_classes - 1}."
        )
    return Part(listed, split, listed.labels)


def unlabeled_names(settings: Settings) -> list[str]:
    """Names of the unlabeled lists that are wanted; with ``in`` nothing of the others is opened."""
    return ["u_train_in"] if settings.unlabeled == "in" else ["u_train_in", "u_train_out"]


def read_unlabeled_with_oracle(folder: Path, settings: Settings, num_classes: int) -> list[Part]:
    """Unlabeled lists, with the truth from ``*_oracle.txt`` where that file is present."""
    parts = []
    for name in unlabeled_names(settings):
        listed = read_list(folder / f"{name}.txt")
        oracle = folder / f"{name}_oracle.txt"
        truth = np.full(len(listed.paths), UNKNOWN, np.int64)
        if oracle.is_file():
            truth = join_oracle(listed, read_list(oracle))
            _check_range(oracle, truth, num_classes, outside=name == "u_train_out")
        parts.append(Part(listed, Split.UNLABELED, truth))
    return parts


def join_oracle(listed: ListFile, oracle: ListFile) -> NDArray[np.int64]:
    """The oracle's labels in the order of the list: joined on the path, because the files differ in order."""
    label_of = dict(zip(oracle.paths, oracle.labels.tolist(), strict=True))
    missing = next((path for path in listed.paths if path not in label_of), None)
    if missing is not None:
        raise UserError(f"{oracle.file} does not hold {missing}, which is in {listed.file.name}.")
    surplus = label_of.keys() - set(listed.paths)
    if surplus:
        raise UserError(f"{oracle.file} holds {min(surplus)}, which is not in {listed.file.name}.")
    return np.array([label_of[path] for path in listed.paths], np.int64)


def _check_range(file: Path, truth: NDArray[np.int64], num_classes: int, outside: bool) -> None:
    """Images outside the label set have classes from ``num_classes`` on, the others below."""
    wrong = truth < num_classes if outside else (truth < 0) | (truth >= num_classes)
    if wrong.any():
        expected = f"{num_classes} or more" if outside else f"0 to {num_classes - 1}"
        raise UserError(f"{file}: the true class {truth[wrong][0]} was found where {expected} was expected.")


def species_names(
    candidates: Sequence[Path], num_classes: int, tidy: Callable[[str], str] = str.strip
) -> tuple[str, ...]:
    """Names, tidied, from the first file of ``label name`` lines that exists, else made-up ones."""
    file = next((file for file in candidates if file.is_file()), None)
    if file is None:
        return tuple(f"class {label}" for label in range(num_classes))
    names = {}
    for number, line in _lines(file):
        label, space, name = line.partition(" ")
        if not space or not label.isdecimal():
            raise UserError(f"{file}, line {number}: expected 'label name', found '{line}'.")
        names[_label(label, f"{file}, line {number}")] = tidy(name.replace("_", " ").strip())
    if sorted(names) != list(range(num_classes)):
        raise UserError(f"{file} must name the classes 0 to {num_classes - 1}, one a line.")
    return checked_names([names[label] for label in range(num_classes)], file)


def checked_names(names: Sequence[str], file: Path) -> tuple[str, ...]:
    """The names of the classes 0, 1, 2, …, unless one is empty, or two are the same."""
    label_of: dict[str, int] = {}
    for label, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{file}: class {label} has no name.")
        if label_of.setdefault(name, label) != label:
            raise UserError(f"{file}: the classes {label_of[name]} and {label} have the same name '{name}'.")
    return tuple(names)


def genera(species: Sequence[str]) -> tuple[str, ...] | None:
    """The genus, which is the first word of a species name; nothing where the names are made up."""
    return None if species[0] == "class 0" else tuple(name.split()[0] for name in species)


def to_catalog(name: str, listed: Listed, root: Path, settings: Settings) -> Catalog:
    """Adds the images: where they lie is found out once a list, not once an image."""
    base = Path(settings.images).expanduser().absolute() if settings.images else root
    # A fixed order of the splits, so that rows do not depend on how a source read its lists.
    parts = sorted(listed.parts, key=lambda part: part.split)
    paths = [path for part in parts for path in part.listed.paths]
    folders = [image_folder(base, part.listed) for part in parts]
    sizes = [len(part.listed.paths) for part in parts]
    return Catalog(
        name=name,
        class_names=listed.class_names,
        paths=paths,
        label=np.concatenate([part.label for part in parts]),
        split=np.repeat(np.array([part.split for part in parts], np.uint8), sizes),
        truth=np.concatenate([part.truth for part in parts]),
        reader=FileReader(paths, folders, np.repeat(np.arange(len(parts), dtype=np.uint8), sizes)),
        class_groups=listed.class_groups,
        root=root,
    )


def image_folder(base: Path, listed: ListFile) -> Path:
    """The folder that a list's paths are relative to.

    Tried are the base, ``images`` in it, and the nested form that unpacked archives leave, in which
    ``u_train_in/0.jpg`` lies at ``u_train_in/u_train_in/0.jpg``.
    """
    first_component = listed.paths[0].partition("/")[0]
    candidates = [base, base / "images", base / first_component]
    folder = folder_of_images(candidates, listed.paths)
    if folder is not None:
        return folder
    raise UserError(
        f"No image of {listed.file} was found; {listed.paths[0]} was looked for in "
        f"{', '.join(map(str, candidates))}: give the folder of the images with data.images."
    )
