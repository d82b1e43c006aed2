"""Predictions as a Camera Trap Data Package (Camtrap DP 1.0, a standard of TDWG)."""

from __future__ import annotations

import csv
import mimetypes
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from PIL import Image

from semifine.data.photo_metadata import PhotoMetadata, photo_metadata
from semifine.errors import UserError
from semifine.files import atomic_file, write_json
from semifine.inference.tables import Record

VERSION = "1.0.1"
SCHEMAS = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{VERSION}"

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species", "subspecies")
FILES = ("datapackage.json", "deployments.csv", "media.csv", "observations.csv")
HERE = "."
"""The deployment of the current folder, which no other folder's can be taken for."""
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
    """What the photos of one folder say about their camera."""

    times: list[datetime] = field(default_factory=list)
    places: list[tuple[float, float]] = field(default_factory=list)
    model: str = ""
    has_file_times: bool = False
    has_assumed_zones: bool = False

    def add(self, stats: PhotoMetadata) -> None:
        self.times = [min([stats.time, *self.times[:1]]), max([stats.time, *self.times[1:]])]
        if stats.place:
            self.places.append(stats.place)
        self.model = self.model or stats.camera
        self.has_file_times |= not stats.is_camera_time
        self.has_assumed_zones |= not stats.is_zone_known

    def place(self) -> tuple[float, float] | tuple[None, None]:
        """The mean latitude and longitude."""
        if not self.places:
            return None, None
        latitude, longitude = (sum(axis) / len(self.places) for axis in zip(*self.places, strict=True))
        return round(latitude, 6), round(longitude, 6)


def check_folder(folder: Path) -> None:
    """The folder of the photos themselves will do, as long as nothing in it is overwritten."""
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; choose a folder for the Camtrap DP package.")
    taken = [name for name in FILES if (folder / name).exists()]
    if taken:
        raise UserError(f"{folder} holds {taken[0]} already; choose another folder for the Camtrap DP package.")


def has_package(folder: Path) -> bool:
    return all((folder / name).is_file() for name in FILES)


def write_package(records: Iterable[Record], folder: Path, classified_by: str, ranks: Sequence[str] = ()) -> list[str]:
    """Writes deployments, media, observations and their description; returns what a person has to fill in.

    ``ranks`` are those of the taxonomy, where there is one, from that of the classes upwards.
    """
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    deployments: dict[str, Deployment] = {}
    names: dict[str, str] = {}
    outside = 0
    with ExitStack() as package, ExitStack() as files:
        # The description comes first here, so it is put in place last: all four are there, or none.
        partial = {name: package.enter_context(atomic_file(folder / name, exclusive=True)) for name in FILES}
        media = _writer(files, partial["media.csv"], MEDIA)
        observations = _writer(files, partial["observations.csv"], OBSERVATIONS)
        for number, record in enumerate(records, start=1):
            path = record["path"]
            stats = photo_metadata(path)
            deployment = os.path.dirname(_inside(path)) or HERE
            deployments.setdefault(deployment, Deployment()).add(stats)
            row = {"mediaID": f"m{number}", "deploymentID": deployment}
            place = _place_in(folder, path)
            outside += place is None
            media.writerow({**row, **_media(path, place or _address(path), stats)})
            observed = _observation(record, bool(ranks))
            names.setdefault(observed["scientificName"], observed.pop("rank"))
            time = _in_words(stats.time)
            observations.writerow(
                {
                    **row,
                    **observed,
                    "observationID": f"o{number}",
                    "eventID": f"m{number}",
                    "eventStart": time,
                    "eventEnd": time,
                    "observationLevel": "media",
                    "classificationMethod": "machine",
                    "classifiedBy": classified_by,
                    "classificationTimestamp": _in_words(now),
                }
            )
        _writer(files, partial["deployments.csv"], DEPLOYMENTS).writerows(_deployments(deployments))
        write_json(partial["datapackage.json"], _description(folder, deployments, list(_taxa(names, ranks)), now))
    return _gaps(deployments, outside)


def _writer(files: ExitStack, path: Path, columns: tuple[str, ...]) -> csv.DictWriter[str]:
    writer = csv.DictWriter(files.enter_context(path.open("w", encoding="utf-8", newline="")), columns)
    writer.writeheader()
    return writer


def _in_words(time: datetime) -> str:
    """As the standard wants it: 2024-05-06T07:08:09+02:00."""
    return time.isoformat(timespec="seconds")


def _inside(path: str) -> str:
    """The path as seen from the current folder, or from the root where it leads out of that."""
    relative = os.path.relpath(path)
    return os.path.abspath(path).lstrip("/") if relative.startswith("..") else relative


