"""Sharing in a network: links of people, roles, TLS, and eight people who label at once."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from threading import Barrier, BrokenBarrierError, Thread
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import httpx
import pytest
import uvicorn
from starlette.testclient import TestClient

from semifine.cli.main import main
from semifine.data.label_log import LABEL as LABELED
from semifine.data.label_log import LabelLog
from semifine.errors import UserError
from semifine.studio import connections
from semifine.studio.app import ACTIONS, Studio, create_app, serve
from semifine.studio.sharing import (
    LABEL,
    LOCAL_HOST,
    REVIEW,
    ROLES,
    TRAIN,
    Access,
    Address,
    Certificate,
    Link,
    Person,
    Sharing,
    Visitor,
    check_people,
    create_links,
    listen,
    parse_person,
    read_people,
)
from semifine.studio.snapshot import ModelSnapshot

HOST = "192.168.1.20:8123"
ORIGIN = f"http://{HOST}"
TOKENS = {LABEL: "token-of-a-labeler", REVIEW: "token-of-a-reviewer", TRAIN: "token-of-a-trainer"}
NAMES = {LABEL: "Lu", REVIEW: "Rea", TRAIN: "Tom"}


@pytest.fixture
def client(snapshot: ModelSnapshot, tmp_path: Path) -> Iterator[TestClient]:
    app = create_app(
        Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu"),
        Access({token: Visitor(NAMES[role], role) for role, token in TOKENS.items()}),
        Address("192.168.1.20", 8123),
    )
    with TestClient(app, base_url=ORIGIN, headers={"Origin": ORIGIN}) as client:
        yield client


def post(client: TestClient, role: str, action: str, **body: object) -> httpx.Response:
    return client.post(f"/{TOKENS[role]}/api/{action}", json=body)


def answer(client: TestClient, role: str, class_name: str, **more: object) -> httpx.Response:
    body = {"run": "birds", "kind": LABELED, "class": class_name, "images": [{"id": 0, "seen": 0}], **more}
    return post(client, role, "answer", **body)


def test_the_role_decides_for_each_route(client: TestClient) -> None:
    """Every route that changes something is listed, so a new one cannot be open by mistake."""
    needed = dict.fromkeys(["person", "answer", "undo"], LABEL) | dict.fromkeys(["import", "classes"], REVIEW)
    needed |= dict.fromkeys(["train", "stop", "switch"], TRAIN)
    assert {name: role for name, (_, role) in ACTIONS.items()}.items() <= needed.items()
    for name in ACTIONS:
        for role in ROLES[: ROLES.index(needed[name])]:
            response = post(client, role, name)
            assert response.status_code == 403
            assert response.json()["error"].endswith(".")
            assert needed[name] in response.json()["error"]
        assert post(client, needed[name], name, iterations=0).status_code in (200, 400)


def test_the_name_comes_from_the_link(client: TestClient, snapshot: ModelSnapshot) -> None:
    forged = {"person": "Tom", "role": TRAIN}
    body = {"run": "birds", "kind": LABELED, "class": snapshot.class_names[0], "images": [{"id": 0, "seen": 0}]}
    assert client.post(f"/{TOKENS[LABEL]}/api/answer", json=body | forged).status_code == 200
    assert post(client, TRAIN, "undo", person="Lu").json()["ids"] == []
    overview = client.get(f"/{TOKENS[LABEL]}/api/overview").json()
    assert (overview["role"], overview["person"], overview["people"]) == (LABEL, "Lu", {"Lu": 1})
    assert post(client, LABEL, "person", person="Tom").json() == {"person": "Lu"}
    assert post(client, LABEL, "undo").json()["ids"] == [0]


def test_the_skipped_photos_of_the_links_owner_come_last(client: TestClient) -> None:
    first = client.get(f"/{TOKENS[LABEL]}/api/queue").json()["ids"][0]
    post(client, LABEL, "answer", run="birds", kind="skip", images=[{"id": first, "seen": 0}])
    assert client.get(f"/{TOKENS[LABEL]}/api/queue?person=Tom").json()["ids"][-1] == first


def test_only_reviewers_settle_conflicts(client: TestClient, snapshot: ModelSnapshot) -> None:
    tit, finch = snapshot.class_names[:2]
    answer(client, LABEL, tit)
    assert answer(client, TRAIN, finch).json()["images"]["0"]["state"] == "conflict"
    seen = [{"id": 0, "seen": 2}]
    response = answer(client, LABEL, finch, images=seen)
    assert response.status_code == 403
    assert (
        response.json()["error"] == "Settling a conflict needs the role review: ask the person who started the studio."
    )
    assert answer(client, REVIEW, finch, images=seen).json()["images"]["0"]["label"] == finch


def test_labelers_who_have_not_seen_a_conflict_add_their_opinion(client: TestClient, snapshot: ModelSnapshot) -> None:
    for role, name in zip((REVIEW, TRAIN), snapshot.class_names[:2], strict=True):
        answer(client, role, name)
    image = answer(client, LABEL, snapshot.class_names[2]).json()["images"]["0"]
    assert len(image["verdicts"]) == 3


def test_labelers_can_take_their_part_of_a_conflict_back(client: TestClient, snapshot: ModelSnapshot) -> None:
    answer(client, TRAIN, snapshot.class_names[0])
    assert answer(client, LABEL, snapshot.class_names[1]).json()["images"]["0"]["state"] == "conflict"
    assert post(client, LABEL, "undo").json()["ids"] == [0]
    assert client.get(f"/{TOKENS[LABEL]}/api/image/0").json()["state"] == "labeled"


@pytest.mark.parametrize("host", ["127.0.0.1:8123", "localhost:8123", "192.168.1.20", "192.168.1.21:8123", "studio"])
def test_only_the_given_address_is_served(client: TestClient, host: str) -> None:
    assert client.get(f"/{TOKENS[TRAIN]}/", headers={"Host": host}).status_code == 421


@pytest.mark.parametrize("origin", ["https://192.168.1.20:8123", "http://192.168.1.20", "http://127.0.0.1:8123"])
def test_other_origins_are_rejected(client: TestClient, origin: str) -> None:
    body = {"person": "Lu"}
    response = client.post(f"/{TOKENS[LABEL]}/api/undo", json=body, headers={"Origin": origin})
    assert response.status_code == 403


def test_tls_needs_an_encrypted_origin(snapshot: ModelSnapshot, tmp_path: Path) -> None:
    studio = Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu")
    app = create_app(studio, Access({"token": Visitor("Ada", LABEL)}), Address("birds.example", 443, has_tls=True))
    with TestClient(app, base_url="https://birds.example") as client:
        for origin, status in (("https://birds.example", 200), ("http://birds.example", 403)):
            assert client.post("/token/api/undo", json={}, headers={"Origin": origin}).status_code == status


def test_links_of_people_differ_and_may_be_kept() -> None:
    kept = "kept-token-of-Bo-0123456789"
    first, second = (create_links([Person("Ada", TRAIN), Person("Bo", LABEL, kept)]) for _ in range(2))
    assert first[kept] == Visitor("Bo", LABEL)
    assert len(first | second) == 3, "Ada's link is new at each start"


def test_people_are_read_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "people.csv"
    file.write_text("Name;Role;Token\nAda;train;\nBo;label;0123456789abcdef012345\n")
    assert read_people(file) == [Person("Ada", TRAIN), Person("Bo", LABEL, "0123456789abcdef012345")]
    for text, message in (
        ("name\nAda\n", "columns name and role"),
        ("name,role\nAda,boss\n", "line 2: the role must be label, review or train"),
        ("name,role,token\nAda,label,short\n", "a token needs at least 22"),
        ("name,role\n  ,label\n", "visible characters"),
    ):
        file.write_text(text)
        with pytest.raises(UserError, match=message):
            read_people(file)
    for people, message in (
        ([], "needs people"),
        ([Person("Ada", LABEL), Person("Ada", TRAIN)], "same name Ada"),
        ([Person("Ada", LABEL, "t" * 22), Person("Bo", TRAIN, "t" * 22)], "same token"),
    ):
        with pytest.raises(UserError, match=message):
            check_people(people)
    for text in ("Ada", ":train", "Ada:boss", "Ada:"):
        with pytest.raises(UserError, match="NAME:ROLE"):
            parse_person(text)


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_an_unspecified_address_is_rejected(host: str) -> None:
    with pytest.raises(UserError, match="name the address of this machine"):
        listen(host, 0)


@pytest.mark.parametrize(
    "options",
    [
        "--host 127.0.0.1",
        "--person Ada:train",
        "--people people.csv",
        "--share --key key.pem",
        "--certificate cert.pem",
        "--format coco",
    ],
)
def test_options_that_need_others(options: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", "runs/birds", *options.split()]) == 2
    assert " need" in capsys.readouterr().err


def test_sharing_without_people_is_an_error(studio_run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["studio", str(studio_run), "--share"]) == 2
    assert "--person NAME:ROLE" in capsys.readouterr().err


@contextmanager
def running(studio: Studio, sharing: Sharing, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Link]]:
    """Runs a real server in a thread, and yields its links."""
    servers: list[uvicorn.Server] = []
    create = uvicorn.Server.__init__

    def remember(server: uvicorn.Server, config: uvicorn.Config) -> None:
        create(server, config)
        servers.append(server)

    monkeypatch.setattr(uvicorn.Server, "__init__", remember)
    ready: SimpleQueue[list[Link]] = SimpleQueue()
    with listen(sharing.host, 0) as listening:
        thread = Thread(target=serve, args=(studio, listening, ready.put, sharing), daemon=True)
        thread.start()
        yield ready.get(timeout=60)
        servers[0].should_exit = True
        thread.join(60)


PEOPLE = 8
ANSWERS = 7
"""Answers of each person."""


def test_eight_people_at_once_lose_nothing(
    snapshot: ModelSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody answers all at once; a poll after the last acknowledgment shows everybody all answers.

    The page polls every 1.5 s, so that the answers of others appear within 2 s.
    """
    people = [Person(f"Person {number}", ROLES[number % 3]) for number in range(PEOPLE)]
    studio = Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu")
    start, everybody_answered = Barrier(PEOPLE, timeout=120), Barrier(PEOPLE, timeout=120)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600)  # threads may wait for the processor
    names = snapshot.class_names

    def label(number: int, link: Link) -> dict[str, Any]:
        origin = "{0.scheme}://{0.netloc}".format(urlsplit(link.url))
        # A new connection for each request: on a loaded machine, the server may close idle ones at any moment.
        headers = {"Origin": origin, "Connection": "close"}
        with httpx.Client(base_url=link.url, headers=headers, timeout=120) as client:
            start.wait()
            for answered in range(ANSWERS):
                # Own images, and the last one is everybody's.
                index = number * (ANSWERS - 1) + answered if answered < ANSWERS - 1 else 59
                body = {
                    "run": "birds",
                    "kind": LABELED,
                    "class": names[number % 6],
                    "images": [{"id": index, "seen": 0}],
                }
                assert client.post("api/answer", json=body).status_code == 200
                own = client.get("api/changes", params={"after": 0}).json()["images"][str(index)]
                assert link.visitor.name in {verdict["person"] for verdict in own["verdicts"]}
            everybody_answered.wait()
            return dict(client.get("api/changes", params={"after": 0}).json())

    with running(studio, Sharing(LOCAL_HOST, create_links(people)), monkeypatch) as links:
        with ThreadPoolExecutor(PEOPLE) as pool:
            futures = [pool.submit(label, number, link) for number, link in enumerate(links)]
        errors = [error for future in futures if (error := future.exception()) is not None]
        assert [error for error in errors if not isinstance(error, BrokenBarrierError)] == [], (
            "the barrier breaks later"
        )
        seen = [future.result() for future in futures]
        log = LabelLog(tmp_path / "labels.db").events()
    assert len(log) == PEOPLE * ANSWERS
    for changes in seen:
        assert changes["last"] == PEOPLE * ANSWERS
        assert len(changes["images"]) == PEOPLE * (ANSWERS - 1) + 1
        for number in range(PEOPLE):
            mine = changes["images"][str(number * (ANSWERS - 1))]
            assert [(verdict["person"], verdict["class"]) for verdict in mine["verdicts"]] == [
                (f"Person {number}", names[number % 6])
            ]
        assert len(changes["images"]["59"]["verdicts"]) == PEOPLE
        assert changes["counts"]["conflict"] == 1


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    """A self-signed certificate."""
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    folder = tmp_path_factory.mktemp("tls")
    options = "-x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    name = ["-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]
    subprocess.run(["openssl", "req", *options.split(), *name, *files], check=True, capture_output=True)
    return Certificate(folder / "cert.pem", folder / "key.pem")


