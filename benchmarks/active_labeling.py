"""Simulates labeling and compares the accuracy for the studio's order with random order, over several seeds.

Trains a run, answers images with their hidden labels, and continues training from the run's weights with the new
labels, as the studio does, or from the start (--from-start). The comparison uses random images, and none. An image
of no known class costs an answer and gives no label. Finished runs in --runs are reused, so several commands can
train one seed each in parallel, and a last command with all seeds prints the table.

    python benchmarks/active_labeling.py semi_cub:PATH --preset lite0-imagenet --answers 200 --seeds 0 1 2 \
        --runs runs/active --out benchmarks/results/active-labeling-semi-cub.json
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np

from accuracy import format_mean
from provenance import provenance
from semifine.cli.main import main as semifine
from semifine.data.label_log import LabelLog
from semifine.devices import resolve_device
from semifine.studio.jobs import TrainingOptions, training_command
from semifine.studio.queue import Answer, LabelQueue
from semifine.studio.snapshot import ModelSnapshot, take_snapshot

ORDERS = ("none", "random", "studio")


def train(arguments: list[str], out: Path) -> dict[str, Any]:
    """Starts or resumes a training in this process, which avoids repeated imports, and returns its result."""
    with out.with_name(out.name + ".log").open("w") as log, redirect_stdout(log), redirect_stderr(log):
        code = semifine([*arguments, "--resume"])
    if code:
        sys.exit(f"{out} failed: see {log.name}")
    result: dict[str, Any] = json.loads((out / "result.json").read_text())
    return result


def give_answers(snapshot: ModelSnapshot, strategy: str, answers: int, seed: int, file: Path) -> dict[str, int]:
    """Answers images in the given order with their hidden labels, through the queue that the studio uses."""
    log = LabelLog(file)
    label_queue = LabelQueue(snapshot, log)
    order = snapshot.orders["informative"]
    if strategy == "random":
        order = np.random.default_rng(seed).permutation(len(order))
    chosen = [] if strategy == "none" else order[:answers].tolist()
    on_short_list = 0
    for index in chosen:
        truth = int(snapshot.catalog.truth[snapshot.rows[index]])
        known = 0 <= truth < len(snapshot.class_names)
        on_short_list += known and truth in snapshot.candidates(index)
        if label_queue.current_label(index).last:
            continue  # answered by an earlier attempt
        if known:
            label_queue.submit(Answer("simulated", "label", [index], [0], snapshot.class_names[truth]))
        else:
            label_queue.submit(Answer("simulated", "none_of_these", [index], [0]))
    wrong = [snapshot.prediction[index] != snapshot.catalog.truth[snapshot.rows[index]] for index in chosen]
    log.close()
    return {
        "answers": len(chosen),
        "labels": len(label_queue.agreed_labels()),
        "model_was_wrong": int(sum(wrong)),
        "on_short_list": on_short_list,
        "classes_reached": len({name for _, name in label_queue.agreed_labels()}),
    }


def compare(options: argparse.Namespace, extra: list[str], seed: int) -> list[dict[str, Any]]:
    """Trains the first run of a seed and a continuation for each order, and stores the results."""
    stored = options.runs / f"seed-{seed}.json"
    request = [options.data, options.preset, options.answers, options.more_steps, options.from_start, extra]
    if stored.exists():
        before = json.loads(stored.read_text())
        if before["request"] != request:
            sys.exit(
                f"{stored} contains results of other options: use the same options, or another folder with --runs."
            )
        return list(before["found"])
    first = options.runs / f"first-{seed}"
    arguments = ["train", options.data, "--seed", str(seed), "--out", str(first), *extra]
    arguments += ["--preset", options.preset] if options.preset else []
    trained = train(arguments, first)
    snapshot = take_snapshot(first, "auto")
    found = [{"seed": seed, "way": "before", "top1": trained["top1"], "top5": trained["top5"]}]
    # Training from the start without new labels would repeat the first run.
    for strategy in ORDERS[1:] if options.from_start else ORDERS:
        out, file = options.runs / f"{strategy}-{seed}", options.runs / f"{strategy}-{seed}.db"
        given = give_answers(snapshot, strategy, options.answers, seed, file)
        training = TrainingOptions(from_weights=not options.from_start, iterations=options.more_steps)
        _, _, _, *arguments = training_command(first, out, file, training)
        after = train(arguments, out)
        found.append({"seed": seed, "way": strategy, "top1": after["top1"], "top5": after["top5"], **given})
        print(f"seed {seed}, {strategy}: top-1 {after['top1']:.2f}", file=sys.stderr)
    stored.write_text(json.dumps({"request": request, "found": found}))
    return found


def format_table(results: list[dict[str, Any]]) -> str:
    lines = ["| labels | seeds | top-1 | top-5 | model was wrong | on the short list |", "|---|---|---|---|---|---|"]
    for strategy in ("before", *ORDERS):
        runs = [result for result in results if result["way"] == strategy]
        if not runs:
            continue
        cells = [format_mean([run[key] for run in runs]) for key in ("top1", "top5")]
        for key in ("model_was_wrong", "on_short_list"):
            cells.append(format_mean([run[key] for run in runs]) if strategy in ("random", "studio") else "")
        lines.append(f"| {strategy} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("data", help="data set, as for semifine train")
    parser.add_argument("--preset")
    parser.add_argument("--answers", type=int, default=200)
    parser.add_argument("--more-steps", type=int, help="steps of the continuation; default: as many as before")
    parser.add_argument(
        "--from-start", action="store_true", help="train from the start instead of from the run's weights"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs/active"))
    parser.add_argument("--out", type=Path, required=True, help="JSON file for the results")
    options, extra = parser.parse_known_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    results = [result for seed in options.seeds for result in compare(options, extra, seed)]
    options.out.parent.mkdir(parents=True, exist_ok=True)
    trained = json.loads((options.runs / f"first-{options.seeds[0]}" / "result.json").read_text())
    first_runs = {key: trained[key] for key in ("method", "iterations", "images", "environment")}
    record = {**provenance(resolve_device("auto")), "results": results, "first_runs": first_runs}
    options.out.write_text(json.dumps(record, indent=1) + "\n")
    print(format_table(results))


if __name__ == "__main__":
    main()
