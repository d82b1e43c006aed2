"""The label queue: filters, answers, undo, and several people."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from semifine.data.extra_labels import ExtraLabels, add_labels
from semifine.data.label_log import LABEL, Event, LabelLog
from semifine.errors import UserError
from semifine.studio.queue import Answer, LabelQueue, QueueFilter
from semifine.studio.schemas import find_examples, find_look_alikes, serialize_image, serialize_overview
from semifine.studio.snapshot import ModelSnapshot


@pytest.fixture
def label_queue(snapshot: ModelSnapshot, tmp_path: Path) -> LabelQueue:
    return LabelQueue(snapshot, LabelLog(tmp_path / "labels.db"))


def answer(label_queue: LabelQueue, index: int, kind: str = "label", person: str = "Ada", **more: object) -> None:
    class_name = label_queue.snapshot.class_names[int(more.get("class_id", 0))] if kind == "label" else None
    label_queue.submit(Answer(person, kind, [index], [int(more.get("seen", 0))], class_name))


def test_answered_images_leave_the_queue(label_queue: LabelQueue) -> None:
    first, second, third, fourth, *_ = label_queue.select(QueueFilter("Ada")).tolist()
    answer(label_queue, first)
    answer(label_queue, second, "none_of_these")
    answer(label_queue, third, "unsure")
    answer(label_queue, fourth, "skip")
    left = label_queue.select(QueueFilter("Ada")).tolist()
    assert len(left) == 57
    assert not {first, second, third} & set(left)
    assert left[-1] == fourth, "a skipped image comes back at the end"
    assert label_queue.select(QueueFilter("Bo")).tolist()[0] == fourth, "the order of other people does not change"
    assert label_queue.counts() == {"waiting": 57, "labeled": 1, "conflict": 0, "unsure": 1, "none_of_these": 1}
    for state, index in (("labeled", first), ("none_of_these", second), ("unsure", third)):
        assert label_queue.select(QueueFilter("Ada", state)).tolist() == [index]


def test_filters(label_queue: LabelQueue) -> None:
    prediction = label_queue.snapshot.prediction
    for class_id in range(6):
        found = label_queue.select(QueueFilter("Ada", class_id=class_id))
        assert sorted(found) == [index for index in range(60) if prediction[index] == class_id]
    for cluster, members in enumerate(label_queue.snapshot.confusion_map.clusters):
        found = label_queue.select(QueueFilter("Ada", cluster=cluster, order="cluster"))
        assert sorted(found) == [index for index in range(60) if prediction[index] in members]
    name = label_queue.snapshot.class_names[int(prediction[5])]
    assert 5 in label_queue.select(QueueFilter("Ada", text=name.upper()))
    assert label_queue.select(QueueFilter("Ada", text=label_queue.path(5))).tolist() == [5]
    assert label_queue.select(QueueFilter("Ada", text="no such thing")).tolist() == []


def test_search_ignores_accents(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    names = ("Żółtodzióbek", *snapshot.class_names[1:])
    renamed = replace(snapshot, catalog=replace(snapshot.catalog, class_names=names))
    label_queue = LabelQueue(renamed, LabelLog(tmp_path / "labels.db"))
    label_queue._paths[0] = unicodedata.normalize("NFD", "Zażółć/Mésange.jpg")
    of_class = [index for index in range(60) if snapshot.prediction[index] == 0]
    for text in ("zolto", "ŻÓŁTO", unicodedata.normalize("NFD", "żółto")):
        assert sorted(label_queue.select(QueueFilter("Ada", text=text))) == of_class
    assert label_queue.select(QueueFilter("Ada", text="zazolc/mes")).tolist() == [0]


def test_a_conflict_is_shown_and_resolved(label_queue: LabelQueue) -> None:
    answer(label_queue, 4, class_id=1)
    answer(label_queue, 4, person="Bo", class_id=2)
    assert label_queue.counts()["conflict"] == 1
    shown = serialize_image(label_queue, 4)
    assert shown["state"] == "conflict"
    assert [verdict["person"] for verdict in shown["verdicts"]] == ["Ada", "Bo"]
    assert label_queue.agreed_labels() == []
    answer(label_queue, 4, person="Ada", class_id=2, seen=shown["seen"])
    assert label_queue.agreed_labels() == [(4, label_queue.snapshot.class_names[2])]


def test_an_answer_from_another_window_is_not_replaced_unseen(label_queue: LabelQueue) -> None:
    answer(label_queue, 4, class_id=1, person="Sam")
    for kind in ("label", "none_of_these", "unsure"):
        with pytest.raises(UserError, match=f"answered '{label_queue.snapshot.class_names[1]}' .* in another window"):
            answer(label_queue, 4, kind, person="Sam", class_id=2)
    with pytest.raises(UserError, match="another window"):  # also as one of several images
        label_queue.submit(Answer("Sam", "label", [3, 4], [0, 0], label_queue.snapshot.class_names[2]))
    assert label_queue.agreed_labels() == [(4, label_queue.snapshot.class_names[1])]
    answer(label_queue, 4, class_id=1, person="Sam")  # the same answer again changes nothing
    answer(label_queue, 4, "skip", person="Sam")
    answer(label_queue, 4, class_id=2, person="Sam", seen=label_queue.current_label(4).last)
    assert label_queue.agreed_labels() == [(4, label_queue.snapshot.class_names[2])], (
        "the page showed the earlier answer"
    )


def test_keep_both_replaces_the_persons_own_answer(label_queue: LabelQueue) -> None:
    answer(label_queue, 4, class_id=1)
    answer(label_queue, 4, person="Bo", class_id=2, seen=0)
    names = label_queue.snapshot.class_names
    label_queue.submit(Answer("Ada", "label", [4], [label_queue.current_label(4).last], names[3], keep_both=True))
    assert {(one.person, one.class_name) for one in label_queue.current_label(4).verdicts} == {
        ("Bo", names[2]),
        ("Ada", names[3]),
    }


def test_undo_affects_the_last_answer_of_the_person(label_queue: LabelQueue) -> None:
    answer(label_queue, 1)
    label_queue.submit(Answer("Ada", "label", [2, 3, 4], [0, 0, 0], label_queue.snapshot.class_names[0]))
    answer(label_queue, 5, person="Bo")
    assert label_queue.undo("Ada") == [2, 3, 4]
    assert sorted(index for index, _ in label_queue.agreed_labels()) == [1, 5]
    assert label_queue.undo("Ada") == [1]
    assert label_queue.undo("Ada") == []
    assert label_queue.undo("Nobody") == []


def test_queues_on_the_same_log_agree(label_queue: LabelQueue) -> None:
    answer(label_queue, 1)
    answer(label_queue, 2)
    label_queue.undo("Ada")
    again = LabelQueue(label_queue.snapshot, LabelLog(label_queue._log.file))
    assert again.counts() == label_queue.counts()
    assert again.agreed_labels() == label_queue.agreed_labels()
    answer(again, 9, person="Bo")
    label_queue.refresh()
    assert 9 in dict(label_queue.agreed_labels())
    assert label_queue.verdicts_by_person() == {"Ada": 1, "Bo": 1}


def test_new_labels_become_examples(label_queue: LabelQueue) -> None:
    before = serialize_image(label_queue, 0)["candidates"][0]
    answer(label_queue, 7, class_id=int(label_queue.snapshot.probs[0].argmax()))
    features = label_queue.snapshot.features
    label_queue.snapshot = replace(label_queue.snapshot, features=features.copy())
    label_queue.snapshot.features[7] = label_queue.snapshot.features[0]
    after = serialize_image(label_queue, 0)["candidates"][0]
    row = int(label_queue.snapshot.rows[7])
    assert row not in before["examples"]
    assert after["examples"][0] == row


def test_labels_are_collected_once_per_image(label_queue: LabelQueue, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(label_queue, "agreed_labels", lambda: calls.append(1) or [])
    assert len(serialize_image(label_queue, 0)["candidates"]) > 1
    assert len(calls) == 1


def test_look_alikes_are_waiting_images_with_the_same_prediction(label_queue: LabelQueue) -> None:
    copies = label_queue.snapshot.features.copy()
    same = [
        index for index in range(60) if label_queue.snapshot.prediction[index] == label_queue.snapshot.prediction[0]
    ][:3]
    other = next(
        index for index in range(60) if label_queue.snapshot.prediction[index] != label_queue.snapshot.prediction[0]
    )
    copies[[*same, other]] = copies[0]
    label_queue.snapshot = replace(label_queue.snapshot, features=copies)
    assert {alike["id"] for alike in find_look_alikes(label_queue, same[0])} >= set(same[1:])
    assert other not in {alike["id"] for alike in find_look_alikes(label_queue, same[0])}
    answer(label_queue, same[1])
    assert same[1] not in {alike["id"] for alike in find_look_alikes(label_queue, same[0])}


def test_the_log_keeps_what_the_page_showed(label_queue: LabelQueue) -> None:
    label_queue.submit(Answer("Ada", "label", [3, 8], [0, 0], label_queue.snapshot.class_names[0]))
    first, second = label_queue._log.events()
    names = [label_queue.snapshot.class_names[c] for c in label_queue.snapshot.candidates(3)]
    assert first.shown["candidates"] == names
    assert first.shown["prediction"] == names[0]
    assert second.shown["accepted_with"] == label_queue.path(3)


def test_hidden_labels_are_never_read(label_queue: LabelQueue) -> None:
    poisoned = replace(label_queue.snapshot, catalog=replace(label_queue.snapshot.catalog))
    object.__setattr__(poisoned.catalog, "truth", None)  # reading it would fail
    other = LabelQueue(poisoned, label_queue._log)
    assert serialize_image(other, 0) == serialize_image(label_queue, 0)
    assert serialize_overview(other) == serialize_overview(label_queue)


@pytest.mark.parametrize(
    ("invalid", "part"),
    [
        (Answer("", "label", [0], [0], "x"), "name"),
        (Answer("a\x07b", "skip", [0], [0]), "name"),
        (Answer("Ada", "shout", [0], [0]), "shout"),
        (Answer("Ada", "label", [0], [0], "Dodo"), "Dodo"),
        (Answer("Ada", "label", [0], [0]), "needs a class"),
        (Answer("Ada", "skip", [0], [0], "Dodo"), "needs a class"),
        (Answer("Ada", "skip", [], []), "one image"),
        (Answer("Ada", "skip", [1, 1], [0, 0]), "no image twice"),
        (Answer("Ada", "skip", [60], [0]), "no image 60"),
    ],
)
def test_invalid_answers_are_rejected_and_not_logged(label_queue: LabelQueue, invalid: Answer, part: str) -> None:
    with pytest.raises(UserError, match=part):
        label_queue.submit(invalid)
    assert label_queue._log.events() == []


def test_a_log_may_contain_unknown_classes_and_images(label_queue: LabelQueue) -> None:
    answer(label_queue, 3)
    label_queue._log.append([Event("Ada", label_queue.path(4), LABEL, "dodo"), Event("Ada", "x.jpg", LABEL, "dodo")])
    label_queue.refresh()
    assert sum(shown["new_labels"] for shown in serialize_overview(label_queue)["classes"]) == 1
    assert label_queue.undo("Ada") == [4], "events of unknown images are skipped"
    assert label_queue.undo("Ada") == [3]


def test_reference_photos_are_distinct_after_training_on(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    """Training on adds a labeled copy of a photo, and the log still labels the photo itself."""
    catalog, class_name = snapshot.catalog, snapshot.class_names[0]
    labels = ExtraLabels(tmp_path / "labels.db", [(str(catalog.paths[snapshot.rows[0]]), class_name)])
    longer, store, _ = add_labels(catalog, snapshot.store, labels)
    trained_on = replace(
        snapshot,
        catalog=longer,
        store=store,
        labeled_rows=np.append(snapshot.labeled_rows, len(catalog)),
        labeled_features=np.concatenate([snapshot.labeled_features, snapshot.features[:1]]),
    )
    label_queue = LabelQueue(trained_on, LabelLog(tmp_path / "labels.db"))
    answer(label_queue, 0)
    agreed, paths = label_queue.agreed_labels(), longer.paths
    for index in range(60):
        shown = [str(paths[row]) for row in find_examples(label_queue, index, 0, agreed)]
        assert len(shown) == len(set(shown)) == 3
        assert label_queue.path(index) not in shown, "a photo is no reference for itself"
    photos = serialize_overview(label_queue)["classes"][0]["photos"]
    assert len({str(paths[row]) for row in photos}) == len(photos)
