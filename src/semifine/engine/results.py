"""The numbers that a run ends with, each named for how it was selected."""

from __future__ import annotations

from typing import Any


def summarise_evaluations(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """``top1`` and ``top5`` are of the last evaluation; others stand beside them under their own names.

    ``selected_on_val`` is the test accuracy at the best validation accuracy. ``best_on_test`` is the
    paper's protocol, which looks at the test set to choose: best top-1 and, apart from it, best top-5.
    """
    if not evaluations:
        return {}
    last = evaluations[-1]
    result: dict[str, Any] = {"top1": last.get("test_top1"), "top5": last.get("test_top5")}
    if "val_top1" in last:
        result["val"] = {"top1": last["val_top1"], "top5": last["val_top5"]}
    if "val_top1" in last and "test_top1" in last:
        chosen = max(evaluations, key=lambda record: record["val_top1"])
        result["selected_on_val"] = {
            "step": chosen["step"],
            "top1": chosen["test_top1"],
            "top5": chosen["test_top5"],
        }
    if "test_top1" in last:
        result["best_on_test"] = {
            "top1": max(record["test_top1"] for record in evaluations),
            "top5": max(record["test_top5"] for record in evaluations),
            "note": "chosen on the test set, as the paper's protocol does; not an honest estimate",
        }
    return result
