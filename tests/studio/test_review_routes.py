"""Routes for review and exchange, and the same exchange on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from semifine.cli.main import main
from semifine.data.label_events import CREATE_CLASS, LABEL, RENAME_CLASS, UNSURE, Event
from semifine.data.label_log import LabelLog
from semifine.studio.app import Studio, create_app
from semifine.studio.exchange import FORMATS
from semifine.studio.sharing import TRAIN, Access, Address, Visitor
from semifine.studio.snapshot import ModelSnapshot
from tests.studio.photos import write_photos
from tests.studio.runs import run_on

TOKEN = "a-token-for-tests"
ORIGIN = "http://127.0.0.1:8123"


@pytest.fixture
def client(snapshot: ModelSnapshot, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(
        Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu"),
        Access({TOKEN: Visitor(None, TRAIN)}),
        Address("127.0.0.1", 8123),
    )
    with TestClient(app, base_url=f"{ORIGIN}/{TOKEN}/", headers={"Origin": ORIGIN}) as client:
        yield client


def path_of(snapshot: ModelSnapshot, index: int) -> str:
    return str(snapshot.catalog.paths[int(snapshot.rows[index])])


def append(folder: Path, *events: Event) -> None:
    log = LabelLog(folder / "labels.db")
    for event in events:  # one at a time, because the events of one call are one answer
        log.append([event])
    log.close()


def test_review_and_counts_agree_on_conflicts(client: TestClient, snapshot: ModelSnapshot, tmp_path: Path) -> None:
    first, second = (path_of(snapshot, index) for index in (3, 7))
    tit, finch = snapshot.class_names[:2]
    append(
        tmp_path,
        *(Event(person, first, LABEL, name) for person, name in (("Ada", tit), ("Bo", finch))),
        *(Event(person, second, LABEL, tit) for person in ("Ada", "Bo")),
    )
    review = client.get("api/review").json()
    assert [tile["id"] for tile in review["conflicts"]] == [3]
    assert client.get("api/overview").json()["counts"]["conflict"] == 1
    assert review["people"] == ["Ada", "Bo"]
    assert review["agreement"]["images"] == 2
    assert review["agreement"]["pairs"] == [{"a": "Ada", "b": "Bo", "kappa": 0.0, "images": 2}]
    append(tmp_path, Event("Cleo", first, LABEL, tit, seen=2))
    assert client.get("api/review").json()["conflicts"] == []
    assert client.get("api/changes").json()["counts"]["conflict"] == 0


def test_the_audit_log_is_paged_and_complete(client: TestClient, snapshot: ModelSnapshot, tmp_path: Path) -> None:
    events = [Event(f"P{number % 3}", path_of(snapshot, number), UNSURE) for number in range(20)]
    append(tmp_path, *events)
    for person in (None, "P1"):
        query: dict[str, Any] = {"count": 4, **({} if person is None else {"person": person})}
        found, after = [], 0
        while after is not None:
            page = client.get("api/log", params={**query, "after": after}).json()
            assert len(page["events"]) <= 4
            found += [entry["number"] for entry in page["events"]]
            after = page["next"]
        assert found == [number for number in range(20, 0, -1) if person in (None, f"P{(number - 1) % 3}")]
    entry = client.get("api/log", params={"count": 1}).json()["events"][0]
    assert (entry["person"], entry["kind"], entry["path"]) == ("P1", UNSURE, path_of(snapshot, 19))


@pytest.mark.parametrize("format_name", [name for name in FORMATS if name != "camtrapdp"])
def test_exported_labels_can_be_imported(
    client: TestClient, snapshot: ModelSnapshot, tmp_path: Path, format_name: str
) -> None:
    names = {index: snapshot.class_names[index % 4] for index in range(5)}
    append(tmp_path, *(Event("Ada", path_of(snapshot, index), LABEL, name) for index, name in names.items()))
    exported = client.get(f"export/{format_name}")
    assert FORMATS[format_name].suffix in exported.headers["content-disposition"]
    for _ in range(5):
        client.post("api/undo", json={"person": "Ada"})
    body = {"person": "Bo", "format": format_name, "content": exported.text}
    outcome = client.post("api/import", json=body).json()
    assert (outcome["labels"], outcome["known"], outcome["skipped"]) == (5, 0, [])
    changes = client.get("api/changes").json()
    assert {int(index): image["label"] for index, image in changes["images"].items()} == names
    assert client.get("api/log?count=1").json()["events"][0]["imported"] == format_name
    assert client.post("api/import", json=body).json()["labels"] == 0, "they are known"
    assert sorted(client.post("api/undo", json={"person": "Bo"}).json()["ids"]) == list(range(5))


def test_unknown_labels_are_reported(client: TestClient, snapshot: ModelSnapshot) -> None:
    table = f"path,label\nmissing.jpg,{snapshot.class_names[0]}\n{path_of(snapshot, 0)},dodo\n"
    outcome = client.post("api/import", json={"person": "Bo", "format": "csv", "content": table}).json()
    assert outcome["labels"] == 0
    assert [item["path"] for item in outcome["skipped"]] == ["missing.jpg", path_of(snapshot, 0)]


@pytest.mark.parametrize(
    "body",
    [
        {"person": "Bo", "format": "yolo", "content": ""},
        {"person": "Bo", "format": "csv"},
        {"person": "", "format": "csv", "content": ""},
        {"person": "Bo", "format": "csv", "content": "\0"},
        {"person": "Bo", "format": "coco", "content": "{"},
    ],
)
def test_invalid_imports_give_one_sentence(client: TestClient, body: dict[str, str]) -> None:
    response = client.post("api/import", json=body)
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


def test_imports_may_be_larger_than_other_requests(client: TestClient, snapshot: ModelSnapshot) -> None:
    table = "path,label\n" + f"missing.jpg,{snapshot.class_names[0]}\n" * 10_000
    assert client.post("api/import", json={"person": "Bo", "format": "csv", "content": table}).status_code == 200
    assert client.post("api/undo", json={"person": table}).status_code == 413


def test_unknown_formats_are_not_found(client: TestClient) -> None:
    assert client.get("export/yolo").status_code == 404


@pytest.fixture(scope="module")
def photo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    return run_on(write_photos(folder / "photos"), folder / "run")


@pytest.mark.parametrize("format_name", FORMATS)
def test_command_line(photo_run: Path, tmp_path: Path, format_name: str, capsys: pytest.CaptureFixture[str]) -> None:
    log = LabelLog(tmp_path / "a.db")
    log.append([Event("Ada", f"unlabeled/{number}.jpg", LABEL, "robin") for number in range(3)])
    log.close()
    file, other = tmp_path / f"labels{FORMATS[format_name].suffix}", tmp_path / "b.db"
    options = ["studio", str(photo_run), "--format", format_name]
    assert main([*options, "--db", str(tmp_path / "a.db"), "--export", str(file)]) == 0
    assert main([*options, "--db", str(other), "--import", str(file), "--person", "Bo"]) == 0
    assert "3 labels from" in capsys.readouterr().out
    imported = LabelLog(other).events()
    assert [(event.person, event.path, event.class_name) for event in imported] == [
        ("Bo", f"unlabeled/{number}.jpg", "robin") for number in range(3)
    ]
    assert main([*options, "--db", str(other), "--import", str(file), "--person", "Bo"]) == 0
    assert "3 labels are in the log already" in capsys.readouterr().err


def test_labels_of_photos_without_a_run_are_exported_with_current_names(photo_run: Path, tmp_path: Path) -> None:
    log = LabelLog(tmp_path / "labels.db")
    log.append([Event("Ada", "", CREATE_CLASS, "Robin")])
    log.append([Event("Ada", "unlabeled/0.jpg", LABEL, "Robin")])
    log.append([Event("Ada", "", RENAME_CLASS, "Robin", target="robin")])
    log.close()
    options = ["--db", str(tmp_path / "labels.db"), "--format", "coco", "--export", str(tmp_path / "coco.json")]
    assert main(["studio", str(photo_run.parent / "photos"), *options]) == 0
    coco = json.loads((tmp_path / "coco.json").read_text())
    assert [category["name"] for category in coco["categories"]] == ["robin"]
    assert [image["file_name"] for image in coco["images"]] == ["unlabeled/0.jpg"]


def test_agreement_counts_renamed_classes_as_one(client: TestClient, snapshot: ModelSnapshot, tmp_path: Path) -> None:
    tit, path = snapshot.class_names[0], path_of(snapshot, 3)
    rename = Event("Ada", "", RENAME_CLASS, tit, target="tit")
    append(tmp_path, Event("Ada", path, LABEL, tit), rename, Event("Bo", path, LABEL, "tit"))
    review = client.get("api/review").json()
    assert review["conflicts"] == []
    assert review["agreement"]["images"] == 1
    assert review["agreement"]["alpha"] is None, "all answers are equal"


def test_the_command_line_reports_unknown_photos(
    photo_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = {f"{number}": "robin" for number in range(30, 60)}
    (tmp_path / "labels.json").write_text(json.dumps({"labels": labels}))
    options = ["--import", str(tmp_path / "labels.json"), "--format", "fiftyone", "--db", str(tmp_path / "c.db")]
    assert main(["studio", str(photo_run), *options]) == 0
    printed = capsys.readouterr().err
    assert "not imported: 30: there is no such photo" in printed
    assert "10 more labels" in printed
