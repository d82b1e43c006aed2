"""The web application of the studio, one function per route, and its server."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.convertors import Convertor, register_url_convertor
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route
from starlette.types import ASGIApp

from semifine.data.label_log import LabelLog
from semifine.data.store import open_store
from semifine.errors import UserError
from semifine.studio.connections import LimitedProtocol
from semifine.studio.growth import grow_snapshot, new_photos
from semifine.studio.images import SIZES, PhotoEncoder
from semifine.studio.jobs import TrainingManager
from semifine.studio.live import LiveModel
from semifine.studio.metadata import MetadataIndex
from semifine.studio.queue import LabelQueue, normalize_name
from semifine.studio.review_routes import export_labels, get_log, get_metadata, get_review, import_labels
from semifine.studio.schemas import (
    parse_answer,
    parse_class_change,
    parse_filter,
    parse_grid_filter,
    parse_integer,
    parse_text,
    parse_training_options,
    serialize_classes,
    serialize_image,
    serialize_label,
    serialize_overview,
)
from semifine.studio.security import VISITOR, SecurityMiddleware
from semifine.studio.sharing import (
    LABEL,
    REVIEW,
    TRAIN,
    Access,
    Address,
    Link,
    Sharing,
    Visitor,
    local_sharing,
)
from semifine.studio.snapshot import ModelSnapshot, take_snapshot
from semifine.studio.taxonomy import Ranks, taxonomy_tree
from semifine.studio.tiles import GRID_ORDERS, GridPage, serialize_grid, serialize_neighbors
from semifine.studio.watch import PhotoWatcher, watched_folder


class Studio:
    """The state of the application: the current model, the label log and at most one training.

    Args:
        snapshot: The predictions of the model to start with.
        log: The label log. ``create_app`` closes it at shutdown.
        device: Device for the predictions of new models.
        method_file: The method file for trainings, if the method of the run is a file.
        photo_options: Settings of the data source for trainings of photos without a run.
        ranks: The higher ranks of the classes, shown as a tree.
    """

    def __init__(
        self,
        snapshot: ModelSnapshot,
        log: LabelLog,
        device: Literal["auto", "cpu", "cuda"],
        method_file: Path | None = None,
        photo_options: Sequence[str] = (),
        ranks: Ranks | None = None,
    ) -> None:
        self.ranks = ranks
        self._device: Literal["auto", "cpu", "cuda"] = device
        self._switch_lock = threading.Lock()
        self.log = log
        self.live: LiveModel | None = None
        self.training = TrainingManager(snapshot.run, log.file, method_file, photo_options)
        self._watcher: PhotoWatcher | None = None
        self._use(snapshot)

    def _use(self, snapshot: ModelSnapshot, read: MetadataIndex | None = None) -> None:
        """Replaces the model. ``read`` contains the dates of the first photos, if they are those of the old model."""
        if self.live is not None:
            self.live.close()
        self._start = snapshot
        label_queue = LabelQueue(snapshot, self.log)
        if read is not None:
            label_queue.metadata.take_over(read)
        # Before the queue, so that there is a photo for each image of the queue at any time.
        self.photos = PhotoEncoder(snapshot.catalog, snapshot.store)
        self.label_queue = label_queue
        self.label_queue.metadata.start()
        self.live = LiveModel(self.label_queue)
        self.live.start()

    def current_queue(self) -> LabelQueue:
        """The queue with all labels in the log, also of other processes."""
        self.label_queue.refresh()
        return self.label_queue

    def live_state(self) -> dict[str, Any]:
        """Returns the state of the live model."""
        images = {"images": len(self.label_queue.snapshot.rows)}
        return {**self.live.state(), **images} if self.live is not None else {}

    def close(self) -> None:
        """Stops the training, the live model and the watch of a folder."""
        if self._watcher is not None:
            self._watcher.close()
        self.training.close()
        if self.live is not None:
            self.live.close()
        self.label_queue.metadata.close()

    def watch(self, folder: Path) -> None:
        """Adds photos that appear in a folder while the studio runs."""
        self._watcher = PhotoWatcher(watched_folder(self._start.catalog, folder), self.add_photos)
        self._watcher.start()

    def add_photos(self, paths: Sequence[str]) -> list[str]:
        """Appends photos below the folder of the data set to the queue.

        Returns:
            The paths of the photos that could not be decoded.
        """
        with self._switch_lock:
            # The snapshot before the live model was fitted, which learns from all labels again.
            start = replace(self._start, version=self.label_queue.snapshot.version)
            photos = new_photos(start.catalog, paths)
            store = open_store(photos, start.store.size)
            readable = np.flatnonzero(store.readable)
            if len(readable):
                grown = grow_snapshot(start, photos.take(readable), store.take(readable))
                self.label_queue.metadata.close()
                self._use(grown, self.label_queue.metadata)
            return [path for path, is_readable in zip(paths, store.readable, strict=True) if not is_readable]

    def switch_model(self) -> None:
        """Switches to the model of the finished training."""
        with self._switch_lock:
            run = self.training.finished_run
            if run is None:
                raise UserError("There is no finished training to switch to.")
            if run != self.label_queue.snapshot.run:
                self.label_queue.metadata.close()
                self._use(take_snapshot(run, self._device))


def create_app(studio: Studio, access: Access, address: Address) -> ASGIApp:
    """Creates the application. The path of every URL starts with a token."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:  # noqa: ARG001
        yield
        studio.close()
        studio.log.close()

    app = Starlette(
        routes=[Mount("/{token}", routes=ROUTES)], lifespan=lifespan, exception_handlers={UserError: _user_error}
    )
    app.state.studio = studio
    return SecurityMiddleware(app, access, address)


