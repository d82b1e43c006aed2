"""Trains, calibrates, predicts and exports on a folder of photos, and measures accuracy, calibration and coverage.

    python benchmarks/own_photos.py SEMI_CUB --work /tmp/own --out benchmarks/results/own-photos.json

SEMI_CUB contains the lists of Semi-CUB in ``splits`` and its images in ``images`` (or in images-*.tar). The script
arranges them as a folder of own photos with ten labels per class, and runs one command each to train, predict and
export.

For several seeds, of training and of the validation split, it measures on test images: accuracy, calibration error
and the error that perfect confidences would show on as few images, coverage of the conformal sets, and how well the
flag separates birds of other species (u_train_out, which the network never saw) from test images.

Calibration error and coverage depend on the validation split. "redrawn" is their mean, and the spread of the
coverage, over random splits of the validation and test images together, so it does not show a difference between
the two. Unknown options are passed to semifine train.
"""

from __future__ import annotations

import argparse
import json
import sys
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import semifine
from semifine.cli.main import main as command
from semifine.data.catalog import Split
from semifine.inference.calibration import calibrate, calibration_error, confidence_error, error_by_chance

COVERAGE = 0.9
REDRAWS = 100


def read_list(source: Path, name: str) -> list[tuple[str, str]]:
    """Returns path and class folder of every image of a list."""
    lines = (source / "splits" / f"{name}.txt").read_text().split("\n")
    paths = [line.rpartition(" ")[0] for line in lines if line]
    return [(path, path.partition("/")[0]) for path in paths]


def unpack(source: Path, work: Path) -> Path:
    """Returns the folder of images, unpacked if necessary."""
    if (source / "images").is_dir():
        return source / "images"
    if not (work / "images").is_dir():
        for tar in sorted(source.glob("images-*.tar")):
            with tarfile.open(tar) as opened:
                opened.extractall(work, filter="data")
    return work / "images"


def make_folder(source: Path, work: Path, others: int) -> Path:
    """Arranges links to the images as a folder of own photos, with birds of other species in a separate folder."""
    images, root = unpack(source, work), work / "photos"
    splits = {"labeled": read_list(source, "l_train_val"), "test": read_list(source, "test")}
    links = [(path, root / split / name / Path(path).name) for split, part in splits.items() for path, name in part]
    links += [(path, root / "unlabeled" / Path(path).name) for path, _ in read_list(source, "u_train_in")]
    other_species = [path for path, _ in read_list(source, "u_train_out") if (images / path).is_file()]
    chosen = np.random.default_rng(0).permutation(other_species)[:others].tolist()
    links += [(path, work / "others" / Path(path).name) for path in chosen]
    for path, link in links:
        link.parent.mkdir(parents=True, exist_ok=True)
        if not link.exists():
            link.symlink_to((images / path).resolve())
    return root


