"""The studio as a web application: what the page may ask, and what it may say."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal
from urllib.parse import quote

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from semifine.data.extra_labels import labels_as_csv
from semifine.data.label_log import LabelLog
from semifine.errors import UserError
from semifine.studio import jobs
from semifine.studio.images import SIDES, Pictures
from semifine.studio.jobs import Retraining
from semifine.studio.queue import LabelQueue, checked_name
from semifine.studio.schemas import (
    number,
    read_iterations,
    read_said,
    read_wanted,
    show_image,
    show_overview,
    show_standing,
    text,
)
from semifine.studio.security import Guard
from semifine.studio.snapshot import ModelSnapshot, take_snapshot

QUEUE_LENGTH = 60
CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
A_DAY = "private, max-age=86400"


class Studio:
    """One model at a time, one log, at most one training."""

    def __init__(self, snapshot: ModelSnapshot, log: LabelLog, device: Literal["auto", "cpu", "cuda"]) -> None:
        self._device: Literal["auto", "cpu", "cuda"] = device
        self._switching = threading.Lock()
        self.log = log
        self.retraining = Retraining(snapshot.run, log.file)
        self._settle(snapshot)

    def _settle(self, snapshot: ModelSnapshot) -> None:
        self.label_queue = LabelQueue(snapshot, self.log)
        self.pictures = Pictures(snapshot.catalog, snapshot.store)

    def use_new_run(self) -> None:
        """Goes on with the model of the finished training."""
        with self._switching:
            run = self.retraining.finished_run
            if run is None:
                raise UserError("There is no finished training to go on with.")
            if run != self.label_queue.snapshot.run:
                self._settle(take_snapshot(run, self._device))


@dataclass(frozen=True)
class Asset:
    content: bytes
    media_type: str


def read_assets() -> dict[str, Asset]:
    """The files of the page, by name; no other file can be asked for."""
    folder = files("semifine.studio") / "assets"
    return {
        entry.name: Asset(entry.read_bytes(), CONTENT_TYPES[Path(entry.name).suffix])
        for entry in folder.iterdir()
        if Path(entry.name).suffix in CONTENT_TYPES
    }


def create_app(studio: Studio, token: str, port: int) -> ASGIApp:
    """All addresses begin with the token."""
    assets = read_assets()

    def page(request: Request) -> Response:  # noqa: ARG001
        return Response(assets["index.html"].content, media_type="text/html")

    def asset(request: Request) -> Response:
        found = assets.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404)
        return Response(found.content, media_type=found.media_type)

    def photo(request: Request) -> Response:
        row, size = request.path_params["row"], request.path_params["size"]
        if size not in SIDES or row >= len(studio.label_queue.snapshot.catalog):
            raise HTTPException(404)
        jpeg = studio.pictures.jpeg(row, size)
        return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": A_DAY})

    def overview(request: Request) -> Response:  # noqa: ARG001
        return JSONResponse(show_overview(studio.label_queue))

    def queue(request: Request) -> Response:
        wanted = read_wanted(request.query_params, studio.label_queue.snapshot)
        places = studio.label_queue.queue(wanted)
        count = number(request.query_params.get("count", str(QUEUE_LENGTH)), "count")
        return JSONResponse({"total": len(places), "ids": places[:count].tolist()})

    def image(request: Request) -> Response:
        label_queue, place = studio.label_queue, request.path_params["place"]
        label_queue.check_place(place)
        return JSONResponse(show_image(label_queue, place))

    def changes(request: Request) -> Response:
        """What happened since the page last asked, the work of other people included."""
        label_queue = studio.label_queue
        label_queue.catch_up()
        last = label_queue.last  # before the events: what comes between is told twice then, and never left out
        after = number(request.query_params.get("after", "0"), "after")
        touched = {label_queue.place_of(event.path) for event in studio.log.events(after)} if after < last else set()
        return JSONResponse(
            {
                "last": last,
                "run": label_queue.snapshot.run.name,
                "counts": label_queue.counts(),
                "images": {
                    place: show_standing(label_queue.current_label(place)) for place in touched if place is not None
                },
                "training": studio.retraining.status(),
            }
        )

    def labels(request: Request) -> Response:  # noqa: ARG001
        label_queue = studio.label_queue
        label_queue.catch_up()
        pairs = sorted((label_queue.path(place), name) for place, name in label_queue.given_labels())
        name = f"{label_queue.snapshot.run.name}-labels.csv"
        return Response(
            labels_as_csv(pairs),
            media_type="text/csv; charset=utf-8",
            headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"},
        )

    def person(body: dict[str, Any]) -> Response:
        return JSONResponse({"person": checked_name(text(body, "person"))})

    def say(body: dict[str, Any]) -> Response:
        label_queue = studio.label_queue
        if text(body, "run") != label_queue.snapshot.run.name:  # which may number the images in another way
            raise UserError("Somebody has gone on to a new model just now: answer once more.")
        said = read_said(body)
        label_queue.say(said)
        return JSONResponse(
            {"images": {place: show_standing(label_queue.current_label(place)) for place in said.places}}
        )

    def undo(body: dict[str, Any]) -> Response:
        return JSONResponse({"ids": studio.label_queue.undo(text(body, "person"))})

    def train(body: dict[str, Any]) -> Response:
        request = jobs.Request(
            from_weights=bool(body.get("from_weights", True)), iterations=read_iterations(body.get("iterations"))
        )
        studio.retraining.start(studio.label_queue.snapshot.run, request)
        return JSONResponse(studio.retraining.status())

    def stop(body: dict[str, Any]) -> Response:  # noqa: ARG001
        studio.retraining.stop()
        return JSONResponse(studio.retraining.status())

    def use(body: dict[str, Any]) -> Response:  # noqa: ARG001
        studio.use_new_run()
        return JSONResponse({"run": studio.label_queue.snapshot.run.name})

    root = f"/{token}"
    routes = [
        Route(f"{root}/", page),
        Route(f"{root}/assets/{{name}}", asset),
        Route(f"{root}/photo/{{row:int}}/{{size}}", photo),
        Route(f"{root}/labels.csv", labels),
        Route(f"{root}/api/overview", overview),
        Route(f"{root}/api/queue", queue),
        Route(f"{root}/api/image/{{place:int}}", image),
        Route(f"{root}/api/changes", changes),
        *(
            Route(f"{root}/api/{action.__name__}", taking_json(action), methods=["POST"])
            for action in (person, say, undo, train, stop, use)
        ),
    ]

    @asynccontextmanager
    async def lifespan(app: Starlette):  # type: ignore[no-untyped-def]  # noqa: ARG001
        yield
        studio.retraining.close()
        studio.log.close()

    app = Starlette(routes=routes, lifespan=lifespan, exception_handlers={UserError: _mistake})
    return Guard(app, token, hosts_at(port))


def hosts_at(port: int) -> list[str]:
    """What browsers call this machine; they leave out port 80."""
    names = ["127.0.0.1", "localhost"]
    return [f"{name}:{port}" for name in names] + (names if port == 80 else [])


def taking_json(action: Callable[[dict[str, Any]], Response]) -> Callable[[Request], Any]:
    """An endpoint that hands over the JSON object of a request."""

    async def endpoint(request: Request) -> Response:
        try:
            body = json.loads(await request.body())
        except (ValueError, RecursionError) as error:  # the latter for thousands of brackets
            raise UserError("The request is not JSON.") from error
        if not isinstance(body, dict):
            raise UserError("The request must be a JSON object.")
        return await run_in_threadpool(action, body)

    return endpoint


def _mistake(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"error": str(error)}, status_code=400)
