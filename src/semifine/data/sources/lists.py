"""List files of the published data sets (Su et al., CVPR 2021), with one image per line: ``path label``.

The sources ``semi_aves``, ``semi_cub``, ``semi_fungi`` and ``semi_inat`` share this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from semifine.data.catalog import UNKNOWN, Catalog, Split
from semifine.data.decode import FileReader
from semifine.data.image_files import check_path, find_image_folder
from semifine.errors import UserError
from semifine.fields import setting
from semifine.files import read_text

MAX_CLASSES = 1_000_000
MAX_LIST_BYTES = 1 << 30


@dataclass(frozen=True)
class Settings:
    """Settings of a published data set."""

    unlabeled: Literal["in", "inout"] = setting(
        "in", "unlabeled images: of known classes only (in), or also of other classes (inout)"
    )
    labels: Literal["l_train_val", "l_train"] = setting(
        "l_train_val", "labeled list; l_train reserves the list val.txt for validation"
    )
    images: str | None = setting(None, "folder of the images (default: the folder of the data set)", is_path=True)


@dataclass(frozen=True)
class ListFile:
    """Paths and labels of a list file."""

    file: Path
    paths: list[str]
    labels: NDArray[np.int64]


@dataclass(frozen=True)
class Part:
    """The images of one list.

    Args:
        listed: Paths, and labels as listed.
        split: The split of all images.
        truth: `(images,)` class ids for metrics.
    """

    listed: ListFile
    split: Split
    truth: NDArray[np.int64]

    @property
    def label(self) -> NDArray[np.int64]:
        """`(images,)` class ids for training; -1 for unlabeled images, even if their list contains labels."""
        return np.full_like(self.truth, UNKNOWN) if self.split == Split.UNLABELED else self.truth


@dataclass(frozen=True)
class Listed:
    """The content of all lists of a data set.

    Args:
        class_names: Names of the classes.
        class_groups: The group of each class, such as its genus; None if unknown.
        parts: The images of each list.
    """

    class_names: tuple[str, ...]
    class_groups: tuple[str, ...] | None
    parts: list[Part]


def find_lists(root: Path, *tasks: str) -> Path:
    """Finds the folder of the list files: the root, or a subfolder ``splits`` or named after the data set."""
    candidates = [root, root / "splits", *(root / task for task in tasks)]
    for folder in candidates:
        if (folder / "l_train_val.txt").is_file() or (folder / "l_train.txt").is_file():
            return folder
    raise UserError(
        f"No list file l_train_val.txt or l_train.txt was found in {', '.join(map(str, candidates))}: "
        f"put the published lists of {tasks[0]} there."
    )


def read_list(file: Path) -> ListFile:
    """Reads ``path label`` lines. Paths keep all their spaces, because some folder names end with a space."""
    paths, labels = [], []
    for number, line in _lines(file):
        path, space, label = line.rpartition(" ")
        if not space or not path:
            raise UserError(f"{file}, line {number}: expected 'path label', found '{line}'.")
        labels.append(_label(label, f"{file}, line {number}"))
        paths.append(check_path(path, f"{file}, line {number}"))
    if not paths:
        raise UserError(f"{file} is empty: put the published list there.")
    return ListFile(file, paths, np.array(labels, np.int64))


def _label(text: str, where: str) -> int:
    try:
        label = int(text)
    except ValueError:
        raise UserError(f"{where}: the label '{text}' is not a whole number.") from None
    if not UNKNOWN <= label < MAX_CLASSES:
        raise UserError(f"{where}: the label {text} is outside the range of -1 (unknown) to {MAX_CLASSES - 1}.")
    return label


def _lines(file: Path) -> list[tuple[int, str]]:
    try:
        text = read_text(file, MAX_LIST_BYTES)
    except FileNotFoundError:
        raise UserError(f"The list file {file} is missing: put the published lists there.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"The list file {file} cannot be read ({error}): put the published list there.") from error
    lines = text.split("\n")  # splitlines() would also split at characters that are valid in a path
    if lines[-1] == "":
        lines.pop()
    return list(enumerate(lines, start=1))


def read_species(
    root: Path, settings: Settings, task: str, names_file: str, clean: Callable[[str], str] = str.strip
) -> Listed:
    """Reads the lists of a data set whose truth is in oracle files and whose species names are in ``names_file``."""
    folder = find_lists(root, task)
    num_classes, parts = read_labeled(folder, settings)
    parts += read_unlabeled_with_oracle(folder, settings, num_classes)
    candidates = [folder / "species_names.txt", folder / names_file, folder.parent / names_file]
    names = species_names(candidates, num_classes, clean)
    return Listed(names, genus_names(names), parts)


def read_labeled(folder: Path, settings: Settings) -> tuple[int, list[Part]]:
    """Reads the lists with labels: training, validation (with ``l_train``, if present) and test.

    Returns:
        The number of classes, and the parts.
    """
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
        raise UserError(f"{labeled.file}: the labels must be 0, 1, 2, … without gaps.")
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
    """Names of the unlabeled lists to read. With ``in``, no list of other classes is opened."""
    return ["u_train_in"] if settings.unlabeled == "in" else ["u_train_in", "u_train_out"]


def read_unlabeled_with_oracle(folder: Path, settings: Settings, num_classes: int) -> list[Part]:
    """Reads the unlabeled lists, with the truth from ``*_oracle.txt`` if the file exists."""
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
    """The labels of the oracle file in the order of the list. The files differ in order, so they are joined by path."""
    label_of = dict(zip(oracle.paths, oracle.labels.tolist(), strict=True))
    missing = next((path for path in listed.paths if path not in label_of), None)
    if missing is not None:
        raise UserError(f"{oracle.file} does not contain {missing}, which is in {listed.file.name}.")
    surplus = label_of.keys() - set(listed.paths)
    if surplus:
        raise UserError(f"{oracle.file} contains {min(surplus)}, which is not in {listed.file.name}.")
    return np.array([label_of[path] for path in listed.paths], np.int64)


def _check_range(file: Path, truth: NDArray[np.int64], num_classes: int, outside: bool) -> None:
    """Checks that classes outside the label set have ids of ``num_classes`` or more, and the others smaller ids."""
    wrong = truth < num_classes if outside else (truth < 0) | (truth >= num_classes)
    if wrong.any():
        expected = f"{num_classes} or more" if outside else f"0 to {num_classes - 1}"
        raise UserError(f"{file}: the true class {truth[wrong][0]} was found where {expected} was expected.")


def species_names(
    candidates: Sequence[Path], num_classes: int, clean: Callable[[str], str] = str.strip
) -> tuple[str, ...]:
    """Reads class names from the first existing file of ``label name`` lines; by default "class 0" and so on.

    Args:
        candidates: Files to try.
        num_classes: Number of classes.
        clean: Applied to each name.
    """
    file = next((file for file in candidates if file.is_file()), None)
    if file is None:
        return tuple(f"class {label}" for label in range(num_classes))
    names = {}
    for number, line in _lines(file):
        label, space, name = line.partition(" ")
        if not space or not label.isdecimal():
            raise UserError(f"{file}, line {number}: expected 'label name', found '{line}'.")
        names[_label(label, f"{file}, line {number}")] = clean(name.replace("_", " ").strip())
    if sorted(names) != list(range(num_classes)):
        raise UserError(f"{file} must name the classes 0 to {num_classes - 1}, one per line.")
    return check_names([names[label] for label in range(num_classes)], file)


def check_names(names: Sequence[str], file: Path) -> tuple[str, ...]:
    """Returns the class names; raises UserError if one is empty or two are equal."""
    label_of: dict[str, int] = {}
    for label, name in enumerate(names):
        if not name.strip():
            raise UserError(f"{file}: class {label} has no name: put the published list there.")
        if label_of.setdefault(name, label) != label:
            raise UserError(f"{file}: the classes {label_of[name]} and {label} have the same name '{name}'.")
    return tuple(names)


def genus_names(species: Sequence[str]) -> tuple[str, ...] | None:
    """The genus of each species, the first word of its name; None for names such as "class 0"."""
    return None if species[0] == "class 0" else tuple(name.split()[0] for name in species)


def to_catalog(name: str, listed: Listed, root: Path, settings: Settings) -> Catalog:
    """Creates the catalog. The folder of the images is searched once per list."""
    base = Path(settings.images).expanduser().absolute() if settings.images else root
    # A fixed order of splits, so that rows do not depend on the order in which a source reads its lists.
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
        official_splits=True,
    )


def image_folder(base: Path, listed: ListFile) -> Path:
    """Finds the folder that the paths of a list are relative to.

    Candidates are ``base``, ``base/images``, and the nested folder of unpacked archives, where ``u_train_in/0.jpg`` is
    at ``u_train_in/u_train_in/0.jpg``.
    """
    first_component = listed.paths[0].partition("/")[0]
    candidates = [base, base / "images", base / first_component]
    folder = find_image_folder(candidates, listed.paths)
    if folder is not None:
        return folder
    raise UserError(
        f"No image of {listed.file} was found, for example {listed.paths[0]} in "
        f"{', '.join(map(str, candidates))}: set data.images to the folder of the images."
    )
