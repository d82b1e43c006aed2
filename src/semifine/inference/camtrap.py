"""Writes predictions or labels as a Camera Trap Data Package (Camtrap DP 1.0, a standard of TDWG)."""

from __future__ import annotations

import csv
import mimetypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import count, groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from semifine.data.csv_table import quote_formula
from semifine.data.decode import read_media_type
from semifine.data.photo_metadata import PhotoMetadata, read_photo_metadata
from semifine.errors import UserError
from semifine.files import atomic_file, create_folder, format_json
from semifine.inference.tables import Record

VERSION = "1.0.1"
SCHEMAS = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{VERSION}"

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species", "subspecies")
FILES = ("datapackage.json", "deployments.csv", "media.csv", "observations.csv")
CURRENT_FOLDER = "."
"""Deployment of photos in the current folder."""
JPEG = "image/jpeg"

DEPLOYMENTS = (
    *("deploymentID", "locationID", "locationName", "latitude", "longitude", "coordinateUncertainty"),
    *("deploymentStart", "deploymentEnd", "setupBy", "cameraID", "cameraModel", "cameraDelay", "cameraHeight"),
    *("cameraDepth", "cameraTilt", "cameraHeading", "detectionDistance", "timestampIssues", "baitUse", "featureType"),
    *("habitat", "deploymentGroups", "deploymentTags", "deploymentComments"),
)
MEDIA = (
    *("mediaID", "deploymentID", "captureMethod", "timestamp", "filePath", "filePublic", "fileName", "fileMediatype"),
    *("exifData", "favorite", "mediaComments"),
)
OBSERVATIONS = (
    *("observationID", "deploymentID", "mediaID", "eventID", "eventStart", "eventEnd", "observationLevel"),
    *("observationType", "cameraSetupType", "scientificName", "count", "lifeStage", "sex", "behavior"),
    *("individualID", "individualPositionRadius", "individualPositionAngle", "individualSpeed", "bboxX", "bboxY"),
    *("bboxWidth", "bboxHeight", "classificationMethod", "classifiedBy", "classificationTimestamp"),
    *("classificationProbability", "observationTags", "observationComments"),
)


@dataclass
class Deployment:
    """Times, places and camera of the photos in one folder."""

    times: list[datetime] = field(default_factory=list)
    places: list[tuple[float, float]] = field(default_factory=list)
    model: str = ""
    has_file_times: bool = False
    has_assumed_zones: bool = False

    def add(self, metadata: PhotoMetadata) -> None:
        """Adds a photo."""
        self.times = [min([metadata.time, *self.times[:1]]), max([metadata.time, *self.times[1:]])]
        if metadata.place:
            self.places.append(metadata.place)
        self.model = self.model or metadata.camera
        self.has_file_times |= not metadata.is_camera_time
        self.has_assumed_zones |= not metadata.is_zone_known

    def mean_place(self) -> tuple[float, float] | tuple[None, None]:
        """Returns the mean latitude and longitude; None without places."""
        if not self.places:
            return None, None
        latitude, longitude = (sum(axis) / len(self.places) for axis in zip(*self.places, strict=True))
        return round(latitude, 6), round(longitude, 6)