def _user_error(request: Request, error: Exception) -> Response:  # noqa: ARG001
    return JSONResponse({"error": str(error)}, status_code=403 if isinstance(error, Forbidden) else 400)


# Static files and photos

CONTENT_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
CACHE_ONE_DAY = "private, max-age=86400"


@dataclass(frozen=True)
class StaticFile:
    content: bytes
    media_type: str


@cache
def read_static_files() -> dict[str, StaticFile]:
    """Returns the static files by name. No other file is served."""
    folder = files("semifine.studio") / "static"
    return {
        entry.name: StaticFile(entry.read_bytes(), CONTENT_TYPES[Path(entry.name).suffix])
        for entry in folder.iterdir()
        if Path(entry.name).suffix in CONTENT_TYPES
    }


def index_page(request: Request) -> Response:  # noqa: ARG001
    return Response(read_static_files()["index.html"].content, media_type="text/html")


def static_file(request: Request) -> Response:
    found = read_static_files().get(request.path_params["name"])
    if found is None:
        raise HTTPException(404)
    return Response(found.content, media_type=found.media_type)


def photo(request: Request) -> Response:
    studio, row, size = _studio(request), request.path_params["row"], request.path_params["size"]
    if size not in SIZES or row >= len(studio.label_queue.snapshot.catalog):
        raise HTTPException(404)
    jpeg = studio.photos.jpeg(row, size)
    return Response(jpeg, media_type="image/jpeg", headers={"Cache-Control": CACHE_ONE_DAY})


# GET routes of the API

QUEUE_LENGTH = 60


def get_overview(request: Request) -> Response:
    studio, label_queue, visitor = _studio(request), _current_queue(request), visitor_of(request)
    tree = taxonomy_tree(studio.ranks, label_queue.classes) if studio.ranks is not None else None
    own = {"live": studio.live_state(), "taxonomy": tree, "role": visitor.role, "person": visitor.name}
    return JSONResponse({**serialize_overview(label_queue), **own})


def get_queue(request: Request) -> Response:
    label_queue = _current_queue(request)
    indices = label_queue.select(parse_filter(_query(request), label_queue.snapshot))
    count = parse_integer(request.query_params.get("count", str(QUEUE_LENGTH)), "count")
    return JSONResponse({"total": len(indices), "ids": indices[:count].tolist()})


