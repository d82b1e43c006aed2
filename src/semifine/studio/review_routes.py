"""Routes of the studio for review and exchange: agreement, audit log, metadata, export and import."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from semifine.data.label_log import Event
from semifine.errors import UserError
from semifine.studio.exchange import (
    FORMATS,
    PhotoTable,
    check_format,
    collect_labels,
    export_as,
    import_text,
    needs_size,
    record_labels,
)
from semifine.studio.queue import LabelQueue, normalize_name
from semifine.studio.review import measure_agreement, ratings_of
from semifine.studio.schemas import MAX_SUSPECTS, parse_integer, parse_text, serialize_suspect
from semifine.studio.tiles import serialize_tile

if TYPE_CHECKING:
    from semifine.studio.app import Studio

MAX_CONFLICTS = 1000
"""Conflicts in one response."""
LOG_PAGE, MAX_LOG_PAGE = 100, 1000
"""Events in one response: the default and the limit."""
MAX_SKIPPED = 200
"""Labels that were not imported, in one response."""


def get_review(request: Request) -> Response:
    """Returns suspect labels, conflicts and the agreement of people."""
    label_queue = _studio(request).current_queue()
    snapshot = label_queue.snapshot
    agreement = measure_agreement(ratings_of(label_queue.image_events()))
    return JSONResponse(
        {
            "suspects": [serialize_suspect(snapshot, suspect) for suspect in snapshot.suspects[:MAX_SUSPECTS]],
            "num_suspects": len(snapshot.suspects),
            "conflicts": [serialize_tile(label_queue, index) for index in label_queue.conflicts()[:MAX_CONFLICTS]],
            "people": label_queue.people(),
            "agreement": {
                "alpha": _rounded(agreement.alpha),
                "images": agreement.images,
                "people": agreement.people,
                "pairs": [
                    {"a": pair.first, "b": pair.second, "kappa": _rounded(pair.kappa), "images": pair.images}
                    for pair in agreement.pairs
                ],
            },
        }
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def get_log(request: Request) -> Response:
    """Returns a page of the audit log, the newest events first.

    The query selects a person (default: everybody), the number of the event before which the page starts (``after``,
    the ``next`` of the previous page), and the number of events (``count``).
    """
    query = request.query_params
    before = parse_integer(query.get("after", "0"), "after")
    count = min(max(parse_integer(query.get("count", str(LOG_PAGE)), "count"), 1), MAX_LOG_PAGE)
    page = _studio(request).log.latest(count + 1, before, query.get("person") or None)
    shown = page[:count]
    return JSONResponse(
        {
            "events": [_serialize_entry(event) for event in shown],
            "next": shown[-1].number if len(page) > count else None,
        }
    )


def _serialize_entry(event: Event) -> dict[str, Any]:
    imported = event.shown.get("imported")
    return {
        "number": event.number,
        "time": event.time,
        "person": event.person,
        "path": event.path,
        "kind": event.kind,
        "class": event.class_name,
        "undoes": event.undoes,
        "imported": imported if isinstance(imported, str) else None,
    }


def get_metadata(request: Request) -> Response:
    """Returns file name, folder, date, place and size of a photo."""
    label_queue, index = _studio(request).label_queue, request.path_params["index"]
    label_queue.check_index(index)
    return JSONResponse(label_queue.metadata.describe(index, label_queue.path(index)))


def export_labels(request: Request) -> Response:
    """Returns the labels without a conflict as a file."""
    name = request.path_params.get("format", "csv")
    if name not in FORMATS:
        raise HTTPException(404)
    label_queue = _studio(request).current_queue()
    photos = photo_table(label_queue)
    states = ((label_queue.path(index), label_queue.current_label(index)) for index, _ in label_queue.agreed_labels())
    labels = collect_labels(states, photos, needs_size(name))
    file_name = f"{label_queue.snapshot.run.name}-labels{FORMATS[name].suffix}"
    return Response(
        export_as(name, labels, label_queue.active_names, photos),
        media_type=FORMATS[name].media_type,
        headers={"Content-Disposition": f"attachment; filename*=UTF-8''{quote(file_name, safe='')}"},
    )


def import_labels(studio: Studio, body: dict[str, Any]) -> dict[str, Any]:
    """Adds the labels of a file to the log as one answer of the person, which one undo takes back."""
    person, format_name = normalize_name(parse_text(body, "person")), check_format(parse_text(body, "format"))
    label_queue = studio.current_queue()
    photos = photo_table(label_queue)
    content = parse_text(body, "content")
    if "\0" in content:
        raise UserError("The file is not text: choose the file that the other program exported.")
    result = import_text(format_name, "The file", content, photos, label_queue.active_names)
    pairs = [(photos.path(row), name) for row, name in result.labels]
    recorded = record_labels(studio.log, person, pairs, format_name)
    label_queue.refresh()
    return {
        "labels": recorded,
        "known": len(pairs) - recorded,
        "num_skipped": len(result.skipped),
        "skipped": [asdict(item) for item in result.skipped[:MAX_SKIPPED]],
    }


def photo_table(label_queue: LabelQueue) -> PhotoTable:
    """The images of the queue, with their photo files and boxes."""
    return PhotoTable(label_queue.snapshot.catalog, label_queue.snapshot.rows)


def _studio(request: Request) -> Studio:
    studio: Studio = request.app.state.studio
    return studio
