"""The web application: responses, rejected requests, and security headers."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image
from starlette.testclient import TestClient

from semifine.data.label_log import Event, LabelLog
from semifine.studio.app import Studio, create_app
from semifine.studio.sharing import TRAIN, Access, Address, Visitor
from semifine.studio.snapshot import ModelSnapshot

TOKEN = "a-token-for-tests"
ORIGIN = "http://127.0.0.1:8123"


@pytest.fixture
def client(snapshot: ModelSnapshot, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(
        Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu"),
        Access({TOKEN: Visitor(None, TRAIN)}),
        Address("127.0.0.1", 8123),
    )
    with TestClient(app, base_url=ORIGIN, headers={"Origin": ORIGIN}) as client:
        yield client


def submit(client: TestClient, **more: object) -> dict[str, object]:
    body = {"run": "birds", "person": "Ada", "kind": "unsure", "images": [{"id": 0, "seen": 0}], **more}
    return client.post(f"/{TOKEN}/api/answer", json=body).json()


def test_the_page_and_its_static_files_are_served(client: TestClient) -> None:
    page = client.get(f"/{TOKEN}/")
    assert page.headers["content-type"].startswith("text/html")
    for name in ("main.js", "style.css", "icon.svg", "queue.js"):
        assert client.get(f"/{TOKEN}/static/{name}").status_code == 200
    assert "http" not in page.text.replace("http-equiv", ""), "no resources from other servers"


def test_label_export_and_changes(client: TestClient, snapshot: ModelSnapshot) -> None:
    name = snapshot.class_names[2]
    first = client.get(f"/{TOKEN}/api/queue").json()["ids"][0]
    assert submit(client, kind="label", images=[{"id": first, "seen": 0}], **{"class": name})["images"]
    table = list(csv.reader(io.StringIO(client.get(f"/{TOKEN}/labels.csv").text)))
    assert table == [["path", "label"], [snapshot.catalog.paths[int(snapshot.rows[first])], name]]
    changes = client.get(f"/{TOKEN}/api/changes?after=0").json()
    assert changes["counts"]["labeled"] == 1
    assert changes["images"][str(first)]["label"] == name
    assert client.get(f"/{TOKEN}/api/changes?after={changes['last']}").json()["images"] == {}
    assert client.post(f"/{TOKEN}/api/undo", json={"person": "Ada"}).json() == {"ids": [first], "classes": None}


def test_an_answer_for_another_model_is_rejected(client: TestClient) -> None:
    assert "new model" in str(submit(client, run="birds-studio-1")["error"])
    assert client.get(f"/{TOKEN}/api/changes").json()["last"] == 0


def test_replaced_verdicts_name_both_people(client: TestClient, snapshot: ModelSnapshot) -> None:
    tit, finch = snapshot.class_names[:2]
    first = submit(client, kind="label", **{"class": tit})["images"]["0"]
    second = submit(client, kind="label", person="Bo", images=[{"id": 0, "seen": first["seen"]}], **{"class": finch})
    (replaced,) = second["images"]["0"]["replaced"]
    assert (replaced["person"], replaced["class"]) == ("Ada", tit)
    assert (replaced["by"]["person"], replaced["by"]["class"], replaced["by"]["number"]) == ("Bo", finch, 2)


def test_keep_both_creates_a_conflict(client: TestClient, snapshot: ModelSnapshot) -> None:
    tit, finch = snapshot.class_names[:2]
    first = submit(client, kind="label", **{"class": tit})["images"]["0"]
    seen = [{"id": 0, "seen": first["seen"]}]
    second = submit(client, kind="label", person="Bo", images=seen, keep_both=True, **{"class": finch})["images"]["0"]
    assert second["state"] == "conflict"
    assert second["replaced"] == []


def test_names_of_people_are_validated(client: TestClient) -> None:
    address = f"/{TOKEN}/api/person"
    assert client.post(address, json={"person": "  Ada  Lovelace "}).json() == {"person": "Ada Lovelace"}
    joined = "علی\u200cرضا"  # noqa: RUF001
    assert client.post(address, json={"person": joined}).json() == {"person": joined}
    for name in ("", "a\x07b", "\u200d", "a\u202eb", "A" * 41):
        assert "1 to 40 visible characters" in client.post(address, json={"person": name}).json()["error"]


def test_photos_are_jpegs(client: TestClient) -> None:
    for size in ("small", "large", "full"):
        response = client.get(f"/{TOKEN}/photo/0/{size}")
        assert response.headers["content-type"] == "image/jpeg"
        assert Image.open(io.BytesIO(response.content)).format == "JPEG"


def test_overview_counts_every_class(client: TestClient) -> None:
    overview = client.get(f"/{TOKEN}/api/overview").json()
    assert sum(entry["predicted"] for entry in overview["classes"]) == overview["images"] == 60
    assert sorted(c for members in overview["clusters"] for c in members) == list(range(6))


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8123", "127.0.0.1", "127.0.0.1:80", ""])
def test_foreign_host_names_are_rejected(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKEN}/", headers={"Host": host}).status_code == 421


def test_host_headers_omit_port_80() -> None:
    assert "127.0.0.1" in Address("127.0.0.1", 80).hosts()
    assert "127.0.0.1" not in Address("127.0.0.1", 8080).hosts()


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:9", "https://127.0.0.1:8123"])
def test_foreign_origins_are_rejected(client: TestClient, origin: str) -> None:
    body = {"person": "Ada", "kind": "unsure", "images": [{"id": 0, "seen": 0}]}
    response = client.post(f"/{TOKEN}/api/answer", json=body, headers={"Origin": origin})
    assert response.status_code == 403
    assert client.get(f"/{TOKEN}/api/changes").json()["last"] == 0, "nothing was written"


def test_cross_site_requests_are_rejected_except_links(client: TestClient) -> None:
    foreign = {"Sec-Fetch-Site": "cross-site"}
    assert client.get(f"/{TOKEN}/photo/0/small", headers={**foreign, "Sec-Fetch-Mode": "no-cors"}).status_code == 403
    assert client.get(f"/{TOKEN}/", headers={**foreign, "Sec-Fetch-Mode": "navigate"}).status_code == 200


def test_post_requires_an_origin_json_and_a_small_body(client: TestClient) -> None:
    address = f"/{TOKEN}/api/undo"
    del client.headers["Origin"]
    assert client.post(address, json={"person": "Ada"}).status_code == 403
    client.headers["Origin"] = ORIGIN
    assert client.post(address, content=b"{}", headers={"Content-Type": "text/plain"}).status_code == 415
    assert client.post(address, json={"person": "A" * 70_000}).status_code == 413
    assert client.put(address, json={}).status_code == 403
    assert client.request("DELETE", address).status_code == 403


@pytest.mark.parametrize("path", ["/", "/wrong/", "/wrong/api/queue", f"/{TOKEN[:-1]}/", f"/{TOKEN}x/", "//", "/é/"])
def test_requests_without_the_token_are_rejected(client: TestClient, path: str) -> None:
    assert client.get(path).status_code == 403


@pytest.mark.parametrize(
    "path",
    [
        "static/../app.py",
        "static/..%2fapp.py",
        "static/%2e%2e%2fapp.py",
        "static/..%252fapp.py",
        "static//etc/passwd",
        "static/%2fetc%2fpasswd",
        "static/app.py",
        "static/main.js%00.css",
        "photo/../../etc/passwd",
        "photo/..%2f..%2fetc%2fpasswd/large",
        "photo/-1/large",
        "photo/0/../../labels.csv%00",
        "photo/99999999/large",
        f"photo/{'9' * 5000}/large",
        f"api/image/{'9' * 5000}",
        "photo/0/original",
        "photo/file:%2f%2f%2fetc%2fpasswd/large",
        "etc/passwd",
    ],
)
def test_other_files_cannot_be_reached(client: TestClient, path: str) -> None:
    assert client.get(f"/{TOKEN}/{path}").status_code in (403, 404)


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b"[" * 30_000,
        b"[]",
        b"{}",
        b'{"run": "birds", "person": 5, "kind": "skip", "images": []}',
        b'{"run": "birds", "person": "Ada", "kind": "skip", "images": [{"id": "x", "seen": 0}]}',
        b'{"run": "birds", "person": "Ada", "kind": "skip", "images": [{"id": true, "seen": 0}]}',
        b'{"run": "birds", "person": "Ada", "kind": "skip", "images": [{"id": 1e300, "seen": 0}]}',
        b'{"run": "birds", "person": "Ada", "kind": "label", "class": ["x"], "images": [{"id": 0, "seen": 0}]}',
        b'{"run": "birds", "person": "Ada", "kind": "skip", "images": [{"id": 10000, "seen": 0}]}',
    ],
)
def test_invalid_bodies_give_one_sentence(client: TestClient, body: bytes) -> None:
    response = client.post(f"/{TOKEN}/api/answer", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


@pytest.mark.parametrize("action", ["answer", "person", "undo", "stop"])
@pytest.mark.parametrize(
    "body",
    [
        rb'{"run": "birds", "person": "Ada", "kind": "label", "class": "\ud800", "images": [{"id": 0, "seen": 0}]}',
        rb'{"run": "birds", "person": "Ada", "kind": "\udfff", "images": [{"id": 0, "seen": 0}]}',
        rb'{"run": "birds", "person": "\udc80", "kind": "skip", "images": [{"id": 0, "seen": 0}]}',
        rb'{"person": "Ada", "\ud800": [["\ud800"]]}',
    ],
)
def test_lone_surrogates_give_one_sentence(client: TestClient, action: str, body: bytes) -> None:
    response = client.post(f"/{TOKEN}/api/{action}", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code == 400
    assert response.json()["error"] == "The request contains text that is not valid Unicode."


def test_the_overview_contains_labels_of_other_processes(
    client: TestClient, snapshot: ModelSnapshot, tmp_path: Path
) -> None:
    path = str(snapshot.catalog.paths[int(snapshot.rows[3])])
    other = LabelLog(tmp_path / "labels.db")
    other.append([Event(person, path, "label", snapshot.class_names[c]) for c, person in enumerate(("Ada", "Bo"))])
    assert client.get(f"/{TOKEN}/api/overview").json()["counts"]["conflict"] == 1
    other.append([Event("Cleo", path, "label", snapshot.class_names[1], seen=2)])
    assert client.get(f"/{TOKEN}/api/image/3").json()["state"] == "labeled"
    other.append([Event("Bo", path, "unsure")])
    assert client.get(f"/{TOKEN}/api/queue?state=labeled").json()["ids"] == [3]


@pytest.mark.parametrize("query", ["state=unknown", "order=size", "class=x", "cluster=-1"])
def test_invalid_filters_give_one_sentence(client: TestClient, query: str) -> None:
    response = client.get(f"/{TOKEN}/api/queue?{query}")
    assert response.status_code == 400
    assert response.json()["error"].endswith(".")


def test_every_response_has_security_headers(client: TestClient) -> None:
    for path in (f"/{TOKEN}/", f"/{TOKEN}/photo/0/small", "/wrong/", f"/{TOKEN}/nowhere"):
        headers = client.get(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "server" not in headers
        assert "set-cookie" not in headers


def test_switch_and_stop_without_a_training(client: TestClient) -> None:
    assert client.post(f"/{TOKEN}/api/switch", json={}).status_code == 400
    assert client.post(f"/{TOKEN}/api/stop", json={}).json()["state"] == "none"
    assert client.post(f"/{TOKEN}/api/train", json={"iterations": 0}).status_code == 400


def test_the_live_state_is_in_overview_and_changes(client: TestClient) -> None:
    overview, changes = (client.get(f"/{TOKEN}/api/{name}").json() for name in ("overview", "changes"))
    assert overview["live"] == changes["live"]
    assert set(overview["live"]) == {"model", "fitting", "labels", "seconds", "accuracy", "history", "images"}
    assert [entry["id"] for entry in overview["classes"]] == list(range(6))


def test_grid_and_neighbors_are_served(client: TestClient) -> None:
    grid = client.get(f"/{TOKEN}/api/grid?order=outliers&offset=10&count=5").json()
    assert grid["total"] == 60
    assert len(grid["tiles"]) == 5
    assert len(client.get(f"/{TOKEN}/api/neighbors/3?count=4").json()["tiles"]) == 4
    for query in ("grid?order=size", "grid?state=unknown", "grid?offset=-1", "neighbors/600"):
        assert client.get(f"/{TOKEN}/api/{query}").json()["error"].endswith(".")


def test_one_answer_names_a_thousand_images(client: TestClient) -> None:
    images = [{"id": index, "seen": 10_000_000} for index in range(1000)]
    error = submit(client, kind="skip", images=images)["error"]
    assert error == "There is no image 60.", "the request is not too large"
