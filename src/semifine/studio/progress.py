"""How far a training is and what it brought, read from the run folders before and after."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

from semifine.config import read_train_settings
from semifine.run_folder import RunFolder


def show_progress(old: RunFolder, new: RunFolder, finished: bool) -> dict[str, Any]:
    """Steps, accuracies on the way, before and after, in plain values."""
    return {
        "run": new.path.name,
        "iterations": read_train_settings(new.settings).iterations if new.settings.exists() else None,
        **_course(new.path, *_version(new.metrics)),
        "before": accuracy_in(old.read_result()),
        "after": accuracy_in(new.read_result()) if finished else None,
    }


@lru_cache(maxsize=1)
def _course(run: Path, *version: int) -> dict[str, Any]:  # noqa: ARG001
    """Read once for each version of the file: every open page asks every other second."""
    records = list(RunFolder(run).read_metrics())
    return {
        "step": max((int(record["step"]) for record in records), default=0),
        "evaluations": [
            {"step": record["step"], "split": split, "top1": record[f"{split}_top1"]}
            for record in records
            if record.get("kind") == "evaluation"
            for split in ("test", "val")
            if f"{split}_top1" in record
        ],
    }


def _version(file: Path) -> tuple[int, ...]:
    if not file.exists():
        return ()
    now = file.stat()
    return now.st_size, now.st_mtime_ns


def accuracy_in(result: dict[str, Any]) -> dict[str, Any] | None:
    """Top-1 of the last model on test images, else on validation images; None where there are neither."""
    if result.get("top1") is not None:
        return {"split": "test", "top1": result["top1"]}
    return {"split": "val", "top1": result["val"]["top1"]} if "val" in result else None


def last_line(file: Path) -> str:
    lines = file.read_text(encoding="utf-8", errors="replace").strip().splitlines() if file.exists() else []
    return lines[-1] if lines else "The training ended without a word."
