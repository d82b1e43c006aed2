"""Scans the HTTP interface of the studio with schemathesis, which generates requests from a description of the routes.

    pip install schemathesis
    python benchmarks/scan_studio.py --examples 300 --out benchmarks/results/scan-studio.json

Then sends random bytes that are nearly requests: halves of surrogate pairs, wrong lengths, control characters.

The requests have the token and the headers of the studio's page; without them, the studio refuses every request. The
route that starts a training is left out, because each accepted request would train.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from semifine.config import resolve
from semifine.files import write_json
from semifine.training.fit import fit
from semifine.training.progress import Display

CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"
TEXT, NUMBER = {"type": "string"}, {"type": "integer", "minimum": 0}
ERROR = {"type": "object", "properties": {"error": TEXT}, "required": ["error"]}
PLAIN = {"text/plain": {"schema": TEXT}}
JSON = {"application/json": {"schema": {"type": "object"}}}
QUEUE = {
    "state": {"type": "string", "enum": ["waiting", "labeled", "conflict", "unsure", "none_of_these"]},
    "order": {"type": "string", "enum": ["informative", "cluster"]},
    "person": TEXT,
    "text": TEXT,
    "after": TEXT,
    "before": TEXT,
    "class": NUMBER,
    "cluster": NUMBER,
    "count": NUMBER,
}
GRID = {**QUEUE, "order": {"type": "string", "enum": ["confidence", "outliers", "group"]}, "offset": NUMBER}
FORMATS = {"type": "string", "enum": ["csv", "labelstudio", "coco", "fiftyone"]}
BODIES: dict[str, dict[str, Any]] = {
    "person": {"person": TEXT},
    "undo": {"person": TEXT},
    "import": {"person": TEXT, "format": FORMATS, "content": TEXT},
    "stop": {},
    "switch": {},
    "answer": {
        "run": {"type": "string", "enum": ["birds"]},
        "person": TEXT,
        "kind": {"type": "string", "enum": ["label", "none_of_these", "unsure", "skip"]},
        "images": {
            "type": "array",
            "items": {"type": "object", "properties": {"id": NUMBER, "seen": NUMBER}, "required": ["id", "seen"]},
        },
        "class": TEXT,
        "keep_both": {"type": "boolean"},
    },
}


def describe_routes() -> dict[str, Any]:
    """Returns the routes of the studio as an OpenAPI document."""
    paths = {
        "/": _get({"text/html": {"schema": TEXT}}),
        "/static/{name}": _get(
            {"text/javascript": {}, "text/css": {}, "image/svg+xml": {}, "text/html": {}}, name=TEXT
        ),
        "/photo/{row}/{size}": _get(
            {"image/jpeg": {}}, row=NUMBER, size={"type": "string", "enum": ["small", "large"]}
        ),
        "/labels.csv": _get({"text/csv": {}}),
        "/export/{format}": _get({"text/csv": {}, "application/json": {}}, format=FORMATS),
        "/api/overview": _get(JSON),
        "/api/grid": _get(JSON, GRID),
        "/api/neighbors/{index}": _get(JSON, {"count": NUMBER}, index=NUMBER),
        "/api/review": _get(JSON),
        "/api/log": _get(JSON, {"after": NUMBER, "count": NUMBER, "person": TEXT}),
        "/api/metadata/{index}": _get(JSON, index=NUMBER),
        "/api/queue": _get(JSON, QUEUE),
        "/api/image/{index}": _get(JSON, index=NUMBER),
        "/api/changes": _get(JSON, {"after": NUMBER}),
        **{f"/api/{name}": _post(properties) for name, properties in BODIES.items()},
    }
    return {"openapi": "3.1.0", "info": {"title": "studio", "version": "1"}, "paths": paths}


def _get(content: Mapping[str, Any], query: Mapping[str, Any] | None = None, **path: Any) -> dict[str, Any]:
    parameters = [{"name": name, "in": "query", "schema": schema} for name, schema in (query or {}).items()]
    parameters += [{"name": name, "in": "path", "required": True, "schema": schema} for name, schema in path.items()]
    return {
        "get": {"parameters": parameters, "responses": {"200": {"description": "", "content": content}, **_errors()}}
    }


def _post(properties: Mapping[str, Any]) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties}
    body = {"required": True, "content": {"application/json": {"schema": schema}}}
    return {"post": {"requestBody": body, "responses": {"200": {"description": "", "content": JSON}, **_errors()}}}


def _errors() -> dict[str, Any]:
    """Responses to wrong requests: 400 as JSON, the others from the middleware or the router as text."""
    wrong = {"400": {"description": "", "content": {"application/json": {"schema": ERROR}, **PLAIN}}}
    return wrong | {code: {"description": "", "content": PLAIN} for code in ("403", "404", "405", "413", "415")}


def scan(program: str, url: str, folder: Path, examples: int, seed: int) -> dict[str, Any]:
    """Runs schemathesis on a studio and returns the statuses of the responses and the summary."""
    write_json(folder / "routes.json", describe_routes())
    parts = urlsplit(url)
    command = [program, "run", str(folder / "routes.json"), "--url", url, "--checks", CHECKS, "--mode", "all"]
    command += ["--phases", "examples,coverage,fuzzing", "--max-examples", str(examples), "--seed", str(seed)]
    command += ["--report", "har", "--report-har-path", str(folder / "requests.har")]
    command += ["-H", f"Origin: {parts.scheme}://{parts.netloc}", "--continue-on-failure", "--warnings", "off"]
    done = subprocess.run([*command, "--request-timeout", "20"], cwd=folder, capture_output=True, text=True)
    (folder / "output.txt").write_text(done.stdout + done.stderr, encoding="utf-8")
    print(done.stdout[-6000:], done.stderr[-2000:], file=sys.stderr)
    log = json.loads((folder / "requests.har").read_text(encoding="utf-8"))["log"]["entries"]
    statuses = Counter(str(entry["response"]["status"]) for entry in log)
    return {"exit_code": done.returncode, "statuses": dict(sorted(statuses.items())), "summary": _summary(done.stdout)}


def _summary(output: str) -> list[str]:
    lines = output.encode("ascii", "ignore").decode().splitlines()  # without pictograms
    start = max((number for number, line in enumerate(lines) if " SUMMARY " in line), default=len(lines))
    return [line.strip() for line in lines[start + 1 :] if line.strip()]


# Requests that schemathesis cannot send

NASTY = [
    r'"\ud800"',
    r'"\udfff\ud800"',
    r'"\u0000"',
    "1e999",
    "-1",
    "9" * 5000,
    "NaN",
    "null",
    "true",
    "[]",
    "{}",
    '""',
]
NASTY += [
    "[" * 2000 + "]" * 2000,
    '"' + "x" * 5000 + '"',
    '{"id": 0.5, "seen": 0}',
    '[{"id": 0, "seen": "\\udc80"}]',
    '"ß\u202e"',
]
LEAVES = {"run": '"birds"', "person": '"Ada"', "kind": '"label"', "images": '[{"id": 0, "seen": 0}]', "class": '"x"'}
PATHS = ["", "api/overview", "api/queue", "api/image/0", "api/changes", "photo/0/small", "static/main.js", "labels.csv"]
METHODS = ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "TRACE", "G\x00T", "get"]


def send_raw(url: str, count: int, seed: int) -> dict[str, int]:
    """Sends random requests byte by byte as no HTTP library would, and returns the number of responses by status."""
    rng, parts = random.Random(seed), urlsplit(url)
    statuses: Counter[str] = Counter()
    for _ in range(count):
        with socket.create_connection((parts.hostname, parts.port), timeout=30) as client:
            with suppress(ConnectionError):  # the studio may refuse a request before it has read all of it
                client.sendall(_random_request(rng, parts.netloc, parts.path))
            received = b""
            with suppress(ConnectionError):
                while part := client.recv(65536):
                    received += part
        statuses[received[9:12].decode("ascii", "replace") or "closed"] += 1
    return dict(sorted(statuses.items()))


def _random_request(rng: random.Random, host: str, root: str) -> bytes:
    headers = {"Host": host, "Origin": f"http://{host}", "Connection": "close"}
    if rng.random() < 0.6:
        values = LEAVES | {rng.choice(list(LEAVES)): rng.choice(NASTY) for _ in range(rng.randrange(3))}
        body = ("{" + ", ".join(f'"{key}": {value}' for key, value in values.items()) + "}").encode()
        method, path = "POST", f"api/{rng.choice(list(BODIES))}"
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
    else:
        method, path, body = rng.choice(METHODS), rng.choice(PATHS), b""
        parts = [rng.choice(["%ed%a0%80", "%00", "a", "..", "/", "=", "&", "9"]) for _ in range(rng.randrange(5))]
        path += rng.choice(["", "?", "?text=", "/"]) + "".join(parts)
    if rng.random() < 0.2:
        name = rng.choice(["Host", "Origin", "Content-Length", "Content-Type", "Transfer-Encoding", "Cookie", "\x00"])
        headers[name] = rng.choice(["", "-1", "9" * 30, "chunked", "\xff", "a" * 70000, "null", f"{host}, {host}"])
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    request = bytearray(f"{method} {root}{path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
    if rng.random() < 0.1:
        request[rng.randrange(len(request))] = rng.randrange(256)
    return bytes(request)


def small_run(out: Path) -> Path:
    values = {"data.source": "synthetic", "data.genera": 3, "data.species": 2, "data.labeled_per_class": 3}
    values |= {"data.unlabeled_per_class": 10, "data.test_per_class": 4, "backbone": "test_resnet", "image_size": 32}
    values |= {"iterations": 12, "batch_size": 4, "mu": 2, "device": "cpu", "loggers": "none", "store_size": 48}
    fit(resolve([values]), out, display=Display(quiet=True))
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schemathesis", default="schemathesis", metavar="FILE", help="the program")
    parser.add_argument("--examples", type=int, default=300, help="requests per route in the fuzzing phase")
    parser.add_argument("--raw", type=int, default=3000, help="requests that no HTTP library would send")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        run = small_run(folder / "birds")
        command = [sys.executable, "-m", "semifine", "studio", str(run), "--no-browser", "--device", "cpu"]
        with (
            (folder / "errors.txt").open("w") as errors,
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as studio,
        ):
            assert studio.stdout is not None
            url = studio.stdout.readline().strip()
            found = scan(options.schemathesis, url, folder, options.examples, options.seed)
            found["raw_statuses"] = send_raw(url, options.raw, options.seed)
            is_running = studio.poll() is None
            studio.send_signal(signal.SIGINT)
        found |= {"studio_still_ran": is_running, "tracebacks": (folder / "errors.txt").read_text().count("Traceback")}
        _, traceback, text = (folder / "errors.txt").read_text().rpartition("Traceback")
        print(traceback + text[:6000] if traceback else "no traceback", file=sys.stderr)
    found |= {"starlette": version("starlette"), "uvicorn": version("uvicorn"), "examples": options.examples}
    print(json.dumps(found, indent=2))
    if options.out:
        write_json(options.out, found)


if __name__ == "__main__":
    main()