def check_folder(folder: Path) -> None:
    """Raises ``UserError`` if a package in the folder would overwrite a file."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file: choose a folder for the Camtrap DP package.")
    existing = [name for name in FILES if (folder / name).exists()]
    if existing:
        raise UserError(f"{folder} contains {existing[0]} already: choose another folder for the Camtrap DP package.")


def has_package(folder: Path) -> bool:
    """Whether the folder contains a complete package."""
    return all((folder / name).is_file() for name in FILES)


def write_package(
    records: Iterable[Record],
    folder: Path,
    classified_by: str,
    ranks: Sequence[str] = (),
    root: str | None = None,
) -> list[str]:
    """Writes deployments, media, observations and their description, or nothing.

    Args:
        records: Records of a prediction table; or labels of people, which have the keys ``path``, ``name``, ``person``
            and ``time``, and optionally the fields of a box.
        folder: Folder of the package.
        classified_by: Name of the model.
        ranks: Ranks of the taxonomy, starting with the rank of the classes; empty without a taxonomy.
        root: The folder of the photos, to which the package belongs. Paths of photos are then relative to it and
            identify them (``mediaID``). Without it, they are relative to ``folder``.

    Returns:
        Notes about fields that the user has to fill in.
    """
    check_folder(folder)
    create_folder(folder)
    now = datetime.now(UTC)
    deployments: dict[str, Deployment] = {}
    rank_of: dict[str, str] = {}
    num_outside = 0
    with ExitStack() as package, ExitStack() as files:
        # The description is the first file here, so it is renamed last and completes the package.
        partial = {name: package.enter_context(atomic_file(folder / name, exclusive=True)) for name in FILES}
        media = _writer(files, partial["media.csv"], MEDIA)
        observations = _writer(files, partial["observations.csv"], OBSERVATIONS)
        observation_number = count(1)
        for number, (path, photo_records) in enumerate(groupby(records, itemgetter("path")), start=1):
            metadata = read_photo_metadata(path)
            inside = _relative_to_cwd(path) if root is None else os.path.relpath(path, root)
            deployment = os.path.dirname(inside) or CURRENT_FOLDER
            deployments.setdefault(deployment, Deployment()).add(metadata)
            row = {"mediaID": f"m{number}" if root is None else inside, "deploymentID": deployment}
            relative = _relative_to(folder if root is None else Path(root), path)
            num_outside += relative is None
            media.writerow(_quoted({**row, **_media(path, relative or _file_url(path), metadata)}))
            for record in photo_records:  # several if the photo was cropped to several boxes
                observation = _observation(record, bool(ranks))
                rank_of.setdefault(observation["scientificName"], observation.pop("rank"))
                number_cell = {"observationID": f"o{next(observation_number)}"}
                classification = _classification(record, classified_by, now)
                cells = {**row, **observation, **_event(row, metadata), **number_cell, **classification}
                observations.writerow(_quoted({**cells, **_bounding_box(record)}))
        _writer(files, partial["deployments.csv"], DEPLOYMENTS).writerows(map(_quoted, _deployments(deployments)))
        description = _description(folder, deployments, list(_taxa(rank_of, ranks)), now)
        partial["datapackage.json"].write_text(format_json(description), encoding="utf-8")
    return _missing_fields(deployments, num_outside)


def _writer(files: ExitStack, path: Path, columns: tuple[str, ...]) -> csv.DictWriter[str]:
    writer = csv.DictWriter(files.enter_context(path.open("w", encoding="utf-8", newline="")), columns)
    writer.writeheader()
    return writer


def _quoted(row: Record) -> Record:
    """Quotes names that spreadsheets would execute. A path cannot be quoted, so it becomes a URL."""
    return {column: quote_formula(value) for column, value in row.items()}


def _format_time(time: datetime) -> str:
    """Formats a time as the standard requires, such as 2024-05-06T07:08:09+02:00."""
    return time.isoformat(timespec="seconds")


def _relative_to_cwd(path: str) -> str:
    """Returns the path relative to the current folder, or relative to the root if it is outside."""
    relative = os.path.relpath(path)
    return os.path.abspath(path).lstrip("/") if relative.startswith("..") else relative


def _relative_to(folder: Path, path: str) -> str | None:
    """Returns the path relative to the package.

    Returns None if it is outside, or not allowed by the standard, or a formula for a spreadsheet.
    """
    relative = Path(os.path.relpath(path, folder)).as_posix()
    is_formula = quote_formula(relative) != relative
    return None if is_formula or relative.startswith((".", "/", "~")) or ".." in relative else relative


def _file_url(path: str) -> str:
    """Returns a URL, as the standard requires for files outside the package. Even URLs must not contain two dots."""
    return Path(os.path.abspath(path)).as_uri().replace("..", "%2E%2E")


def _media(path: str, location: str, metadata: PhotoMetadata) -> Record:
    return {
        "timestamp": _format_time(metadata.time),
        "filePath": location,
        "filePublic": "false",
        "fileName": os.path.basename(path),
        "fileMediatype": _media_type(path),
        "mediaComments": "" if metadata.is_camera_time else "no EXIF time: this is the time of the file",
    }


def _media_type(path: str) -> str:
    """Returns the media type for the suffix, or for the content if no image has this suffix."""
    guessed, _ = mimetypes.guess_type(path)
    if guessed is not None and guessed.startswith("image/"):
        return guessed
    return read_media_type(path) or JPEG


def _observation(record: Record, has_taxonomy: bool) -> Record:
    """Returns the columns of an observation. An unknown image has the type ``unknown`` and its class as a comment."""
    if "person" in record:
        return {"observationType": "animal", "scientificName": record["name"], "rank": ""}
    name, rank, probability = record["name"], "", record["probability"]
    if has_taxonomy:
        name, rank, probability = record["taxon"], record["rank"], record["taxon_probability"]
    if record["is_ood"] or name is None:
        comment = f"most probable: {record['name']} ({record['probability']:.3f})"
        if record["is_ood"]:
            comment += "; unlike the training images"
        return {"observationType": "unknown", "scientificName": "", "rank": "", "observationComments": comment}
    return {
        "observationType": "animal",
        "scientificName": name,
        "rank": rank,
        "classificationProbability": probability,
        "observationComments": "candidates: " + " | ".join(record["candidates"][:10]),
    }


def _event(media: Record, metadata: PhotoMetadata) -> Record:
    """Each photo is an event."""
    time = _format_time(metadata.time)
    return {"eventID": media["mediaID"], "eventStart": time, "eventEnd": time, "observationLevel": "media"}


def _classification(record: Record, model: str, now: datetime) -> Record:
    if "person" in record:
        time = _format_time(datetime.fromisoformat(record["time"]))
        method, name = "human", record["person"]
    else:
        time, method, name = _format_time(now), "machine", model
    return {"classificationMethod": method, "classifiedBy": name, "classificationTimestamp": time}


def _bounding_box(record: Record) -> Record:
    columns = {"bboxX": "box_x", "bboxY": "box_y", "bboxWidth": "box_width", "bboxHeight": "box_height"}
    return {name: record.get(column) for name, column in columns.items()}


def _taxa(rank_of: dict[str, str], ranks: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yields the taxa with their ranks. A first column named "class" contains the classes of the model, not a rank."""
    model_classes = [rank for rank in ranks[:1] if rank.lower() == "class"]
    for name, rank in rank_of.items():
        is_known = rank.lower() in RANKS and rank not in model_classes
        if name:
            yield {"scientificName": name, **({"taxonRank": rank.lower()} if is_known else {})}