def auroc(known: list[float], unknown: list[float]) -> float:
    """Returns how often an unknown image scores higher than a known one; ties count half."""
    both = np.array([*known, *unknown])
    _, inverse, counts = np.unique(both, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    n = len(unknown)
    return float((ranks[len(known) :].sum() - n * (n + 1) / 2) / (n * len(known)))


def measure(tested: list[dict[str, Any]], others: list[dict[str, Any]]) -> dict[str, float]:
    truth = [Path(record["path"]).parent.name for record in tested]
    correct = np.array([record["name"] == name for record, name in zip(tested, truth, strict=True)])
    confidence = np.array([record["probability"] for record in tested])

    def share(column: str) -> float:
        return float(np.mean([name in record[column] for record, name in zip(tested, truth, strict=True)]))

    return {
        "top1": 100 * float(correct.mean()),
        "calibration_error": 100 * confidence_error(confidence, correct),
        "calibration_error_by_chance": 100 * error_by_chance(confidence),
        "conformal_coverage": 100 * share("conformal_set"),
        "conformal_size": float(np.mean([len(record["conformal_set"]) for record in tested])),
        "candidate_hit_rate": 100 * share("candidates"),
        "candidates": float(np.mean([len(record["candidates"]) for record in tested])),
        "ood_auroc": auroc([r["ood_score"] for r in tested], [r["ood_score"] for r in others]),
        "flagged_test": 100 * float(np.mean([record["is_ood"] for record in tested])),
        "flagged_others": 100 * float(np.mean([record["is_ood"] for record in others])),
    }


def redrawn(folder: Path) -> dict[str, float]:
    """Returns calibration error and coverage for random validation splits."""
    model = semifine.load(folder)
    catalog = model.run.dataset.catalog
    val, test = catalog.rows(Split.VAL), catalog.rows(Split.TEST)
    rows = np.concatenate([val, test])
    logits, label = np.concatenate([output.logits.numpy() for output in model.outputs(rows)]), catalog.label[rows]
    errors, covered = [], []
    for draw in range(REDRAWS):
        order = np.random.default_rng(draw).permutation(len(rows))
        inside, outside = order[: len(val)], order[len(val) :]
        calibration = calibrate(logits[inside], label[inside])
        probs = calibration.probabilities(logits[outside])
        chosen = calibration.conformal_set(probs, COVERAGE)
        assert chosen is not None
        errors.append(100 * calibration_error(probs, label[outside]))
        covered.append(100 * chosen[np.arange(len(outside)), label[outside]].mean())
    return {
        "redrawn_calibration_error": float(np.mean(errors)),
        "redrawn_conformal_coverage": float(np.mean(covered)),
        "redrawn_conformal_coverage_spread": float(np.std(covered)),
    }


def run_command(*arguments: str) -> float:
    """Runs a semifine command and returns its duration in seconds."""
    print("$ semifine " + " ".join(arguments), file=sys.stderr)
    started = time.perf_counter()
    if command(list(arguments)):
        sys.exit(f"semifine {arguments[0]} failed")
    return round(time.perf_counter() - started, 1)


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def run_seed(photos: Path, others: Path, work: Path, arguments: list[str]) -> dict[str, Any]:
    """Trains, exports, predicts and measures one seed."""
    work.mkdir()
    run, onnx, test = str(work / "run"), str(work / "model.onnx"), str(photos / "test")
    seconds = {
        "train": run_command("train", str(photos), "--out", run, *arguments),
        "export": run_command("export", run, "--out", onnx),
        "predict": run_command("predict", run, test, "--out", str(work / "test.jsonl"), "--quiet"),
        "predict_others": run_command("predict", run, str(others), "--out", str(work / "others.jsonl"), "--quiet"),
        "predict_onnx": run_command("predict", onnx, test, "--out", str(work / "onnx.jsonl"), "--quiet"),
    }
    tested, by_onnx = read_records(work / "test.jsonl"), read_records(work / "onnx.jsonl")
    result = measure(tested, read_records(work / "others.jsonl"))
    same = np.mean([a["name"] == b["name"] for a, b in zip(tested, by_onnx, strict=True)])
    (calibration,) = json.loads((work / "run" / "calibration.json").read_text()).values()
    result |= {"onnx_same_prediction": 100 * float(same), "validation_images": calibration["images"]}
    result |= {"temperature": calibration["temperature"], "error_before_on_val": 100 * calibration["ece_before"]}
    result |= redrawn(work / "run")
    trained = json.loads((work / "run" / "result.json").read_text())
    run_info = {key: trained[key] for key in ("method", "seed", "iterations", "images", "environment")}
    return {"measured": result, "seconds": seconds, "run": run_info}


TRAINING = ("--image-size", "128", "--iterations", "3000", "--no-probe")
"""Values that own photos do not take from the preset; with a probe, no validation images would be held out."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("source", type=Path, metavar="SEMI_CUB")
    parser.add_argument("--work", type=Path, required=True, help="folder for photos, runs and predictions")
    parser.add_argument("--others", type=int, default=1000, help="images of other species")
    parser.add_argument("--preset", default="lite0-imagenet")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, help="JSON file for the result")
    options, extra = parser.parse_known_args()
    photos = make_folder(options.source, options.work, options.others)
    results = []
    for seed in options.seeds:
        arguments = ["--preset", options.preset, *TRAINING, "--seed", str(seed), "--data.seed", str(seed), *extra]
        results.append(run_seed(photos, options.work / "others", options.work / f"seed-{seed}", arguments))
        if options.out:
            options.out.write_text(json.dumps({"command": " ".join(sys.argv), "results": results}, indent=1) + "\n")
    print("| measured | mean | " + " | ".join(f"seed {seed}" for seed in options.seeds) + " |")
    print("|---" * (2 + len(results)) + "|")
    for name in results[0]["measured"]:
        values = [result["measured"][name] for result in results]
        print(f"| {name} | {np.mean(values):.3g} | " + " | ".join(f"{value:.3g}" for value in values) + " |")


if __name__ == "__main__":
    main()