def get_grid(request: Request) -> Response:
    query = _query(request)
    offset, count = (parse_integer(query.get(name, value), name) for name, value in (("offset", "0"), ("count", "200")))
    page = GridPage(parse_grid_filter(query), query.get("order", GRID_ORDERS[0]), offset, count)
    return JSONResponse(serialize_grid(_current_queue(request), page))


def get_neighbors(request: Request) -> Response:
    count = parse_integer(request.query_params.get("count", str(QUEUE_LENGTH)), "count")
    return JSONResponse(serialize_neighbors(_current_queue(request), request.path_params["index"], count))


def get_image(request: Request) -> Response:
    label_queue, index = _current_queue(request), request.path_params["index"]
    label_queue.check_index(index)
    return JSONResponse(serialize_image(label_queue, index))


def get_changes(request: Request) -> Response:
    """Returns the labels that changed after an event, and the state of the training."""
    studio, label_queue = _studio(request), _current_queue(request)
    # Read this number before the events: a concurrent event may then be sent twice, but is never lost.
    last = label_queue.last_event
    after = parse_integer(request.query_params.get("after", "0"), "after")
    changed = {label_queue.index_of(event.path) for event in studio.log.events(after)} if after < last else set()
    return JSONResponse(
        {
            "last": last,
            "run": label_queue.snapshot.run.name,
            "counts": label_queue.counts(),
            "images": {
                index: serialize_label(label_queue.current_label(index)) for index in changed if index is not None
            },
            "training": studio.training.status(),
            "live": studio.live_state(),
            "classes": label_queue.classes_version,
        }
    )


# POST routes of the API: functions of the studio and the JSON body


