"""Limits of connections, with a server on a socket of this machine."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from urllib.error import URLError
from urllib.parse import urlsplit
from urllib.request import urlopen

import pytest
import uvicorn

from semifine.data.label_log import LabelLog
from semifine.studio import connections
from semifine.studio.app import Studio, serve
from semifine.studio.sharing import LOCAL_HOST, listen
from semifine.studio.snapshot import ModelSnapshot

MAX_CONNECTIONS = 5


@pytest.fixture
def url(snapshot: ModelSnapshot, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a studio with low limits."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", MAX_CONNECTIONS)
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 0.3)
    servers: list[uvicorn.Server] = []
    create = uvicorn.Server.__init__

    def remember(server: uvicorn.Server, config: uvicorn.Config) -> None:
        create(server, config)
        servers.append(server)

    monkeypatch.setattr(uvicorn.Server, "__init__", remember)
    urls: SimpleQueue[str] = SimpleQueue()
    with listen(LOCAL_HOST, 0) as listening:
        studio = Studio(snapshot, LabelLog(tmp_path / "labels.db"), "cpu")
        thread = Thread(target=serve, args=(studio, listening, lambda links: urls.put(links[0].url)), daemon=True)
        thread.start()
        yield urls.get(timeout=60)
        servers[0].should_exit = True
        thread.join(60)


def connect(url: str, sent: bytes = b"") -> socket.socket:
    parts = urlsplit(url)
    client = socket.create_connection((parts.hostname, parts.port), timeout=20)
    client.sendall(sent)
    return client


def answers(url: str) -> bool:
    try:
        return urlopen(f"{url}api/changes", timeout=20).status == 200
    except (URLError, ConnectionError):
        return False


def wait_until_it_answers(url: str) -> None:
    """On a loaded machine, even this request may take longer than the low limit, and is closed."""
    deadline = time.monotonic() + 60
    while not answers(url):
        assert time.monotonic() < deadline


def test_slow_requests_do_not_lock_out_the_page(url: str) -> None:
    """Without the limits, each connection stays open as long as its client likes."""
    begun = f"GET {urlsplit(url).path} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n".encode()
    body = begun.replace(b"GET", b"POST") + b"Content-Length: 1000\r\n\r\n{"
    with ExitStack() as stack:
        slow = [stack.enter_context(connect(url, sent)) for sent in (b"", b"GET", begun, body)]
        for client in slow:
            read_all(client)  # until the server closes the connection
        wait_until_it_answers(url)


def read_all(client: socket.socket) -> bytes:
    received = b""
    while part := client.recv(4096):
        received += part
    return received


def test_trickled_headers_end_at_the_time_limit(url: str) -> None:
    with connect(url, b"GET / HTTP/1.1\r\n") as client, pytest.raises(ConnectionError):
        trickle(client)


def trickle(client: socket.socket) -> None:
    for _ in range(600):
        client.sendall(b"X-Slow: 1\r\n")
        time.sleep(0.05)


def test_connections_above_the_limit_are_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "REQUEST_SECONDS", 600)
    with ExitStack() as stack:
        for _ in range(MAX_CONNECTIONS):
            stack.enter_context(connect(url))
        refused = stack.enter_context(connect(url))
        assert read_all(refused).startswith(b"HTTP/1.1 503 ")
        assert not answers(url)
    wait_until_it_answers(url)  # the server has noticed that the others are closed


def test_a_client_that_leaves_during_its_request_causes_no_traceback(
    capfd: pytest.CaptureFixture[str],  # before the server, which logs to the stream of its start
    url: str,
) -> None:
    parts = urlsplit(url)
    headers = f"Host: {parts.netloc}\r\nOrigin: http://{parts.netloc}\r\nContent-Type: application/json\r\n"
    begun = f"POST {parts.path}api/person HTTP/1.1\r\n{headers}Content-Length: 100\r\n\r\n{{".encode()
    with connect(url, begun):
        wait_until_it_answers(url)  # the server has read the beginning of the request
    wait_until_it_answers(url)  # it has noticed the end of the connection
    assert "Traceback" not in capfd.readouterr().err
