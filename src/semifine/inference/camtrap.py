"""Predictions as a Camera Trap Data Package (Camtrap DP 1.0, a standard of TDWG)."""

from __future__ import annotations

import csv
import mimetypes
import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from semifine.data.photo_facts import PhotoFacts, photo_facts
from semifine.errors import UserError
from semifine.inference.journal import Record
from semifine.run_folder import write_json

VERSION = "1.0.1"
SCHEMAS = f"https://raw.githubusercontent.com/tdwg/camtrap-dp/{VERSION}"

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species", "subspecies")

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
    has_doubtful_times: bool = False

    def add(self, facts: PhotoFacts) -> None:
        self.times = [min([facts.time, *self.times[:1]]), max([facts.time, *self.times[1:]])]
        if facts.place:
            self.places.append(facts.place)
        self.model = self.model or facts.camera
        self.has_doubtful_times |= not facts.is_camera_time

    def place(self) -> tuple[float, float] | tuple[None, None]:
        """The mean latitude and longitude."""
        if not self.places:
            return None, None
        latitude, longitude = (sum(axis) / len(self.places) for axis in zip(*self.places, strict=True))
        return round(latitude, 6), round(longitude, 6)


def check_folder(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists already; choose another folder for the Camtrap DP package.")


def write_package(records: Iterable[Record], folder: Path, classified_by: str, has_taxonomy: bool) -> list[str]:
    """Writes deployments, media, observations and their description; returns what a person has to fill in."""
    check_folder(folder)
    folder.mkdir(parents=True, exist_ok=True)
    now = datetime.now(UTC)
    deployments: dict[str, Deployment] = {}
    names: dict[str, str] = {}
    with ExitStack() as files:
        media = _writer(files, folder / "media.csv", MEDIA)
        observations = _writer(files, folder / "observations.csv", OBSERVATIONS)
        for number, record in enumerate(records, start=1):
            path = record["path"]
            facts = photo_facts(path)
            deployment = os.path.dirname(_inside(path)) or "photos"
            deployments.setdefault(deployment, Deployment()).add(facts)
            row = {"mediaID": f"m{number}", "deploymentID": deployment}
            media.writerow({**row, **_media(path, facts)})
            observed = _observation(record, has_taxonomy)
            names.setdefault(observed["scientificName"], observed.pop("rank"))
            time = _in_words(facts.time)
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
        table = _writer(files, folder / "deployments.csv", DEPLOYMENTS)
        table.writerows(_deployments(deployments))
    write_json(folder / "datapackage.json", _description(folder, deployments, names, now))
    return _gaps(deployments)


def _writer(files: ExitStack, path: Path, columns: tuple[str, ...]) -> csv.DictWriter[str]:
    writer = csv.DictWriter(files.enter_context(path.open("w", encoding="utf-8", newline="")), columns)
    writer.writeheader()
    return writer


def _in_words(time: datetime) -> str:
    """As the standard wants it: 2024-05-06T07:08:09+02:00."""
    return time.isoformat(timespec="seconds")


def _inside(path: str) -> str:
    """The path as seen from the current folder; the standard allows none that leads out of it or is absolute."""
    relative = os.path.relpath(path)
    return os.path.abspath(path).lstrip("/") if relative.startswith("..") else relative


def _media(path: str, facts: PhotoFacts) -> Record:
    return {
        "timestamp": _in_words(facts.time),
        "filePath": _inside(path),
        "filePublic": "false",
        "fileName": os.path.basename(path),
        "fileMediatype": mimetypes.guess_type(path)[0] or "image/jpeg",
        "mediaComments": "" if facts.is_camera_time else "the camera wrote no time: this is the time of the file",
    }


def _observation(record: Record, has_taxonomy: bool) -> Record:
    """What is safe to name is named; a strange image is of unknown type, its nearest class stands in the comments."""
    name, rank, probability = record["name"], "species", record["probability"]
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


def _deployments(deployments: dict[str, Deployment]) -> Iterator[Record]:
    for name, deployment in deployments.items():
        latitude, longitude = deployment.place()
        yield {
            "deploymentID": name,
            "locationName": name,
            "latitude": latitude,
            "longitude": longitude,
            "deploymentStart": _in_words(deployment.times[0]),
            "deploymentEnd": _in_words(deployment.times[1]),
            "cameraModel": deployment.model,
            "timestampIssues": str(deployment.has_doubtful_times).lower(),
        }


def _description(folder: Path, deployments: dict[str, Deployment], names: dict[str, str], now: datetime) -> Any:
    tables = ("deployments", "media", "observations")
    times = [time for deployment in deployments.values() for time in deployment.times] or [now]
    places = [deployment.place() for deployment in deployments.values() if deployment.places]
    return {
        "profile": f"{SCHEMAS}/camtrap-dp-profile.json",
        "name": "".join(c if c.isascii() and c.isalnum() else "-" for c in folder.name.lower()) or "photos",
        "created": _in_words(now),
        "contributors": [{"title": "unknown", "role": "contributor"}],
        "project": {
            "title": folder.name,
            "samplingDesign": "opportunistic",
            "captureMethod": ["activityDetection"],
            "individualAnimals": False,
            "observationLevel": ["media"],
        },
        "spatial": {"type": "MultiPoint", "coordinates": [[longitude, latitude] for latitude, longitude in places]},
        "temporal": {"start": min(times).strftime("%Y-%m-%d"), "end": max(times).strftime("%Y-%m-%d")},
        "taxonomic": [
            {"scientificName": name, **({"taxonRank": rank} if rank in RANKS else {})}
            for name, rank in names.items()
            if name
        ],
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


def _gaps(deployments: dict[str, Deployment]) -> list[str]:
    nowhere = [name for name, deployment in deployments.items() if not deployment.places]
    doubtful = [name for name, deployment in deployments.items() if deployment.has_doubtful_times]
    gaps = ["datapackage.json: contributors, project and licences are yours to fill in"]
    if nowhere:
        gaps.append(f"deployments.csv: {len(nowhere)} deployments have no place, for example {nowhere[0]}")
    if doubtful:
        gaps.append(f"deployments.csv: {len(doubtful)} deployments have photos without a time of the camera")
    return gaps