def check_person(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    return {"person": normalize_name(parse_text(body, "person"))}


def submit_answer(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    label_queue = studio.label_queue
    if parse_text(body, "run") != label_queue.snapshot.run.name:  # another model may number the images differently
        raise UserError("Another person has just switched to a new model. Answer again.")
    answer = parse_answer(body)
    if body.get("role") == LABEL and label_queue.settles_conflict(answer):
        raise Forbidden(f"Settling a conflict {NEEDS_ROLE.format(REVIEW)}")
    label_queue.submit(answer)
    return {"images": {index: serialize_label(label_queue.current_label(index)) for index in answer.indices}}


def undo_answer(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    label_queue = studio.label_queue
    before = label_queue.classes_version
    indices = label_queue.undo(parse_text(body, "person"))
    version = label_queue.classes_version
    return {"ids": indices, "classes": None if version == before else version}


def change_class(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    version = studio.label_queue.change_class(parse_class_change(body))
    return {"classes": serialize_classes(studio.label_queue), "version": version}


def start_training(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    studio.training.start(studio.label_queue.snapshot.run, parse_training_options(body))
    return studio.training.status()


def stop_training(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    studio.training.stop()
    return studio.training.status()


def switch_model(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:  # noqa: ARG001
    studio.switch_model()
    return {"run": studio.label_queue.snapshot.run.name}


Action = Callable[[Studio, dict[str, Any]], dict[str, Any]]


NEEDS_ROLE = "needs the role {}: ask the person who started the studio."


class Forbidden(UserError):
    """The role of the visitor is not sufficient."""


def visitor_of(request: Request) -> Visitor:
    """The owner of the request's token."""
    visitor: Visitor = request.scope[VISITOR]
    return visitor


def json_endpoint(action: Action, role: str) -> Callable[[Request], Any]:
    """Returns an endpoint for visitors with a role.

    It calls ``action`` with the studio and the JSON object of the request. The object contains the role of the visitor
    and, if the link belongs to a person, the name of this person as ``person``, whatever the page sent.
    """

    async def endpoint(request: Request) -> Response:
        visitor = visitor_of(request)
        if not visitor.may(role):
            raise Forbidden(f"This {NEEDS_ROLE.format(role)}")
        try:
            body = json.loads(await request.body())
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # JSON can escape half of a surrogate pair, which no response can contain
            raise UserError("The request contains text that is not valid Unicode.") from error
        except ClientDisconnect:
            return Response(status_code=400)  # nobody receives it
        except (ValueError, RecursionError) as error:  # RecursionError: deeply nested brackets
            raise UserError("The request is not JSON.") from error
        if not isinstance(body, dict):
            raise UserError("The request must be a JSON object.")
        body |= {"role": visitor.role, **({} if visitor.name is None else {"person": visitor.name})}
        return JSONResponse(await run_in_threadpool(action, _studio(request), body))

    return endpoint


def _studio(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio


def _query(request: Request) -> Mapping[str, str]:
    """The query with the name of the link's owner."""
    name = visitor_of(request).name
    return {**request.query_params, **({} if name is None else {"person": name})}


def _current_queue(request: Request) -> LabelQueue:
    """The queue with all labels in the log, also of other processes, so that all pages show the same."""
    return _studio(request).current_queue()


class IndexConvertor(Convertor[int]):
    """Part of a URL with an index. Python does not convert thousands of digits, as in a URL without this limit."""

    regex = "[0-9]{1,15}"

    def convert(self, value: str) -> int:
        return int(value)

    def to_string(self, value: int) -> str:
        return str(value)


register_url_convertor("index", IndexConvertor())

ACTIONS: dict[str, tuple[Action, str]] = {
    "person": (check_person, LABEL),
    "answer": (submit_answer, LABEL),
    "undo": (undo_answer, LABEL),
    "classes": (change_class, REVIEW),
    "import": (import_labels, REVIEW),
    "train": (start_training, TRAIN),
    "stop": (stop_training, TRAIN),
    "switch": (switch_model, TRAIN),
}
"""The routes that change something, with the role that they need."""

ROUTES = [
    Route("/", index_page),
    Route("/static/{name}", static_file),
    Route("/photo/{row:index}/{size}", photo),
    Route("/labels.csv", export_labels),
    Route("/export/{format}", export_labels),
    Route("/api/overview", get_overview),
    Route("/api/queue", get_queue),
    Route("/api/image/{index:index}", get_image),
    Route("/api/grid", get_grid),
    Route("/api/neighbors/{index:index}", get_neighbors),
    Route("/api/changes", get_changes),
    Route("/api/metadata/{index:index}", get_metadata),
    Route("/api/review", get_review),
    Route("/api/log", get_log),
    *(Route(f"/api/{name}", json_endpoint(*action), methods=["POST"]) for name, action in ACTIONS.items()),
]


# The server

SHUTDOWN_SECONDS = 3
"""Time for open connections to close when the studio stops."""


def serve(
    studio: Studio,
    listening: socket.socket,
    ready: Callable[[list[Link]], object],
    sharing: Sharing | None = None,
) -> None:
    """Serves until Ctrl-C or termination.

    Args:
        studio: The studio.
        listening: The socket of :func:`~semifine.studio.sharing.listen`.
        ready: Called with the links as soon as a browser may open them.
        sharing: People, address and certificate; None for one link with all roles on this machine.
    """
    sharing = sharing or local_sharing()
    certificate = sharing.certificate
    address = Address(sharing.host, listening.getsockname()[1], certificate is not None)
    config = uvicorn.Config(
        create_app(studio, Access(sharing.visitors), address),
        log_level="error",  # any program could fill the terminal with warnings of invalid requests
        access_log=False,  # it would contain the tokens
        server_header=False,
        lifespan="on",
        http=LimitedProtocol,
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
        ssl_certfile=certificate.file if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    listening.listen()  # queues connections until the server accepts them
    ready([Link(visitor, address.url(token)) for token, visitor in sharing.visitors.items()])
    with suppress(KeyboardInterrupt):  # uvicorn raises it after the shutdown
        uvicorn.Server(config).run(sockets=[listening])
