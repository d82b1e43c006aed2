"""That a run which lies in the folder of a stage is the run that the stage would be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from semifine.config import read_run_settings, resolve
from semifine.config.comparison import Difference, first_difference
from semifine.config.files import read_begun_settings
from semifine.data.sources import OWN_PHOTOS
from semifine.errors import UserError
from semifine.experiments.stages import LABELS, Stage, settings_in

# Settings that name other stages or a file of weights. A finished grid may be moved as a whole, so names count alone.
PLACES = ("weights", "labels", "method.teacher")


def check_is_run_of(stage: Stage, column: Path) -> None:
    """Another budget, profile or seed in the same folder would print the numbers of other runs as its own."""
    file = column / stage.name / "settings.yaml"
    difference = _difference(file, _settings_of(stage, column))
    if difference:
        key, before, now = difference
        raise UserError(
            f"{file.parent} holds a run with {key} = {before}, but now {now} is asked for; "
            "choose another --out, or give the options that the folder was begun with."
        )


def _settings_of(stage: Stage, column: Path) -> dict[str, Any]:
    """As the stage would be started, but nothing is written."""
    settings = settings_in(replace(stage, labels=None), column)
    return settings | {"labels": str(column / f"{stage.name}-{LABELS}")} if stage.labels else settings


def _difference(file: Path, wanted: Mapping[str, Any]) -> Difference | None:
    written = read_begun_settings(file)
    before, now = str(written["data.source"]), str(wanted["data.source"])
    if _which_data(before) != _which_data(now):
        return Difference("data.source", before, now)
    moved = {key: wanted[key] for key in PLACES if key in wanted and _name(written.get(key)) == _name(wanted[key])}
    return first_difference(read_run_settings(file, {"data.source": now, **moved}), resolve([wanted]))


def _which_data(source: str) -> str:
    """A published data set is the same wherever it lies; somebody's photos are those of their folder."""
    name = source.partition(":")[0]
    return source if name in OWN_PHOTOS else name


def _name(path: Any) -> str | None:
    return Path(path).name if path else None
