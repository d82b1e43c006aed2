"""A studio in memory with any number of made-up photos, for tests of the page alone.

It answers like the studio's API, knows nothing of models and files, and starts in milliseconds. Its responses have the
studio's security headers, so the page runs under the same content security policy.
"""

from __future__ import annotations

import io
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import count
from typing import Any

import uvicorn
from PIL import Image, ImageDraw
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from semifine.studio.app import index_page, static_file
from semifine.studio.security import HEADERS

TOKEN = "token"
RUN = "birds"
NAMES = ("Robin", "Wren", "Dunnock", "Linnet", "Siskin", "Redpoll")
TIME = "2024-05-04T10:00:00+00:00"


class FakeStudio:
    """The state of a studio with ``images`` photos. Photo i is predicted as class i modulo the number of classes."""

    def __init__(self, images: int, names: tuple[str, ...] = NAMES) -> None:
        self.images = images
        self.classes = [{"id": i, "name": name, "retired": False} for i, name in enumerate(names)]
        self.labels: dict[int, dict[str, Any]] = {}
        self.answers: list[tuple[str, dict[int, dict[str, Any] | None], list[dict[str, Any]]]] = []
        self.events: list[dict[str, Any]] = []
        self.numbers = count(1)
        self.classes_version = 0
        self.live: dict[str, Any] | None = live_state(1, 0)
        self.taxonomy: dict[str, Any] | None = None
        self.role = "train"
        self.training: dict[str, Any] = {"state": "none"}
        self.requests: list[str] = []
        self.review: dict[str, Any] = {"suspects": [], "conflicts": [], "agreement": {"alpha": None, "images": 0}}
        self.groups: list[dict[str, Any]] | None = None

    @property
    def last(self) -> int:
        return self.events[-1]["number"] if self.events else 0

    def prediction(self, index: int) -> int | None:
        return index % len(self.classes) if self.classes else None

    def confidence(self, index: int) -> float:
        return round(1 - 0.8 * index / self.images, 4)

    def label(self, index: int) -> dict[str, Any]:
        return self.labels.get(index) or {"state": "waiting", "label": None, "seen": 0, "verdicts": []}

    def tile(self, index: int) -> dict[str, Any]:
        label = self.label(index)
        return {
            "id": index,
            "row": index,
            "path": f"photos/{index:06}.jpg",
            "prediction": self.prediction(index),
            "confidence": self.confidence(index) if self.classes else None,
            "outlier": 0.95 if index % 23 == 5 else 0.1,
            "state": label["state"],
            "label": label["label"],
            "seen": label["seen"],
        }

    def matching(self, query: Any) -> list[int]:
        indices: Any = range(self.images)
        if query.get("class"):
            indices = [i for i in indices if self.prediction(i) == int(query["class"])]
        if query.get("state"):
            indices = [i for i in indices if self.label(i)["state"] == query["state"]]
        if query.get("text"):
            indices = [i for i in indices if query["text"] in f"photos/{i:06}.jpg"]
        if query.get("order") == "outliers":
            indices = sorted(indices, key=lambda i: -self.tile(i)["outlier"])
        return list(indices)

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        events = [self._event(body, image["id"]) for image in body["images"]]
        before = {image["id"]: self.labels.get(image["id"]) for image in body["images"]}
        self.answers.append((body["person"], before, [dict(entry) for entry in self.classes]))
        for event, image in zip(events, body["images"], strict=True):
            if body["kind"] != "skip":
                self.labels[image["id"]] = self._labeled(event)
        return {"images": {image["id"]: self.full_label(image["id"]) for image in body["images"]}}

    def _event(self, body: dict[str, Any], index: int) -> dict[str, Any]:
        named = {"person": body["person"], "kind": body["kind"], "class": body.get("class")}
        event = {"number": next(self.numbers), "time": TIME, "path": f"photos/{index:06}.jpg", **named}
        self.events.append({**event, "index": index})
        return event

    def _labeled(self, event: dict[str, Any]) -> dict[str, Any]:
        state = "labeled" if event["kind"] == "label" else event["kind"]
        return {"state": state, "label": event["class"], "seen": event["number"], "verdicts": [event]}

    def full_label(self, index: int) -> dict[str, Any]:
        return {**self.label(index), "replaced": [], "passed": []}

    def undo(self, body: dict[str, Any]) -> dict[str, Any]:
        mine = [number for number, (person, *_) in enumerate(self.answers) if person == body["person"]]
        if not mine:
            return {"ids": [], "classes": None}
        _, before, classes = self.answers.pop(mine[-1])
        for index, label in before.items():
            self._event({"person": body["person"], "kind": "undo"}, index)
            self.labels.pop(index, None)
            if label:
                self.labels[index] = label
        if before:
            return {"ids": list(before), "classes": None}
        self.classes = classes
        self.classes_version += 1
        return {"ids": [], "classes": self.classes_version}

    def change_classes(self, body: dict[str, Any]) -> dict[str, Any]:
        self.answers.append((body["person"], {}, [dict(entry) for entry in self.classes]))
        action, name = body["action"], body["name"]
        entry = next((item for item in self.classes if item["name"] == name), None)
        if action == "create":
            self.classes.append({"id": len(self.classes), "name": name, "retired": False})
        elif entry is not None and action == "rename":
            entry["name"] = body["to"]
        elif entry is not None:
            entry["retired"] = action != "restore"
        self.classes_version += 1
        return {"classes": self.full_classes(), "version": self.classes_version}

    def full_classes(self) -> list[dict[str, Any]]:
        names = [label["label"] for label in self.labels.values()]
        share = max(1, len(self.classes))
        return [
            {
                "cluster": entry["id"] // 3,
                "position": [0.2 + 0.6 * (entry["id"] % 3) / 2, 0.3 + 0.4 * (entry["id"] // 3 % 2)],
                "labeled": 3,
                "new_labels": names.count(entry["name"]),
                "predicted": self.images // share,
                "waiting": self.images // share - names.count(entry["name"]),
                "uncertainty": 3.0,
                "photos": [entry["id"], entry["id"] + 6],
                **entry,
            }
            for entry in self.classes
        ]

    def counts(self) -> dict[str, int]:
        states = [label["state"] for label in self.labels.values()]
        counted = {state: states.count(state) for state in ("labeled", "conflict", "unsure", "none_of_these")}
        return {"waiting": self.images - len(states), **counted}

    def overview(self) -> dict[str, Any]:
        ids = [entry["id"] for entry in self.classes]
        return {
            "run": RUN,
            "last": self.last,
            "accuracy": None,
            "images": self.images,
            "counts": self.counts(),
            "people": {"Ada": len(self.labels)} if self.labels else {},
            "classes": self.full_classes(),
            "clusters": [ids[start : start + 3] for start in range(0, len(ids), 3)],
            "pairs": [[0, 1, 20]] if len(ids) > 1 else [],
            "num_suspects": len(self.review["suspects"]),
            "live": self.live,
            "taxonomy": self.taxonomy,
            "role": self.role,
            "groups": self.groups,
        }

    def image(self, index: int) -> dict[str, Any]:
        names = [entry["name"] for entry in self.classes if not entry["retired"]][:3]
        candidates = [
            {"name": name, "probability": 0.6 - 0.2 * i, "examples": [i, i + 6]} for i, name in enumerate(names)
        ]
        return {**self.tile(index), "run": RUN, "candidates": candidates, "look_alikes": [], **self.full_label(index)}

    def changes(self, after: int) -> dict[str, Any]:
        changed = {event["index"] for event in self.events if event["number"] > after}
        live = self.live and {**self.live, "images": self.images}
        images = {index: self.full_label(index) for index in changed}
        status = {"counts": self.counts(), "training": self.training, "live": live, "classes": self.classes_version}
        return {"last": self.last, "run": RUN, "images": images, **status}


def live_state(model: int, labels: int, fitting: bool = False) -> dict[str, Any]:
    """The state of a live model; with labels, it has a history."""
    steps = range(10, labels + 1, 10)
    history = [
        {"labels": n, "top1": 50 + n / 5, "low": 50 + n / 5 - 100 / n, "high": min(100, 50 + n / 5 + 100 / n)}
        for n in steps
    ]
    accuracy = {**history[-1], "images": labels} if history else None
    return {
        "model": model,
        "fitting": fitting,
        "labels": labels,
        "seconds": 0.4,
        "accuracy": accuracy,
        "history": history,
    }


@cache
def drawn_photo(number: int, side: int) -> bytes:
    """A photo with a colored disk, one of a few."""
    picture = Image.new("RGB", (side, side * 3 // 4), (90 + 5 * number, 120, 160 - 4 * number))
    radius = side // 6 + side * (number % 7) // 60
    ImageDraw.Draw(picture).circle((side // 2, side * 3 // 8), radius, (230, 40 + 6 * number, 60))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=80)
    return buffer.getvalue()


def _photo(request: Request) -> Response:
    side = 160 if request.path_params["size"] == "small" else 800
    headers = {"Cache-Control": "private, max-age=86400"}
    return Response(drawn_photo(request.path_params["row"] % 30, side), media_type="image/jpeg", headers=headers)


def create_fake_app(studio: FakeStudio) -> Any:
    def respond(name: str, action: Any) -> Route:
        def endpoint(request: Request) -> Response:
            studio.requests.append(f"{name}?{request.url.query}")
            return JSONResponse(action(request))

        return Route(f"/api/{name}", endpoint)

    def submit(name: str, action: Any) -> Route:
        async def endpoint(request: Request) -> Response:
            return JSONResponse(action(json.loads(await request.body())))

        return Route(f"/api/{name}", endpoint, methods=["POST"])

    def grid(request: Request) -> dict[str, Any]:
        query = request.query_params
        found = studio.matching(query)
        start = int(query["offset"])
        tiles = [studio.tile(index) for index in found[start : start + int(query["count"])]]
        return {"total": len(found), "model": studio.live["model"] if studio.live else 0, "tiles": tiles}

    def queue(request: Request) -> dict[str, Any]:
        found = studio.matching(request.query_params)
        return {"total": len(found), "ids": found[: int(request.query_params["count"])]}

    def neighbors(request: Request) -> dict[str, Any]:
        first = request.path_params["index"]
        return {"tiles": [studio.tile(index) for index in range(first, min(first + 30, studio.images))]}

    def log(request: Request) -> dict[str, Any]:
        person = request.query_params.get("person", "")
        events = [event for event in reversed(studio.events) if event["person"] == person or not person]
        return {"events": events, "next": None}

    routes = [
        Route("/", index_page),
        Route("/static/{name}", static_file),
        Route("/photo/{row:int}/{size}", _photo),
        respond("overview", lambda _: studio.overview()),
        respond("queue", queue),
        respond("grid", grid),
        respond("neighbors/{index:int}", neighbors),
        respond("image/{index:int}", lambda request: studio.image(request.path_params["index"])),
        respond("changes", lambda request: studio.changes(int(request.query_params.get("after", 0)))),
        respond("metadata/{index:int}", lambda _: {"date": TIME, "place": [51.5, -0.12]}),
        respond("review", lambda _: studio.review),
        respond("log", log),
        submit("person", lambda body: {"person": body["person"]}),
        submit("answer", studio.answer),
        submit("undo", studio.undo),
        submit("classes", studio.change_classes),
    ]
    app = Starlette(routes=[Mount(f"/{TOKEN}", routes=routes)])

    async def with_headers(scope: Any, receive: Any, send: Any) -> None:
        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    return with_headers


@contextmanager
def serving_fake(studio: FakeStudio) -> Iterator[str]:
    """Serves the studio from a thread. Yields the URL of its page."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = uvicorn.Server(uvicorn.Config(create_fake_app(studio), log_level="error", lifespan="off"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/{TOKEN}/"
    finally:
        server.should_exit = True
        thread.join(30)
        listening.close()
