"""Classes that people create, rename, merge, retire and restore in the studio."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.data.extra_labels import read_labels
from semifine.data.label_log import LabelLog
from semifine.errors import UserError
from semifine.studio.class_changes import ClassChange
from semifine.studio.queue import Answer, LabelQueue
from semifine.studio.schemas import serialize_classes, serialize_image
from semifine.studio.snapshot import ModelSnapshot


@pytest.fixture
def label_queue(snapshot: ModelSnapshot, tmp_path: Path) -> LabelQueue:
    return LabelQueue(snapshot, LabelLog(tmp_path / "labels.db"))


def change(label_queue: LabelQueue, action: str, name: str, to: str | None = None, person: str = "Ada") -> None:
    label_queue.change_class(ClassChange(person, action, name, to))


def label(label_queue: LabelQueue, index: int, name: str, person: str = "Ada") -> None:
    label_queue.submit(Answer(person, "label", [index], [label_queue.current_label(index).last], name))


def test_a_created_class_gets_labels(label_queue: LabelQueue) -> None:
    with pytest.raises(UserError, match="'dodo' is not a class"):
        label(label_queue, 0, "dodo")
    change(label_queue, "create", " dodo ")
    label(label_queue, 0, "dodo")
    assert label_queue.agreed_labels() == [(0, "dodo")]
    shown = serialize_classes(label_queue)[6]
    assert (shown["id"], shown["name"], shown["new_labels"], shown["retired"]) == (6, "dodo", 1, False)
    assert shown["photos"] == [int(label_queue.snapshot.rows[0])]


def test_labels_follow_a_merge_and_its_undo(label_queue: LabelQueue) -> None:
    first, second = label_queue.snapshot.class_names[:2]
    label(label_queue, 0, first)
    change(label_queue, "merge", first, second)
    assert label_queue.agreed_labels() == [(0, second)]
    merged = serialize_classes(label_queue)[0]
    assert (merged["retired"], merged["merged_into"], merged["labeled"]) == (True, 1, 0)
    assert label_queue.undo("Ada") == []
    assert label_queue.agreed_labels() == [(0, first)]
    assert label_queue.undo("Ada") == [0], "the answer before the merge is undone next"


def test_a_renamed_class_keeps_its_id_and_exports_its_new_name(label_queue: LabelQueue) -> None:
    first = label_queue.snapshot.class_names[0]
    label(label_queue, 3, first)
    change(label_queue, "rename", first, "renamed")
    assert serialize_classes(label_queue)[0]["name"] == "renamed"
    with pytest.raises(UserError, match="is not a class"):
        label(label_queue, 4, first)
    assert read_labels(label_queue._log.file).pairs == [(label_queue.path(3), "renamed")]
    again = LabelQueue(label_queue.snapshot, LabelLog(label_queue._log.file))
    assert again.agreed_labels() == [(3, "renamed")]


def test_a_retired_class_is_not_offered_until_it_is_restored(label_queue: LabelQueue) -> None:
    index = 0
    best = serialize_image(label_queue, index)["candidates"][0]
    change(label_queue, "retire", best["name"])
    assert best["id"] not in [shown["id"] for shown in serialize_image(label_queue, index)["candidates"]]
    with pytest.raises(UserError, match="is not a class"):
        label(label_queue, index, best["name"])
    change(label_queue, "restore", best["name"])
    assert serialize_image(label_queue, index)["candidates"][0]["id"] == best["id"]


def test_a_class_with_labels_of_others_is_not_removed_by_undo(label_queue: LabelQueue) -> None:
    change(label_queue, "create", "dodo")
    label(label_queue, 0, "dodo", person="Bo")
    with pytest.raises(UserError, match="cannot undo the class 'dodo'"):
        label_queue.undo("Ada")
    label_queue.undo("Bo")
    label_queue.undo("Ada")
    assert "dodo" not in [shown["name"] for shown in serialize_classes(label_queue) if not shown["retired"]]


@pytest.mark.parametrize(
    ("action", "name", "to", "part"),
    [
        ("create", "", None, "visible characters"),
        ("create", "a\u202eb", None, "visible characters"),
        ("create", "FIRST", None, "exists already"),
        ("rename", "FIRST", "SECOND", "exists already"),
        ("rename", "dodo", "moa", "no class 'dodo'"),
        ("merge", "FIRST", "FIRST", "not another class"),
        ("merge", "FIRST", "dodo", "not another class"),
        ("restore", "FIRST", None, "neither retired nor merged"),
        ("paint", "FIRST", None, "not an action"),
    ],
)
def test_impossible_changes_are_rejected(
    label_queue: LabelQueue, action: str, name: str, to: str | None, part: str
) -> None:
    names = dict(zip(("FIRST", "SECOND"), label_queue.snapshot.class_names, strict=False))
    with pytest.raises(UserError, match=part):
        change(label_queue, action, names.get(name, name), names.get(to, to) if to else None)
    assert label_queue._log.events() == []
