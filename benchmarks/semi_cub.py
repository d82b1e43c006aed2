"""Measures the comparison on Semi-CUB at 224 pixels, many runs side by side on one GPU.

    python benchmarks/shrink_semi_cub.py SEMI_CUB device-data
    python benchmarks/semi_cub.py probe tune main --data semi_cub:device-data/semi_cub --jobs 8 --minutes 9

Parts, in the order of their importance:

    probe       logistic regression on frozen features
    tune        each main method with a learning rate of half, once and twice its own, a third of the steps, on val.txt
    main        the main methods and the recipe with all labels and the best of these rates, seed 0
    seeds       the same, seeds 1 and 2
    five        5 labels per class: recipe, SoC, FixMatch, DST, DebiasPL, supervised; three seeds
    longtail    few labels of rare classes; longtail_reversed: unlabeled images of the other frequencies; three seeds
    inat        from a network trained on birds of iNaturalist (--inat-weights)
    tune-others, others     the other rows of the paper's Table 1
    inout       unlabeled images of other classes, too; three seeds
    table2, clustering      variants of SoC, three seeds
    transformer             TinyViT with the settings of convolutional networks and with AdamW and layer decay

A part ends when its rows are in RESULTS/PART.json. Repeat the command to continue, also on another machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from grid import Results, Row, format_table, named, print_plan, run_rows
from semifine.config.autotune import TRANSFORMER_TRAINING
from semifine.config.loading import read_preset
from semifine.data.sources import resolve as resolve_source
from semifine.experiments.recipes import Conditions, read_catalog
from semifine.experiments.stages import Stage, plan_stages
from semifine.experiments.tables import read_table, scale_to_classes

MAIN = ("supervised", "fixmatch", "flexmatch", "simmatch", "soc", "oracle")
OTHERS = tuple(row.recipe for row in read_table("table1").rows if row.recipe not in MAIN)
FACTORS = (0.5, 1.0, 2.0)
SEEDS = range(3)
MILLISECONDS = 0.075
"""Forward pass of an image through EfficientNet-Lite0 at 224 pixels on an H200, estimated: three times 128 pixels."""


class Parts:
    """The rows of each part."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        name, root = resolve_source(options.data)
        init = "scratch" if options.profile == "small" else "imagenet"
        data = f"{name}:{root}" if root else name
        self.conditions = Conditions(data, init, profile=options.profile, budget=str(options.budget))
        self.best = (
            Results(options.results / "tune.json").entries + Results(options.results / "tune-others.json").entries
        )

    def rows(self, part: str) -> list[Row]:
        makers: dict[str, Callable[[], Iterator[Row]]] = {
            "probe": self.probe,
            "tune": lambda: self.tune("tune", [name for name in MAIN if name != "oracle"]),
            "main": lambda: self.compare("main", MAIN, [0], tuned=True),
            "seeds": lambda: self.compare("seeds", MAIN, SEEDS[1:], tuned=True),
            "five": self.five,
            "longtail": lambda: self.longtail("longtail"),
            "longtail_reversed": lambda: self.longtail("longtail_reversed"),
            "inat": self.inat,
            "tune-others": lambda: self.tune("tune-others", OTHERS),
            "others": lambda: self.compare("others", OTHERS, [0], tuned=True, recipe=False),
            "inout": self.inout,
            "table2": lambda: self.variants("table2"),
            "clustering": lambda: self.variants("clustering"),
            "transformer": self.transformer,
        }
        return list(makers[part]())

    def row(
        self,
        part: str,
        title: str,
        recipe: str,
        conditions: Conditions,
        seed: int,
        changes: dict[str, Any] | None = None,
    ) -> Row:
        stages = plan_stages(recipe, replace(conditions, seed=seed))
        return Row(part, title, seed, named(stages, title, changes))

    def recipe_row(self, part: str, conditions: Conditions, seed: int) -> Row:
        # A trial would double the steps, and all rows take the same number.
        best = {**read_preset("best"), "trial": False}
        if conditions.init == "scratch":
            best.pop("probe", None)
        return self.row(part, "recipe", str(best["method.name"]), conditions, seed, best)

    def compare(
        self,
        part: str,
        recipes: tuple[str, ...],
        seeds: range | list[int],
        conditions: Conditions | None = None,
        tuned: bool = False,
        recipe: bool = True,
    ) -> Iterator[Row]:
        chosen = conditions or self.conditions
        for seed in seeds:
            if recipe:
                yield self.recipe_row(part, chosen, seed)
            for name in recipes:
                yield self.row(part, name, name, chosen, seed, self.tuned_rate(name) if tuned else None)

    def tuned_rate(self, recipe: str) -> dict[str, Any]:
        """Returns the learning rate with the highest accuracy on validation images, at equality the published one."""
        found = [entry for entry in self.best if entry["row"].startswith(f"{recipe}, lr x ") and entry.get("val")]
        if not found:
            return {}
        closest = sorted(found, key=lambda entry: abs(float(entry["row"].rpartition(" ")[2]) - 1))
        factor = float(max(closest, key=lambda entry: entry["val"]["top1"])["row"].rpartition(" ")[2])
        return {"lr": factor * plan_stages(recipe, self.conditions)[-1].settings["lr"]}

    def tune(self, part: str, recipes: list[str] | tuple[str, ...]) -> Iterator[Row]:
        short = replace(self.conditions, budget=str(max(1, self.options.budget // 3)))
        conditions = self.with_val(short)
        for name in recipes:
            rate = plan_stages(name, conditions)[-1].settings["lr"]
            for factor in FACTORS:
                yield self.row(part, f"{name}, lr x {factor}", name, conditions, 0, {"lr": factor * rate})

    def with_val(self, conditions: Conditions) -> Conditions:
        """Returns the conditions with validation images, which are labeled ones otherwise."""
        is_published = conditions.data.startswith("semi_cub:")
        return (
            replace(conditions, data_settings=(*conditions.data_settings, ("labels", "l_train")))
            if is_published
            else conditions
        )

    def probe(self) -> Iterator[Row]:
        if self.conditions.init == "scratch":
            return
        yield self.probe_row("probe", self.conditions)
        yield self.probe_row("probe", self.with_val(self.conditions), "probe, l_train")
        if self.options.inat_weights:
            yield self.probe_row(
                "probe", self.from_file("mobilenetv2-224", self.options.inat_weights), "probe, iNat birds"
            )
        if self.options.transformer_weights:
            yield self.probe_row(
                "probe", self.from_file("tiny-vit-224", self.options.transformer_weights), "probe, TinyViT"
            )

    def probe_row(self, part: str, conditions: Conditions, title: str = "probe") -> Row:
        (stage,) = plan_stages("supervised", conditions)
        settings = {**stage.settings, "method.name": "probe", "probe": True}
        return Row(part, title, 0, named([Stage("probe", settings)], title))

    def from_file(self, profile: str, weights: Path) -> Conditions:
        return replace(self.conditions, init="inat", profile=profile, weights=str(weights.absolute()))

    def five(self) -> Iterator[Row]:
        recipes = ("soc", "dst", "debiaspl", "fixmatch", "supervised")
        yield from self.compare("five", recipes, SEEDS, self.with_val(self.conditions))

    def longtail(self, part: str) -> Iterator[Row]:
        if self.options.longtail is None:
            sys.exit(f"{part} needs --longtail FOLDER with the folder {part}.")
        settings = (("images", str((self.options.images or self.options.longtail / "semi_cub").absolute())),)
        data = f"semi_cub:{(self.options.longtail / part).absolute()}"
        conditions = replace(self.conditions, data=data, data_settings=settings)
        yield from self.compare(part, ("soc", "fixmatch", "supervised", "abc"), SEEDS, conditions)

    def inat(self) -> Iterator[Row]:
        if self.options.inat_weights is None:
            sys.exit("inat needs --inat-weights FILE.")
        conditions = self.from_file("mobilenetv2-224", self.options.inat_weights)
        yield self.probe_row("inat", conditions)
        yield from self.compare("inat", ("supervised", "soc", "fixmatch", "simmatch", "oracle"), [0], conditions)

    def inout(self) -> Iterator[Row]:
        conditions = replace(self.conditions, unlabeled="inout")
        yield from self.compare("inout", ("soc", "fixmatch", "simmatch", "supervised"), SEEDS, conditions)

    def variants(self, table: str) -> Iterator[Row]:
        num_classes = read_catalog(self.conditions).num_classes
        for seed in SEEDS:
            for line in read_table(table).rows:
                changes = scale_to_classes(line.settings, num_classes)
                yield self.row(table, line.title, line.recipe, self.conditions, seed, changes)

    def transformer(self) -> Iterator[Row]:
        if self.options.transformer_weights is None:
            sys.exit("transformer needs --transformer-weights FILE.")
        conditions = self.from_file("tiny-vit-224", self.options.transformer_weights)
        yield self.probe_row("transformer", conditions)
        for recipe in ("supervised", "soc"):
            yield self.row("transformer", f"{recipe}, SGD", recipe, conditions, 0)
            yield self.row("transformer", f"{recipe}, AdamW, layer decay", recipe, conditions, 0, TRANSFORMER_TRAINING)


PARTS = (
    *("probe", "tune", "main", "seeds", "five", "longtail", "longtail_reversed", "inat", "tune-others", "others"),
    *("inout", "table2", "clustering", "transformer"),
)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--data", default="semi_cub:device-data/semi_cub")
    parser.add_argument("--longtail", type=Path, help="folder of longtail and longtail_reversed")
    parser.add_argument("--images", type=Path, help="with --longtail: folder of the images; default: its semi_cub")
    parser.add_argument("--inat-weights", type=Path, help="mobilenetv2_100 trained on birds of iNaturalist")
    parser.add_argument("--transformer-weights", type=Path, help="weights of tiny_vit_5m_224")
    parser.add_argument("--profile", default="lite0-224")
    parser.add_argument("--budget", type=int, default=3000, help="SoC's number of steps")
    parser.add_argument("--jobs", type=int, default=8, help="number of simultaneous runs")
    parser.add_argument("--minutes", type=float, help="stop after this time")
    parser.add_argument("--device", default="auto")
    parser.add_argument(
        "--runs", type=Path, default=Path("runs/semi-cub"), help="folder of the runs, which git ignores"
    )
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/semi-cub-224"))
    parser.add_argument("--plan", action="store_true", help="print the rows and the estimated time only")
    parser.add_argument("--show", action="store_true", help="print the results of the parts as one table")
    return parser.parse_args()


def main() -> None:
    options = parse()
    if options.show:
        print(format_table(options.results, options.parts))
        return
    rows = [row for part in options.parts for row in Parts(options).rows(part)]
    if options.plan:
        print_plan(rows, options.results, MILLISECONDS)
    elif not run_rows(rows, options.results, options.runs, options.jobs, options.device, options.minutes):
        sys.exit("Not all rows are finished. Repeat the command to continue.")


if __name__ == "__main__":
    main()
