"""Chooses the preset ``best`` on validation images: compares candidates with SoC on several data sets.

    python benchmarks/recipe_search.py --data semi_cub:device-data/semi_cub --longtail device-data --jobs 8 --minutes 9
    python benchmarks/recipe_search.py ... --write      # writes src/semifine/config/presets/best.yaml

Semi-CUB and its two long-tailed lists have 5 labels per class or fewer (``l_train``) and the published validation
images; the embedded set has its own. No candidate sees a test image. The score of a candidate is its mean difference to
plain SoC on validation images, in points, over the data sets on which both have finished. The winner is frozen before
``semi_cub.py main`` measures it on test images.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from grid import Results, Row, named, print_plan, run_rows
from semifine.config.loading import PRESETS, flatten, read_yaml
from semifine.data.sources import resolve as resolve_source
from semifine.experiments.recipes import Conditions
from semifine.experiments.stages import plan_stages

EMA = {"method.labels_from": "ema"}
ALIGN = {"method.align": 0.5}
SHARPEN = {"method.sharpen": 1.5}
PROBE = {"probe": True}
LAPTOP = {**EMA, **ALIGN, **SHARPEN}
SOFT = {"method.labels": "soft", "method.threshold": 0.0}
ADAMW = {"optimizer": "adamw", "lr": 1e-3, "backbone_lr": 0.3, "weight_decay": 0.05, "schedule": "half_cosine"}

CANDIDATES: dict[str, tuple[str, dict[str, Any]]] = {
    "soc": ("soc", {}),
    "ema, align, sharpen": ("soc", LAPTOP),
    "ema, align, sharpen, probe": ("soc", {**LAPTOP, **PROBE}),
    "ema, align, sharpen, probe, adamw": ("soc", {**LAPTOP, **PROBE, **ADAMW}),
    "without candidate sets": ("fixmatch", {**SOFT, **LAPTOP, **PROBE}),
    "ema, align, sharpen, probe, mixup": ("soc", {**LAPTOP, **PROBE, "mixup": 0.3}),
    "ema, align to em, sharpen, probe": ("soc", {**LAPTOP, **PROBE, "method.align_to": "em"}),
    "adjusted": ("soc", {**LAPTOP, **PROBE, "method.adjust_labeled": 1.0, "method.adjust_unlabeled": 0.5}),
    "ema, align, sharpen, probe, cooldown": ("soc", {**LAPTOP, **PROBE, "supervised_cooldown": 0.1}),
    "align": ("soc", ALIGN),
    "ema": ("soc", EMA),
    "probe": ("soc", PROBE),
    "dst": ("dst", {}),
    "softmatch, align, probe": ("softmatch", {**ALIGN, **PROBE}),
}
"""Recipe and further settings of each candidate, the most promising ones first."""

SUPERVISED = "supervised"
"""The labels alone, for comparison. No candidate should be worse."""


def data_sets(options: argparse.Namespace) -> dict[str, Conditions]:
    """Returns the conditions of each data set."""
    budget = str(options.budget)
    found = {}
    if options.data:
        name, root = resolve_source(options.data)
        l_train = (("labels", "l_train"),)
        cub = Conditions(f"{name}:{root}", "imagenet", profile="lite0-224", budget=budget, data_settings=l_train)
        found["semi_cub"] = cub
        if options.longtail:
            images = ("images", str((options.longtail / "semi_cub").absolute()))
            for part in ("longtail", "longtail_reversed"):
                data = f"semi_cub:{(options.longtail / part).absolute()}"
                found[part] = replace(cub, data=data, data_settings=(*l_train, images))
    if not options.no_embedded:
        found["embedded"] = Conditions("synthetic", profile="small", budget=budget)
    return found


def plan(options: argparse.Namespace) -> list[Row]:
    """Returns the rows, ordered by candidate, so that the first ones can be compared early."""
    conditions = data_sets(options)
    chosen = {name: CANDIDATES[name] for name in CANDIDATES if not options.candidates or name in options.candidates}
    rows = []
    for title, (recipe, settings) in {SUPERVISED: ("supervised", {}), **chosen}.items():
        for part, column in conditions.items():
            # The embedded set has no pretrained network, and a probe needs one. Its start needs the warm-up.
            changes = {key: value for key, value in settings.items() if column.init != "scratch" or key != "probe"}
            if column.init == "scratch" and recipe != "supervised":
                changes["supervised_warmup"] = 0.6
            stages = plan_stages(recipe, column)
            rows.append(Row(part, title, 0, named(stages, title, changes)))
    return rows


def scores(results: Path, parts: list[str]) -> dict[str, dict[str, float]]:
    """Returns the difference of each candidate to plain SoC by data set, in points on validation images."""
    found: dict[str, dict[str, float]] = {}
    for part in parts:
        val = {
            entry["row"]: entry["val"]["top1"]
            for entry in Results(results / f"{part}.json").entries
            if entry["seed"] == 0 and entry.get("val")
        }
        for title, top1 in val.items():
            if "soc" in val:
                found.setdefault(title, {})[part] = top1 - val["soc"]
    return found


def choose(found: dict[str, dict[str, float]]) -> str:
    """Returns the candidate with the best mean over all data sets; candidates that miss a data set do not count."""
    complete = len(found["soc"])
    means = {
        title: mean(points.values())
        for title, points in found.items()
        if title in CANDIDATES and len(points) == complete
    }
    return max(means, key=lambda title: means[title])


def write_preset(title: str, found: dict[str, float]) -> None:
    recipe, settings = CANDIDATES[title]
    points = ", ".join(f"{part} {value:+.1f}" for part, value in found.items())
    file = PRESETS / "best.yaml"
    method = {key.removeprefix("method."): value for key, value in settings.items() if key.startswith("method.")}
    others = {key: value for key, value in settings.items() if not key.startswith("method.")}
    summary = f"the recipe that won on validation images ({title}): {points} points to SoC; for any pretrained network"
    content = {"summary": summary, "method": {"name": recipe, **method}, **others}
    file.write_text(yaml.safe_dump(content, sort_keys=False, width=1000), encoding="utf-8")
    assert flatten(read_yaml(file))["method.name"] == recipe
    print(f"wrote {file}")


def show(found: dict[str, dict[str, float]], parts: list[str]) -> None:
    print("| candidate | " + " | ".join(parts) + " | mean |\n|---" + "|---" * len(parts) + "|---|")
    for title, points in sorted(found.items(), key=lambda item: -mean(item[1].values())):
        cells = [f"{points[part]:+.1f}" if part in points else "" for part in parts]
        print(f"| {title} | {' | '.join(cells)} | {mean(points.values()):+.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="semi_cub:PATH; default: the embedded set alone")
    parser.add_argument("--longtail", type=Path, help="folder of longtail, longtail_reversed and semi_cub")
    parser.add_argument("--no-embedded", action="store_true", help="without the embedded set")
    parser.add_argument("--candidates", nargs="+", choices=CANDIDATES, metavar="NAME", help="default: all")
    parser.add_argument("--budget", type=int, default=1000, help="SoC's number of steps")
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--runs", type=Path, default=Path("runs/recipe-search"))
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/recipe-search"))
    parser.add_argument("--plan", action="store_true", help="print the rows and the estimated time only")
    parser.add_argument("--write", action="store_true", help="write the preset of the best candidate")
    options = parser.parse_args()
    rows, parts = plan(options), list(data_sets(options))
    if options.plan:
        print_plan(rows, options.results, 0.075)
        return
    finished = run_rows(rows, options.results, options.runs, options.jobs, options.device, options.minutes)
    found = scores(options.results, parts)
    show(found, parts)
    if found and options.write:
        title = choose(found)
        write_preset(title, found[title])
    if not finished:
        sys.exit("Not all rows are finished. Repeat the command to continue.")


if __name__ == "__main__":
    main()