def test_tls(
    snapshot: ModelSnapshot, tmp_path: Path, certificate: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio = Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu")
    sharing = Sharing(LOCAL_HOST, create_links([Person("Ada", LABEL)]), certificate)
    with running(studio, sharing, monkeypatch) as links:
        assert links[0].url.startswith("https://127.0.0.1:")
        trusted = ssl.create_default_context(cafile=str(certificate.file))
        assert urlopen(f"{links[0].url}api/changes", context=trusted, timeout=60).status == 200
        with pytest.raises(httpx.TransportError):
            httpx.get(links[0].url.replace("https", "http"), timeout=60)


def test_an_invalid_certificate_is_an_error(certificate: Certificate, tmp_path: Path) -> None:
    (tmp_path / "text.pem").write_text("text")
    certificate.check()
    for wrong in (
        Certificate(tmp_path / "missing.pem"),
        Certificate(tmp_path / "text.pem"),
        Certificate(certificate.file, tmp_path / "text.pem"),
        Certificate(certificate.file),
    ):
        with pytest.raises(UserError, match="--certificate and --key"):
            wrong.check()


def test_roles_may_what_lower_roles_may() -> None:
    for number, role in enumerate(ROLES):
        assert [Visitor("Ada", role).may(other) for other in ROLES] == [other <= number for other in range(3)]


def test_the_log_records_who_answered(client: TestClient, snapshot: ModelSnapshot, tmp_path: Path) -> None:
    answer(client, REVIEW, snapshot.class_names[0])
    path = str(snapshot.catalog.paths[int(snapshot.rows[0])])
    (event,) = LabelLog(tmp_path / "labels.db").events()
    assert (event.person, event.path) == (NAMES[REVIEW], path)