def _deployments(deployments: dict[str, Deployment]) -> Iterator[Record]:
    for name, deployment in deployments.items():
        latitude, longitude = deployment.mean_place()
        yield {
            "deploymentID": name,
            "locationName": Path.cwd().name if name == CURRENT_FOLDER else name,
            "latitude": latitude,
            "longitude": longitude,
            "deploymentStart": _format_time(deployment.times[0]),
            "deploymentEnd": _format_time(deployment.times[1]),
            "cameraModel": deployment.model,
            "timestampIssues": str(deployment.has_file_times or deployment.has_assumed_zones).lower(),
        }


def _description(
    folder: Path, deployments: dict[str, Deployment], taxa: list[dict[str, str]], now: datetime
) -> dict[str, Any]:
    tables = ("deployments", "media", "observations")
    times = [time for deployment in deployments.values() for time in deployment.times] or [now]
    title = os.path.basename(os.path.abspath(folder))
    places = [deployment.mean_place() for deployment in deployments.values() if deployment.places]
    return {
        "profile": f"{SCHEMAS}/camtrap-dp-profile.json",
        "name": "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower()) or "photos",
        "created": _format_time(now),
        "contributors": [{"title": "unknown", "role": "contributor"}],
        "project": {
            "title": title or "photos",
            "samplingDesign": "opportunistic",
            "captureMethod": ["activityDetection"],
            "individualAnimals": False,
            "observationLevel": ["media"],
        },
        "spatial": {"type": "MultiPoint", "coordinates": [[longitude, latitude] for latitude, longitude in places]},
        "temporal": {"start": min(times).strftime("%Y-%m-%d"), "end": max(times).strftime("%Y-%m-%d")},
        "taxonomic": taxa,
        "resources": [
            {
                "name": name,
                "path": f"{name}.csv",
                "profile": "tabular-data-resource",
                "format": "csv",
                "mediatype": "text/csv",
                "encoding": "utf-8",
                "schema": f"{SCHEMAS}/{name}-table-schema.json",
            }
            for name in tables
        ],
    }


def _count(deployments: int) -> str:
    return "1 deployment" if deployments == 1 else f"{deployments} deployments"


def _missing_fields(deployments: dict[str, Deployment], num_outside: int) -> list[str]:
    without_place = [name for name, deployment in deployments.items() if not deployment.places]
    file_times = sum(deployment.has_file_times for deployment in deployments.values())
    assumed_zones = sum(deployment.has_assumed_zones for deployment in deployments.values())
    notes = ["datapackage.json: contributors, project and licenses have to be filled in"]
    if without_place:
        notes.append(f"deployments.csv: {_count(len(without_place))} without a place, for example {without_place[0]}")
    if file_times:
        notes.append(f"deployments.csv: {_count(file_times)} with photos without EXIF time")
    if assumed_zones:
        notes.append(f"deployments.csv: {_count(assumed_zones)}: the cameras record no time zone; UTC is assumed")
    if num_outside:
        notes.append(
            f"media.csv: {num_outside} photos are outside the package and have file: URLs, which are valid on this "
            "machine only; write the package into the folder of the photos to get relative paths"
        )
    return notes
