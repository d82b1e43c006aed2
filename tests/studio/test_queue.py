"""Images beside labels: queues, answers, undo, and several people."""

from __future__ import annotations

import unicodedata
from dataclasses import replace
from pathlib import Path

import pytest

from semifine.data.label_log import LABEL, Event, LabelLog
from semifine.errors import UserError
from semifine.studio.queue import Desk, Said, Wanted
from semifine.studio.schemas import look_alikes, show_image, show_overview
from semifine.studio.snapshot import Insight


@pytest.fixture
def desk(insight: Insight, tmp_path: Path) -> Desk:
    return Desk(insight, LabelLog(tmp_path / "labels.db"))


def say(desk: Desk, place: int, kind: str = "label", person: str = "Ada", **more: object) -> None:
    class_name = desk.insight.class_names[int(more.get("class_id", 0))] if kind == "label" else None
    desk.say(Said(person, kind, [place], [int(more.get("seen", 0))], class_name))


def test_answered_images_leave_the_queue(desk: Desk) -> None:
    first, second, third, fourth, *_ = desk.queue(Wanted("Ada")).tolist()
    say(desk, first)
    say(desk, second, "none_of_these")
    say(desk, third, "unsure")
    say(desk, fourth, "skip")
    left = desk.queue(Wanted("Ada")).tolist()
    assert len(left) == 57
    assert not {first, second, third} & set(left)
    assert left[-1] == fourth, "what was skipped comes back at the end"
    assert desk.queue(Wanted("Bo")).tolist()[0] == fourth, "for somebody else it is where it was"
    assert desk.counts() == {"waiting": 57, "labelled": 1, "conflict": 0, "unsure": 1, "none_of_these": 1}
    for state, place in (("labelled", first), ("none_of_these", second), ("unsure", third)):
        assert desk.queue(Wanted("Ada", state)).tolist() == [place]


def test_filters(desk: Desk) -> None:
    prediction = desk.insight.prediction
    for class_id in range(6):
        found = desk.queue(Wanted("Ada", class_id=class_id))
        assert sorted(found) == [place for place in range(60) if prediction[place] == class_id]
    for cluster, members in enumerate(desk.insight.map.clusters):
        found = desk.queue(Wanted("Ada", cluster=cluster, order="cluster"))
        assert sorted(found) == [place for place in range(60) if prediction[place] in members]
    name = desk.insight.class_names[int(prediction[5])]
    assert 5 in desk.queue(Wanted("Ada", text=name.upper()))
    assert desk.queue(Wanted("Ada", text=desk.path(5))).tolist() == [5]
    assert desk.queue(Wanted("Ada", text="no such thing")).tolist() == []


def test_a_search_needs_no_accents(insight: Insight, tmp_path: Path) -> None:
    names = ("Żółtodzióbek", *insight.class_names[1:])
    renamed = replace(insight, catalog=replace(insight.catalog, class_names=names))
    desk = Desk(renamed, LabelLog(tmp_path / "labels.db"))
    desk._paths[0] = unicodedata.normalize("NFD", "Zażółć/Mésange.jpg")
    of_class = [place for place in range(60) if insight.prediction[place] == 0]
    for text in ("zolto", "ŻÓŁTO", unicodedata.normalize("NFD", "żółto")):
        assert sorted(desk.queue(Wanted("Ada", text=text))) == of_class
    assert desk.queue(Wanted("Ada", text="zazolc/mes")).tolist() == [0]


def test_conflict_is_seen_and_settled(desk: Desk) -> None:
    say(desk, 4, class_id=1)
    say(desk, 4, person="Bo", class_id=2)
    assert desk.counts()["conflict"] == 1
    shown = show_image(desk, 4)
    assert shown["state"] == "conflict"
    assert [verdict["person"] for verdict in shown["verdicts"]] == ["Ada", "Bo"]
    assert desk.given_labels() == []
    say(desk, 4, person="Ada", class_id=2, seen=shown["seen"])
    assert desk.given_labels() == [(4, desk.insight.class_names[2])]


def test_an_own_answer_of_another_window_is_not_lost_in_silence(desk: Desk) -> None:
    say(desk, 4, class_id=1, person="Sam")
    for kind in ("label", "none_of_these", "unsure"):
        with pytest.raises(UserError, match=f"answered '{desk.insight.class_names[1]}' .* in another window"):
            say(desk, 4, kind, person="Sam", class_id=2)
    with pytest.raises(UserError, match="another window"):  # nor as one of several
        desk.say(Said("Sam", "label", [3, 4], [0, 0], desk.insight.class_names[2]))
    assert desk.given_labels() == [(4, desk.insight.class_names[1])]
    say(desk, 4, class_id=1, person="Sam")  # the same once more loses nothing
    say(desk, 4, "skip", person="Sam")
    say(desk, 4, class_id=2, person="Sam", seen=desk.standing(4).last)
    assert desk.given_labels() == [(4, desk.insight.class_names[2])], "a change of mind"


