"""Simulated labeling: accuracy after labels in the studio's order against as many random ones, over several seeds.

A run is trained; then images are answered with their hidden truth, as a person would; then training goes on from the
run's weights with these labels, as the studio's page does it, or anew (--from-start). An image of no known class costs
an answer and brings no label. The same with random images, and with none, is the comparison. What is finished in --runs
is not trained again: seeds can be computed side by side, by a command each, and tabled by another that names them all.

    python benchmarks/active_labeling.py semi_cub:PATH --preset lite0-imagenet --answers 200 --seeds 0 1 2 \
        --runs runs/active --out benchmarks/results/active-labeling-semi-cub.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from semifine.cli.main import main as semifine
from semifine.data.label_log import LabelLog
from semifine.studio.jobs import TrainingOptions, training_command
from semifine.studio.queue import Answer, LabelQueue
from semifine.studio.snapshot import ModelSnapshot, take_snapshot

WAYS = ("none", "random", "studio")


def train(arguments: list[str], out: Path) -> dict[str, Any]:
    """Runs a training, or goes on with it, and returns its result.

    In this process, so that all after the first start at once.
    """
    with out.with_name(out.name + ".log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        code = semifine([*arguments, "--resume"])
    if code:
        sys.exit(f"{out} failed: see {log.name}")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def give_answers(snapshot: ModelSnapshot, way: str, answers: int, seed: int, file: Path) -> dict[str, int]:
    """Answers images in the given order with their truth, through the desk that the page uses."""
    log = LabelLog(file)
    label_queue = LabelQueue(snapshot, log)
    order = snapshot.orders["informative"]
    if way == "random":
        order = np.random.default_rng(seed).permutation(len(order))
    chosen = [] if way == "none" else order[:answers].tolist()
    on_short_list = 0
    for place in chosen:
        truth = int(snapshot.catalog.truth[snapshot.rows[place]])
        known = 0 <= truth < len(snapshot.class_names)
        on_short_list += known and truth in snapshot.candidates(place)
        if label_queue.current_label(place).last:
            continue  # answered by an earlier attempt
        if known:
            label_queue.submit(Answer("simulated", "label", [place], [0], snapshot.class_names[truth]))
        else:
            label_queue.submit(Answer("simulated", "none_of_these", [place], [0]))
    wrong = [snapshot.prediction[place] != snapshot.catalog.truth[snapshot.rows[place]] for place in chosen]
    log.close()
    return {
        "answers": len(chosen),
        "labels": len(label_queue.agreed_labels()),
        "model_was_wrong": int(sum(wrong)),
        "on_short_list": on_short_list,
        "classes_reached": len({name for _, name in label_queue.agreed_labels()}),
    }


def compare(options: argparse.Namespace, extra: list[str], seed: int) -> list[dict[str, Any]]:
    """One seed: the first run, and a continuation for each way of choosing images; kept when it is complete."""
    kept = options.runs / f"seed-{seed}.json"
    asked = [options.data, options.preset, options.answers, options.more_steps, options.from_start, extra]
    if kept.exists():
        before = json.loads(kept.read_text())
        if before["asked"] != asked:
            sys.exit(f"{kept} is of other options: give the same ones, or other --runs.")
        return list(before["found"])
    first = options.runs / f"first-{seed}"
    arguments = ["train", options.data, "--seed", str(seed), "--out", str(first), *extra]
    arguments += ["--preset", options.preset] if options.preset else []
    trained = train(arguments, first)
    snapshot = take_snapshot(first, "auto")
    found = [{"seed": seed, "way": "before", "top1": trained["top1"], "top5": trained["top5"]}]
    # Trained anew without labels, the first run would come out again.
    for way in WAYS[1:] if options.from_start else WAYS:
        out, file = options.runs / f"{way}-{seed}", options.runs / f"{way}-{seed}.db"
        given = give_answers(snapshot, way, options.answers, seed, file)
        request = TrainingOptions(from_weights=not options.from_start, iterations=options.more_steps)
        _, _, _, *arguments = training_command(first, out, file, request)
        after = train(arguments, out)
        found.append({"seed": seed, "way": way, "top1": after["top1"], "top5": after["top5"], **given})
        print(f"seed {seed}, {way}: top-1 {after['top1']:.2f}", file=sys.stderr)
    kept.write_text(json.dumps({"asked": asked, "found": found}))
    return found


def table(results: list[dict[str, Any]]) -> str:
    lines = ["| labels | seeds | top-1 | top-5 | model was wrong | on the short list |", "|---|---|---|---|---|---|"]
    for way in ("before", *WAYS):
        runs = [result for result in results if result["way"] == way]
        if not runs:
            continue
        cells = [_spread([run[key] for run in runs]) for key in ("top1", "top5")]
        for key in ("model_was_wrong", "on_short_list"):
            cells.append(_spread([run[key] for run in runs]) if way in ("random", "studio") else "")
        lines.append(f"| {way} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _spread(values: list[float]) -> str:
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data")
    parser.add_argument("--preset")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--more-steps", type=int, help="steps of the continuation; default: as many as before")
    parser.add_argument("--from-start", action="store_true", help="train anew instead of from the run's weights")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/active"))
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options, extra = parser.parse_known_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    results = [result for seed in options.seeds for result in compare(options, extra, seed)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trained = json.loads((options.runs / f"first-{options.seeds[0]}" / "result.json").read_text())
    of_the_runs = {key: trained[key] for key in ("method", "iterations", "images", "environment")}
    record = {"command": " ".join(sys.argv), "results": results, "first_runs": of_the_runs}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
