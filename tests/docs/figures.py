"""The measured numbers of the documentation, computed from the raw files in benchmarks/results.

Each function below belongs to a page and returns phrases. A phrase is text of the page whose numbers come from a raw
file. To quote a new number, add its phrase. `python -m tests.docs.figures` prints all phrases, for example to update a
page after a new measurement.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from semifine.runs.analysis import wilson_interval

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


@cache
def raw(name: str) -> Any:
    return json.loads((RESULTS / name).read_text(encoding="utf-8"))


def spread(values: list[float]) -> str:
    return f"{mean(values):.1f} ± {stdev(values):.1f}"


def interval(percent: float, images: int) -> str:
    found = wilson_interval(percent, images)
    return f"{found.low:.1f} to {found.high:.1f}"


# --- The embedded data set and Semi-CUB on a GPU ---


def demo(method: str) -> list[dict[str, Any]]:
    return [run for run in raw("demo.json")["results"] if run["method"] == method]


def table1(method: str) -> list[dict[str, Any]]:
    return [raw(f"semi-cub-table1/imagenet-in/seed-{seed}/{method}/result.json") for seed in range(3)]


def tops(run: dict[str, Any]) -> str:
    return f"{run['top1']:.1f} / {run['top5']:.1f}"


def means(runs: list[dict[str, Any]], key: str) -> float:
    return mean(run[key] for run in runs)


def demo_rows() -> Iterator[str]:
    supervised, soc = demo("supervised"), demo("soc")
    gains = [after["top1"] - before["top1"] for before, after in zip(supervised, soc, strict=True)]
    for before, after, gain in zip(supervised, soc, gains, strict=True):
        found = after["unlabeled"]
        yield (
            f"| {after['seed']} | {tops(before)} | {tops(after)} | +{gain:.1f} | "
            f"{found['pseudo_label_accuracy']:.1f} | {found['candidates']:.1f} | {found['candidate_hit_rate']:.1f} |"
        )
    columns = [f"{spread([run['top1'] for run in runs])} / {spread([run['top5'] for run in runs])}"
               for runs in (supervised, soc)]  # fmt: skip
    unlabeled = [run["unlabeled"] for run in soc]
    last = [f"{means(unlabeled, key):.1f}" for key in ("pseudo_label_accuracy", "candidates", "candidate_hit_rate")]
    yield " | ".join(["| mean ± deviation", *columns, f"+{spread(gains)}", *last]) + " |"


TABLE1_ROWS = {
    "supervised oracle (all labels)": "oracle",
    "supervised": "supervised",
    "MoCo, then supervised": "moco+supervised",
    "Pseudo-Label": "pseudo_label",
    "Curriculum Pseudo-Label": "curriculum-5",
    "FixMatch": "fixmatch",
    "FlexMatch": "flexmatch",
    "MoCo + FlexMatch": "moco+flexmatch",
    "KD-Self-Training": "self_training",
    "MoCo + KD-Self-Training": "moco+self_training",
    "SimMatch": "simmatch",
    "MoCo + SimMatch": "moco+simmatch",
    "**SoC**": "soc",
    "MoCo + SoC": "moco+soc",
}


def table1_rows() -> Iterator[str]:
    for title, name in TABLE1_ROWS.items():
        runs = table1(name)
        unlabeled = [run["unlabeled"] for run in runs]
        candidates = f"{means(unlabeled, 'candidates'):.1f}".removesuffix(".0")
        cells = [
            spread([run["top1"] for run in runs]),
            spread([run["top5"] for run in runs]),
            f"{means(unlabeled, 'pseudo_label_accuracy'):.1f}",
        ]
        rest = [candidates, f"{means(unlabeled, 'candidate_hit_rate'):.1f}"]
        if name == "oracle":
            yield f"| {title} | {' | '.join(cells[:2])} | | | |"
        elif name == "soc":
            yield f"| {title} | {' | '.join(f'**{cell}**' for cell in cells)} | {' | '.join(rest)} |"
        else:
            yield f"| {title} | {' | '.join(cells + rest)} |"


def table1_text() -> Iterator[str]:
    soc, fixmatch, simmatch = table1("soc"), table1("fixmatch"), table1("simmatch")
    gaps = [means(soc, key) - means(runs, key) for runs in (fixmatch, simmatch) for key in ("top1", "top5")]
    yield (
        f"SoC is {gaps[0]:.1f} points better than FixMatch in top-1 and {gaps[1]:.1f} in top-5, and {gaps[2]:.1f} and "
        f"{gaps[3]:.1f} points better than SimMatch"
    )
    accepted = {name: [100 * run["unlabeled"]["accepted"] for run in table1(name)]
                for name in ("fixmatch", "flexmatch", "pseudo_label")}  # fmt: skip
    yield f"the {mean(accepted['fixmatch']):.0f} % of the unlabeled images that reach its threshold"
    yield f"the candidates of {means([run['unlabeled'] for run in soc], 'candidate_hit_rate'):.0f} % contain"
    yield f"accepts {min(accepted['flexmatch']):.0f} to {max(accepted['flexmatch']):.0f} % of the images"
    yield f"Pseudo-Label accepts {mean(accepted['pseudo_label']):.0f} % of the images"
    single = {"moco+supervised": "supervised"}
    losses = [
        means(table1(single.get(name, name.removeprefix("moco+"))), "top1") - means(table1(name), "top1")
        for name in TABLE1_ROWS.values()
        if name.startswith("moco+")
    ]
    yield f"MoCo before a method reduces top-1 by {min(losses):.1f} to {max(losses):.1f} points"
    plain = [raw(f"semi-cub-plain-steps/soc-{seed}/result.json") for seed in (0, 1)]
    assert [tops(run) for run in plain] == [tops(run) for run in soc[:2]]
    yield f"ended at {tops(plain[0])} (seed 0) and {tops(plain[1])} (seed 1)"


# --- Own photos on two CPU cores ---


def laptop(name: str) -> dict[str, Any]:
    (draw,) = raw(f"laptop-{name}.json")["draws"]
    return dict(draw)


LAPTOP = {
    "15-species": "15 species (draw 0 of laptop-15-species.json)",
    "semi-cub": "Semi-CUB (photos of laptop-semi-cub.json)",
}


def own_photos_columns() -> Iterator[list[str]]:
    for name, key in LAPTOP.items():
        draw, script = laptop(name), raw("laptop-script.json")[key]
        run, evaluation = draw["default"], draw["default"]["evaluation"]
        yield [
            f"{script['top1']:.1f} %, {script['seconds']:.1f} s",
            f"{draw['script']['top1']:.1f} %, {draw['script']['seconds']:.1f} s",
            f"{draw['script_with_unlabeled']['seconds']:.1f} s",
            f"{run['probe']['top1']:.1f} %, {run['seconds_to_probe']:.1f} s",
            f"{run['trained']['top1']:.1f} %",
            f"{evaluation['top1']:.1f} %, {run['seconds']:.0f} s",
            f"{evaluation['calibration_error']:.1f} % ({evaluation['calibration_error_by_chance']:.1f} %)",
            f"{evaluation['conformal_coverage']:.1f} %, {evaluation['conformal_set_size']:.1f}",
        ]


def own_photos_rows() -> Iterator[str]:
    weight = laptop("15-species")["default"]["weight"]
    titles = (
        "script: logistic regression, features as they are",
        "script: logistic regression, scaled features",
        "script, with features of the unlabeled photos",
        "probe, run folder usable",
        "trained network",
        f"result (weights between probe and trained network, {weight})",
        "expected calibration error of the result (by chance alone)",
        "90 % conformal sets: coverage, classes",
    )
    for title, *cells in zip(titles, *own_photos_columns(), strict=True):
        yield f"| {title} | {' | '.join(cells)} |"
    errors = []
    for name in LAPTOP:
        found = laptop(name)["default"]["evaluation"]
        errors.append((found["top1"] * (100 - found["top1"]) / found["images"]) ** 0.5)
    yield f"The standard error is {errors[0]:.1f} points for 15 species and {errors[1]:.1f} points for Semi-CUB"


def own_photos_output() -> Iterator[str]:
    """The lines in README that `train` printed. The raw file does not have the time of the line after the trial."""
    run = laptop("15-species")["default"]
    validated, compared, found = run["probe"]["cross_validation"], run["comparison"], run["evaluation"]
    yield (
        f"{run['seconds_to_probe']:.0f} s probe: {validated['top1']:.1f} % of labeled images "
        f"correct in cross-validation (95 % interval "
        f"{validated['low']:.1f} to {validated['high']:.1f} %, {validated['images']} images)"
    )
    yield f"training: {run['iterations']} steps of"
    first, last = compared["top1"][0], compared["top1"][-1]
    yield (
        f"7 min on {compared['images']} held-out images, the probe classified {first:.1f} % "
        f"({interval(first, compared['images'])}) correctly, the trained network {last:.1f} % "
        f"({interval(last, compared['images'])})"
    )
    yield (
        f"{run['seconds'] / 60:.0f} min soc: test top-1 {found['top1']:.1f} % (95 % interval "
        f"{interval(found['top1'], found['images'])}, "
        f"{found['images']} images), top-5 {found['top5']:.1f} % ({interval(found['top5'], found['images'])})"
    )


def own_photos_summary() -> Iterator[str]:
    scripts, probes, results = [], [], []
    for name, key in LAPTOP.items():
        draw, plain = laptop(name), raw("laptop-script.json")[key]
        best = max((plain["top1"], plain["seconds"]), (draw["script"]["top1"], draw["script"]["seconds"]))
        run, found = draw["default"], draw["default"]["evaluation"]
        scripts.append(f"{best[0]:.1f} % in {best[1]:.0f} s")
        probes.append(f"{run['probe']['top1']:.1f} % in {run['seconds_to_probe']:.0f} s")
        minutes = f"{run['seconds'] / 60:.0f} min"
        results.append(f"**{found['top1']:.1f} %** ({interval(found['top1'], found['images'])}) in {minutes}")
    yield f"| scikit-learn's logistic regression on the same features | {' | '.join(scripts)} |"
    yield f"| `semifine train`, after the first part (linear classifier) | {' | '.join(probes)} |"
    yield f"| `semifine train`, result | {' | '.join(results)} |"


# --- The probe ---


def probe_variants() -> Iterator[str]:
    means = [raw(f"probe-variants-{kind}.json")["means"][draws] for kind in ("even", "odd")
             for draws in ("neighbors", "random")]  # fmt: skip
    for name in means[0]:
        title = f"**{name}**" if name.endswith("(the default)") else name
        yield f"| {title} | {' | '.join(f'{column[name]:.1f}' for column in means)} |"


# --- Speed, labeling, reliability ---


def soc_core() -> Iterator[str]:
    titles = {
        (200, "all"): "all",
        (810, "all"): "all",
        (810, "occurring"): "needed by the batch (default up to 1,000 classes)",
        (810, "oldest"): "the 8 oldest needed (default above 1,000 classes)",
        (2000, "oldest"): "the 8 oldest needed",
    }
    rows = {(row["classes"], row["refresh"]): row for row in raw("soc-core-cuda.json")["measurements"]}
    for key, title in titles.items():
        row, mebi = rows[key], 2**20 / 1e6
        dense = row["dense_mb"] * mebi
        text = f"{dense:.0f} MB" if dense < 1000 else f"{dense / 1000:.1f} GB"
        yield f"| {key[0]:,} | {title} | {row['graph_ms']:.2f} ms | {row['state_mb'] * mebi:.1f} MB | {text} |"


def soc_core_step() -> str:
    (row,) = (
        row for row in raw("soc-core-cuda.json")["measurements"] if (row["classes"], row["refresh"]) == (200, "all")
    )
    return f"{row['graph_ms']:.2f} ms"


def predict_speed() -> Iterator[str]:
    (cpu,) = raw("predict-speed-cpu.json")["results"]
    speed = cpu["images_per_second"]
    loop = f"plain torchvision loop {speed['plain']:.0f}"
    yield f"ONNX file {speed['onnx']:.0f}, run folder {speed['semifine']:.0f}, {loop}"
    titles = {
        "1600x1200": "1600 x 1200 pixels, as cameras make them or larger",
        "500x375": "500 x 375 pixels, as on the web",
    }
    for row in raw("predict-speed-cuda.json")["results"]:
        speed, ratio = row["images_per_second"], row["ratio"]["semifine"]
        yield f"| {titles[row['photos']]} | {speed['semifine']:,.0f} | {speed['plain']:,.0f} | {ratio:.1f} |"


def labeling() -> Iterator[str]:
    titles = {
        "before": "before",
        "none": "none, 500 steps more",
        "random": "200 random photos",
        "studio": "the first 200 of the studio's queue",
    }
    found = raw("active-labeling-synthetic.json")["results"]
    for way, title in titles.items():
        runs = [result for result in found if result["way"] == way]
        wrong = f"{means(runs, 'model_was_wrong'):.0f} of 200 " if way in ("random", "studio") else ""
        yield f"| {title} | {spread([run['top1'] for run in runs])} | {wrong}|"
    gains = [
        studio["top1"] - random["top1"]
        for studio, random in zip(
            *([run for run in found if run["way"] == way] for way in ("studio", "random")), strict=True
        )
    ]
    yield f"by {min(gains):.1f} to {max(gains):.1f} points"


WAYS = {
    "random": "single answers, random order",
    "static": "single answers, the queue before the first answer",
    "live": "single answers, the live queue",
    "uncertain": "single answers, the lowest confidence first",
    "margin-k-center": "single answers, margin uncertainty and distance, live",
    "typical-uncertain": "single answers, low confidence times density, live",
    "grid": "grid: pages of a predicted class",
    "hybrid": "live queue to 50 % correct, then the grid",
    "groups": "groups of similar photos, then the grid",
}


def live_labeling() -> Iterator[str]:
    cells: dict[str, list[str]] = {way: [] for way in WAYS}
    for start in ("none", "labels"):
        for result in raw(f"live-labeling-{start}.json")["results"]:
            goal = result["reached"]["0.8"]
            cells[result["way"]] += [f"{goal['answers']:,}", f"{goal['minutes']:.0f} min"]
    for way, title in WAYS.items():
        yield f"| {title} | {' | '.join(cells[way])} |"
    yield f"80 % of {raw('live-labeling-none.json')['images']['unlabeled']:,} photos"
    ten = {(result["start"], result["way"]): result for result in raw("live-labeling-ten.json")["results"]}
    for start in ("labels", "none"):
        live, random = (ten[start, way]["reached"]["0.8"]["answers"] for way in ("live", "random"))
        yield f"{live:,} instead of {random:,} answers ({100 * live / random:.0f} %)"
    for found in raw("live-fit.json")["results"]:
        yield f"{found['refit_cpu_seconds']:.1f} s of CPU time"


def label_errors() -> Iterator[str]:
    draws = raw("label-errors.json")["draws"]
    for labels in (8, 20):
        for share in (0.1, 0.0):
            rows = [draw for draw in draws if (draw["labels_per_class"], draw["share"]) == (labels, share)]
            listed = f"{mean(row['suspects']['listed'] for row in rows):.0f}"
            if not share:
                yield f"| {labels} | none | {listed} | | | |"
                continue
            numbers = [mean(row[kind][key] for row in rows) for kind, key in
                       (("suspects", "recall"), ("suspects", "precision"), ("errors", "precision"))]  # fmt: skip
            cells = " | ".join(f"{100 * number:.0f} %" for number in numbers)
            yield f"| {labels} | {rows[0]['flipped']} of {rows[0]['labels']} | {listed} | {cells} |"


def conformal() -> Iterator[str]:
    measured = [result["measured"] for result in raw("own-photos.json")["results"]]
    errors = {"calibration_error": " %", "calibration_error_by_chance": " %"}
    columns = {"top1": "", "conformal_coverage": "", "conformal_size": "", **errors}
    cells = [", ".join(f"{run[key]:.1f}" for run in measured) + unit for key, unit in columns.items()]
    yield "| " + " | ".join(cells) + " |"
    same = [f"{run['onnx_same_prediction']:.1f}".removesuffix(".0") for run in measured]
    yield f"gave {same[0]}, {same[1]} and {same[2]} % of the test images the same class"
    auroc = [run["ood_auroc"] for run in measured]
    yield f"is {min(auroc):.2f} to {max(auroc):.2f} with the training above"


def reliability() -> Iterator[str]:
    kill = raw("kill.json")
    yield (
        f"{kill['kills']} kills ({kill['in_mid_writing']} during writing) in {kill['runs']} runs, "
        f"{kill['runs_equal_to_the_undisturbed']} equal"
    )
    fuzz = raw("fuzz.json")
    totals = [0, 0, 0]
    for outcomes in fuzz["counts"].values():
        row = (sum(outcomes.values()), outcomes.get("exit code 0", 0), outcomes.get("exit code 2", 0))
        totals = [before + now for before, now in zip(totals, row, strict=True)]
        yield f"| {' | '.join(map(str, row))} |"
    yield f"| all | {' | '.join(map(str, totals))} |"
    yield f"The slowest took {fuzz['slowest_seconds']:.1f} s"


def readme() -> Iterator[str]:
    for runs in ([spread([run["top1"] for run in kind(method)]) for method in ("supervised", "soc")]
                 for kind in (demo, table1)):  # fmt: skip
        yield f"| {runs[0]} % | **{runs[1]} %** |"
    simmatch, fixmatch = ([run["top1"] for run in table1(name)] for name in ("simmatch", "fixmatch"))
    yield f"SimMatch with {spread(simmatch)} % and FixMatch with {spread(fixmatch)} %"
    yield f"already reaches {raw('laptop-script.json')[LAPTOP['semi-cub']]['top1']:.1f} %"
    yield f"soft labels take {soc_core_step()} of it"
    yield from own_photos_output()
    yield from own_photos_summary()


def studio() -> Iterator[str]:
    sizes = [raw("studio.json")["sizes"][count] for count in ("10000", "100000")]
    starts = [f"{size['page_s']:g} s ({size['page_cpu_s']:g} s)" for size in sizes]
    yield f"| start until the page answers (CPU time) | {' | '.join(starts)} |"
    refits = [f"{size['refit_s']['median']:g} s ({size['refit_cpu_s']:g} s)" for size in sizes]
    yield f"| refit of the live model, median (CPU time) | {' | '.join(refits)} |"
    answers = [f"{size['answer_ms']['median']:g} ms" for size in sizes]
    yield f"| one answer acknowledged, median | {' | '.join(answers)} |"
    rows = {
        "first photo": "first_photo_ms",
        "answer of 1,000 tiles acknowledged": "answer_of_1000_tiles_ms",
        "first page of the grid, 200 tiles": "grid_first_ms",
        "page of the grid at 90 % of the photos": "grid_at_90_percent_ms",
        "search for a folder": "grid_search_ms",
        "60 neighbors of a photo": "neighbors_ms",
        "overview": "overview_ms",
    }
    for title, key in rows.items():
        values = [f"{size[key]:g} ms" for size in sizes]
        yield f"| {title} | {' | '.join(values)} |"
    memory = [f"{size['memory_gib']:g} GiB" for size in sizes]
    yield f"| memory | {' | '.join(memory)} |"


def results() -> Iterator[str]:
    yield from studio()
    yield from demo_rows()
    yield from own_photos_rows()
    yield f"reaches {raw('laptop-script.json')[LAPTOP['semi-cub']]['top1']:.1f} %"
    yield from table1_rows()
    yield from table1_text()
    yield from soc_core()
    yield from labeling()
    yield from live_labeling()


PHRASES = {
    "README.md": readme,
    "docs/explanation/results.md": results,
    "docs/explanation/reliability.md": reliability,
    "docs/explanation/probe.md": probe_variants,
    "docs/how-to/predict.md": predict_speed,
    "docs/how-to/report.md": label_errors,
    "docs/reference/predictions.md": conformal,
}

if __name__ == "__main__":
    for page, phrases in PHRASES.items():
        print(f"\n{page}", *phrases(), sep="\n  ")