def test_who_keeps_both_answers_still_changes_the_own_one(desk: Desk) -> None:
    say(desk, 4, class_id=1)
    say(desk, 4, person="Bo", class_id=2, seen=0)
    names = desk.insight.class_names
    desk.say(Said("Ada", "label", [4], [desk.standing(4).last], names[3], beside=True))
    assert {(one.person, one.class_name) for one in desk.standing(4).verdicts} == {("Bo", names[2]), ("Ada", names[3])}


def test_undo_takes_back_the_last_action_of_that_person_only(desk: Desk) -> None:
    say(desk, 1)
    desk.say(Said("Ada", "label", [2, 3, 4], [0, 0, 0], desk.insight.class_names[0]))
    say(desk, 5, person="Bo")
    assert desk.undo("Ada") == [2, 3, 4]
    assert sorted(place for place, _ in desk.given_labels()) == [1, 5]
    assert desk.undo("Ada") == [1]
    assert desk.undo("Ada") == []
    assert desk.undo("Nobody") == []


def test_a_second_desk_on_the_same_log_sees_everything(desk: Desk) -> None:
    say(desk, 1)
    say(desk, 2)
    desk.undo("Ada")
    again = Desk(desk.insight, LabelLog(desk._log.file))
    assert again.counts() == desk.counts()
    assert again.given_labels() == desk.given_labels()
    say(again, 9, person="Bo")
    desk.catch_up()
    assert 9 in dict(desk.given_labels())
    assert desk.people() == {"Ada": 1, "Bo": 1}


def test_labels_of_people_become_examples(desk: Desk) -> None:
    twin = show_image(desk, 0)["candidates"][0]
    say(desk, 7, class_id=int(desk.insight.probs[0].argmax()))
    features = desk.insight.features
    desk.insight = replace(desk.insight, features=features.copy())
    desk.insight.features[7] = desk.insight.features[0]
    after = show_image(desk, 0)["candidates"][0]
    row = int(desk.insight.rows[7])
    assert row not in twin["examples"]
    assert after["examples"][0] == row


def test_labels_are_gathered_once_for_an_image(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(desk, "given_labels", lambda: asked.append(1) or [])
    assert len(show_image(desk, 0)["candidates"]) > 1
    assert len(asked) == 1


def test_look_alikes_are_waiting_images_with_the_same_prediction(desk: Desk) -> None:
    copies = desk.insight.features.copy()
    same = [place for place in range(60) if desk.insight.prediction[place] == desk.insight.prediction[0]][:3]
    other = next(place for place in range(60) if desk.insight.prediction[place] != desk.insight.prediction[0])
    copies[[*same, other]] = copies[0]
    desk.insight = replace(desk.insight, features=copies)
    assert {alike["id"] for alike in look_alikes(desk, same[0])} >= set(same[1:])
    assert other not in {alike["id"] for alike in look_alikes(desk, same[0])}
    say(desk, same[1])
    assert same[1] not in {alike["id"] for alike in look_alikes(desk, same[0])}


def test_the_log_keeps_what_the_page_showed(desk: Desk) -> None:
    desk.say(Said("Ada", "label", [3, 8], [0, 0], desk.insight.class_names[0]))
    first, second = desk._log.events()
    names = [desk.insight.class_names[c] for c in desk.insight.short_list(3)]
    assert first.shown["candidates"] == names
    assert first.shown["prediction"] == names[0]
    assert second.shown["accepted_with"] == desk.path(3)


def test_hidden_truth_is_never_shown(desk: Desk) -> None:
    poisoned = replace(desk.insight, catalog=replace(desk.insight.catalog))
    object.__setattr__(poisoned.catalog, "truth", None)  # any look at it would now fail
    other = Desk(poisoned, desk._log)
    assert show_image(other, 0) == show_image(desk, 0)
    assert show_overview(other) == show_overview(desk)


@pytest.mark.parametrize(
    ("said", "part"),
    [
        (Said("", "label", [0], [0], "x"), "name"),
        (Said("a\x07b", "skip", [0], [0]), "name"),
        (Said("Ada", "shout", [0], [0]), "shout"),
        (Said("Ada", "label", [0], [0], "Dodo"), "Dodo"),
        (Said("Ada", "label", [0], [0]), "names a class"),
        (Said("Ada", "skip", [0], [0], "Dodo"), "names a class"),
        (Said("Ada", "skip", [], []), "one image"),
        (Said("Ada", "skip", [1, 1], [0, 0]), "different"),
        (Said("Ada", "skip", [60], [0]), "no image 60"),
    ],
)
def test_nonsense_is_refused_and_not_logged(desk: Desk, said: Said, part: str) -> None:
    with pytest.raises(UserError, match=part):
        desk.say(said)
    assert desk._log.events() == []


def test_a_log_may_speak_of_classes_and_images_that_are_gone(desk: Desk) -> None:
    say(desk, 3)
    desk._log.append([Event("Ada", desk.path(4), LABEL, "dodo"), Event("Ada", "gone.jpg", LABEL, "dodo")])
    desk.catch_up()
    assert sum(shown["given"] for shown in show_overview(desk)["classes"]) == 1
    assert desk.undo("Ada") == [4], "what was said of an image that is gone is not in the way"
    assert desk.undo("Ada") == [3]
