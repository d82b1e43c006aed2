"""Classes of the label log: labels follow renames and merges, and every change can be undone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine.data.catalog import Split
from semifine.data.dataset import Dataset
from semifine.data.extra_labels import freeze_labels, read_frozen_labels, read_labels
from semifine.data.label_classes import class_changes, resolve_classes
from semifine.data.label_events import (
    CREATE_CLASS,
    LABEL,
    MERGE_CLASS,
    RENAME_CLASS,
    RESTORE_CLASS,
    RETIRE_CLASS,
    UNDO,
    Event,
)
from semifine.data.label_log import LabelLog, agreed_labels, current_labels


def numbered(*events: tuple[str, ...]) -> list[Event]:
    """Returns events from (kind, path or class, ...): a label has path and class, an undo a number."""
    made = []
    for number, (kind, first, *rest) in enumerate(events, 1):
        if kind == LABEL:
            made.append(Event("Ada", first, LABEL, rest[0], number=number))
        elif kind == UNDO:
            made.append(Event("Ada", "", UNDO, undoes=int(first), number=number))
        else:
            made.append(Event("Ada", "", kind, first, target=rest[0] if rest else None, number=number))
    return made


def labels_after(*events: tuple[str, ...]) -> dict[str, str]:
    return dict(agreed_labels(current_labels(numbered(*events))))


def test_labels_follow_a_rename_and_a_merge() -> None:
    events = [(LABEL, "1", "tit"), (LABEL, "2", "wren"), (RENAME_CLASS, "tit", "great tit"), (LABEL, "3", "great tit")]
    assert labels_after(*events) == {"1": "great tit", "2": "wren", "3": "great tit"}
    assert labels_after(*events, (MERGE_CLASS, "great tit", "wren")) == {"1": "wren", "2": "wren", "3": "wren"}
    assert labels_after(*events, (UNDO, "3")) == {"1": "tit", "2": "wren", "3": "tit"}


def test_a_new_class_may_have_the_old_name_of_another() -> None:
    events = [(LABEL, "1", "tit"), (RENAME_CLASS, "tit", "great tit"), (CREATE_CLASS, "tit"), (LABEL, "2", "tit")]
    assert labels_after(*events) == {"1": "great tit", "2": "tit"}


def test_merges_follow_each_other_and_are_restored() -> None:
    events = [(LABEL, "1", "a"), (LABEL, "2", "b"), (LABEL, "3", "c"), (MERGE_CLASS, "a", "b"), (MERGE_CLASS, "b", "c")]
    assert set(labels_after(*events).values()) == {"c"}
    assert labels_after(*events, (RESTORE_CLASS, "b")) == {"1": "b", "2": "b", "3": "c"}
    assert labels_after(*events, (UNDO, "5"), (UNDO, "4")) == {"1": "a", "2": "b", "3": "c"}


def test_two_people_agree_if_their_classes_were_merged() -> None:
    events = numbered((LABEL, "1", "a"), (LABEL, "1", "b"), (MERGE_CLASS, "a", "b"))
    events[1] = Event("Bo", "1", LABEL, "b", number=2)
    assert current_labels(events[:2])["1"].in_conflict
    assert current_labels(events)["1"].label == "b"


def test_changes_for_a_training() -> None:
    events = numbered(
        (RENAME_CLASS, "a", "A"),
        (MERGE_CLASS, "b", "A"),
        (RETIRE_CLASS, "c"),
        (CREATE_CLASS, "d"),
        (CREATE_CLASS, "e"),
        (UNDO, "5"),
        (RENAME_CLASS, "d", "D"),
    )
    changes = class_changes(resolve_classes(events, ["a", "b", "c", "z"])[1])
    assert changes.current == {"a": "A", "b": "A", "c": None}
    assert changes.created == ("D",)


@pytest.fixture
def log(tmp_path: Path) -> LabelLog:
    return LabelLog(tmp_path / "labels.db")


def test_changed_classes_become_classes_of_the_training(log: LabelLog, tmp_path: Path) -> None:
    data = {"genera": 2, "species": 2, "unlabeled_per_class": 3}
    plain = Dataset.open("synthetic", data)
    plain.open_store(32)
    names, catalog = plain.catalog.class_names, plain.catalog
    first, second, *_ = [str(catalog.paths[row]) for row in catalog.rows(Split.UNLABELED)]
    log.append(
        [
            Event("Ada", "", CREATE_CLASS, "new species"),
            Event("Ada", first, LABEL, "new species"),
            Event("Ada", second, LABEL, names[1]),
            Event("Ada", "", RENAME_CLASS, names[1], target="renamed"),
            Event("Ada", "", MERGE_CLASS, names[2], target=names[0]),
            Event("Ada", "", RETIRE_CLASS, names[3]),
        ]
    )
    labels = read_labels(log.file)
    freeze_labels(labels, tmp_path / "frozen.csv")
    for given in (labels, read_frozen_labels(tmp_path / "frozen.csv")):
        dataset = Dataset.open("synthetic", data)
        dataset.open_store(32, labels=given)
        changed = dataset.catalog
        assert changed.class_names == (names[0], "renamed", "new species")
        before = np.bincount(catalog.label[catalog.rows(Split.LABELED)])
        after = np.bincount(changed.label[changed.rows(Split.LABELED)])
        assert after.tolist() == [before[0] + before[2], before[1] + 1, 1]
        added = dict(zip(map(str, changed.paths), changed.label.tolist(), strict=True))
        assert (added[first], added[second]) == (2, 1), "the labeled copies are the last rows"
        assert len(changed.rows(Split.UNLABELED)) == len(catalog.rows(Split.UNLABELED))
        assert len(dataset.store) == len(changed)
