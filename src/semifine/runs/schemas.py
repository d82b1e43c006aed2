"""Types of the JSON files of a run folder, which may be damaged or come from a stranger."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from semifine.errors import UserError

Number = (int, float)
OTHER_KEYS = "*"
"""Key of a schema whose type all other keys of the object have."""
LIMIT = 1 << 63
"""Integers of a run are smaller."""

ACCURACIES = {"top1": Number, "top5": Number, "step": int, "note": str}
FOUND = {**ACCURACIES, "val": ACCURACIES}
COUNTS = {OTHER_KEYS: int}
STATISTICS = {"k": COUNTS, OTHER_KEYS: Number}
ENVIRONMENT = {OTHER_KEYS: object}

RESULT: dict[str, Any] = {
    "method": str,
    "data": str,
    "seed": int,
    "iterations": int,
    **FOUND,
    "selected_on_val": ACCURACIES,
    "best_on_test": ACCURACIES,
    "unlabeled": {**STATISTICS, "in_class": STATISTICS, "out_of_class": STATISTICS},
    "num_classes": int,
    "images": COUNTS,
    "unreadable": [str],
    "seconds": Number,
    "time": {OTHER_KEYS: Number},
    "peak_gpu_bytes": Number,
    "environment": ENVIRONMENT,
    "probe": {**FOUND, "cross_validation": {OTHER_KEYS: Number}, "suspect_labels": int, OTHER_KEYS: object},
    "trained": FOUND,
    "comparison": {"images": int, "top1": [Number], "loss": [Number]},
    "weight": Number,
    "chosen": str,
}
"""``result.json`` and ``probe.json``."""
CLASSES = {"names": [str], "groups": [str]}
"""``classes.json``."""
_RANGE = {"min": Number, "median": Number, "max": Number}
DATA: dict[str, Any] = {
    "name": str,
    "num_images": int,
    "splits": COUNTS,
    "classes": {OTHER_KEYS: COUNTS},
    "labeled_per_class": _RANGE,
    "unlabeled_truth": COUNTS,
    "height": _RANGE,
    "width": _RANGE,
    "left_out": [{OTHER_KEYS: str}],
    "duplicates": [[str]],
    "errors": [str],
    "warnings": [str],
}
"""``data.json``."""
_TESTED = ("val_top1", "val_top5", "test_top1", "test_top5")
METRICS: dict[str, Any] = {"kind": str, "step": int, "loss": Number, **dict.fromkeys(_TESTED, Number)}
"""A line of ``metrics.jsonl``; the kinds of records have different types of the other keys."""


def check_types(path: Path, value: Any, schema: Any, key: str = "") -> None:
    """Raises ``UserError`` that names the file and the key of a value whose type differs from the schema.

    Args:
        path: The file, for messages.
        value: The content of the file. None is valid everywhere.
        schema: A type, a tuple of types, a list with the schema of the items, or an object with the schemas of its
            keys. Keys that the schema does not contain may have any value.
        key: The key of the value, for messages.

    Example:
        >>> check_types(Path("classes.json"), {"names": ["robin", 3]}, CLASSES)
        Traceback (most recent call last):
        semifine.errors.UserError: classes.json is damaged: names[1] must be text, not 3; restore the file.
    """
    if value is None or schema is object:
        return
    if isinstance(schema, Mapping):
        if isinstance(value, Mapping):
            for name, item in value.items():
                check_types(path, item, schema.get(name, schema.get(OTHER_KEYS, object)), f"{key}.{name}".lstrip("."))
            return
    elif isinstance(schema, list):
        if isinstance(value, list):
            for index, item in enumerate(value):
                check_types(path, item, schema[0], f"{key}[{index}]")
            return
    elif isinstance(value, schema) and not (isinstance(value, bool) or (isinstance(value, int) and abs(value) > LIMIT)):
        return
    raise UserError(f"{path} is damaged: {key[:60]} must be {_name(schema)}, not {repr(value)[:60]}; restore the file.")


def _name(schema: Any) -> str:
    if isinstance(schema, Mapping | list):
        return "an object" if isinstance(schema, Mapping) else "a list"
    return {str: "text", int: "a whole number"}.get(schema, "a number")