def _place_in(folder: Path, path: str) -> str | None:
    """The path as seen from the package; None where it is not in there, or has what the standard forbids."""
    relative = Path(os.path.relpath(path, folder)).as_posix()
    return None if relative.startswith((".", "/", "~")) or ".." in relative else relative


def _address(path: str) -> str:
    """A URL, which is what the standard wants for a file outside of the package; even there it forbids two dots."""
    return Path(os.path.abspath(path)).as_uri().replace("..", "%2E%2E")


def _media(path: str, place: str, stats: PhotoMetadata) -> Record:
    return {
        "timestamp": _in_words(stats.time),
        "filePath": place,
        "filePublic": "false",
        "fileName": os.path.basename(path),
        "fileMediatype": _media_type(path),
        "mediaComments": "" if stats.is_camera_time else "the camera wrote no time: this is the time of the file",
    }


def _media_type(path: str) -> str:
    """By the name, where that is one of an image; else by the content: people name files as they like."""
    guessed, _ = mimetypes.guess_type(path)
    if guessed is not None and guessed.startswith("image/"):
        return guessed
    with suppress(OSError), Image.open(path) as image:
        return image.get_format_mimetype() or JPEG
    return JPEG


def _observation(record: Record, has_taxonomy: bool) -> Record:
    """What is safe to name is named; a strange image is of unknown type, its nearest class stands in the comments."""
    name, rank, probability = record["name"], "", record["probability"]
    if has_taxonomy:
        name, rank, probability = record["taxon"], record["rank"], record["taxon_probability"]
    if record["is_ood"] or name is None:
        comment = f"most probable: {record['name']} ({record['probability']:.3f})"
        if record["is_ood"]:
            comment += "; unlike the images that the model knows"
        return {"observationType": "unknown", "scientificName": "", "rank": "", "observationComments": comment}
    return {
        "observationType": "animal",
        "scientificName": name,
        "rank": rank,
        "classificationProbability": probability,
        "observationComments": "candidates: " + " | ".join(record["candidates"][:10]),
    }


def _taxa(rank_of: dict[str, str], ranks: Sequence[str]) -> Iterator[dict[str, str]]:
    """A first column headed "class" is no rank: it holds the classes of the model, whatever those are."""
    no_rank = [rank for rank in ranks[:1] if rank.lower() == "class"]
    for name, rank in rank_of.items():
        is_known = rank.lower() in RANKS and rank not in no_rank
        if name:
            yield {"scientificName": name, **({"taxonRank": rank.lower()} if is_known else {})}


def _deployments(deployments: dict[str, Deployment]) -> Iterator[Record]:
    for name, deployment in deployments.items():
        latitude, longitude = deployment.place()
        yield {
            "deploymentID": name,
            "locationName": Path.cwd().name if name == HERE else name,
            "latitude": latitude,
            "longitude": longitude,
            "deploymentStart": _in_words(deployment.times[0]),
            "deploymentEnd": _in_words(deployment.times[1]),
            "cameraModel": deployment.model,
            "timestampIssues": str(deployment.has_file_times or deployment.has_assumed_zones).lower(),
        }


def _description(
    folder: Path, deployments: dict[str, Deployment], taxa: list[dict[str, str]], now: datetime
) -> dict[str, Any]:
    tables = ("deployments", "media", "observations")
    times = [time for deployment in deployments.values() for time in deployment.times] or [now]
    title = os.path.basename(os.path.abspath(folder))
    places = [deployment.place() for deployment in deployments.values() if deployment.places]
    return {
        "profile": f"{SCHEMAS}/camtrap-dp-profile.json",
        "name": "".join(c if c.isascii() and c.isalnum() else "-" for c in title.lower()) or "photos",
        "created": _in_words(now),
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


def _counted(deployments: int) -> str:
    return "1 deployment" if deployments == 1 else f"{deployments} deployments"


def _gaps(deployments: dict[str, Deployment], outside: int) -> list[str]:
    nowhere = [name for name, deployment in deployments.items() if not deployment.places]
    file_times = sum(deployment.has_file_times for deployment in deployments.values())
    assumed_zones = sum(deployment.has_assumed_zones for deployment in deployments.values())
    gaps = ["datapackage.json: contributors, project and licenses are yours to fill in"]
    if nowhere:
        gaps.append(f"deployments.csv: {_counted(len(nowhere))} without a place, for example {nowhere[0]}")
    if file_times:
        gaps.append(f"deployments.csv: {_counted(file_times)} with photos without a time of the camera")
    if assumed_zones:
        gaps.append(f"deployments.csv: {_counted(assumed_zones)}: the cameras give no time zone; UTC is assumed")
    if outside:
        gaps.append(
            f"media.csv: {outside} photos are not in the package, and are named by their place on this machine; "
            "a package that is written into the folder of the photos names them by their place in it"
        )
    return gaps
