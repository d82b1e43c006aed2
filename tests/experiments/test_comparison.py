"""The measurement of the comparison on Semi-CUB: its rows, what it repeats, and the choice of the recipe."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from PIL import Image

from semifine.config import resolve
from semifine.config.loading import read_preset
from semifine.experiments.tables import read_table
from semifine.runs.run import Run
from tests.conftest import ROOT
from tests.runs.fake_runs import write_run


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Imports a script in benchmarks/ by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))

    def load(name: str) -> ModuleType:
        return importlib.import_module(name)

    yield load
    for name in ("grid", "provenance", "recipe_search", "semi_cub", "shrink_semi_cub"):
        sys.modules.pop(name, None)


def options(tmp_path: Path, **changed: Any) -> argparse.Namespace:
    found = {
        "data": "synthetic",
        "profile": "small",
        "budget": 6,
        "results": tmp_path,
        "longtail": None,
        "images": None,
    }
    return argparse.Namespace(**{**found, "inat_weights": None, "transformer_weights": None, **changed})


def test_parts_have_the_rows_of_the_comparison(benchmark: Any, tmp_path: Path) -> None:
    semi_cub = benchmark("semi_cub")
    (tmp_path / "weights.safetensors").touch()
    weights = tmp_path / "weights.safetensors"
    parts = semi_cub.Parts(options(tmp_path, inat_weights=weights, transformer_weights=weights))
    table1 = {row.recipe for row in read_table("table1").rows}
    main, others = parts.rows("main"), parts.rows("others")
    assert {row.title for row in [*main, *others]} == table1 | {"recipe", "supervised"}
    assert {row.seed for row in main} == {0}
    assert {row.seed for row in parts.rows("seeds")} == {1, 2}
    assert len(parts.rows("table2")) == 3 * len(read_table("table2").rows)
    for part in semi_cub.PARTS:
        if not part.startswith("longtail"):
            for row in parts.rows(part):
                resolve([row.stages[-1].settings])
    with pytest.raises(SystemExit, match="longtail needs --longtail"):
        parts.rows("longtail")


def test_rates_are_tuned_on_validation_images_and_used_for_the_comparison(benchmark: Any, tmp_path: Path) -> None:
    semi_cub = benchmark("semi_cub")
    tuned = [row for row in semi_cub.Parts(options(tmp_path)).rows("tune") if row.title.startswith("soc")]
    rates = [row.stages[-1].settings["lr"] for row in tuned]
    assert [rate / rates[1] for rate in rates] == [0.5, 1.0, 2.0]
    assert tuned[0].stages[-1].settings["iterations"] == 2, "a third of the steps"
    for points, expected in (((50.0, 60.0, 61.0), 2.0), ((61.0, 60.0, 50.0), 0.5), ((60.0, 60.0, 60.0), 1.0)):
        entries = [
            {"row": row.title, "seed": 0, "settings": row.settings(), "val": {"top1": top1}}
            for row, top1 in zip(tuned, points, strict=True)
        ]
        (tmp_path / "tune.json").write_text(json.dumps({"results": entries}))
        (soc,) = (row for row in semi_cub.Parts(options(tmp_path)).rows("main") if row.title == "soc")
        assert soc.stages[-1].settings["lr"] == pytest.approx(expected * rates[1])


def test_finished_rows_are_not_repeated_unless_a_setting_changes(benchmark: Any, tmp_path: Path) -> None:
    grid, semi_cub = benchmark("grid"), benchmark("semi_cub")
    row = semi_cub.Parts(options(tmp_path)).rows("main")[0]
    results = grid.Results(tmp_path / "main.json")
    assert results.find(row) is None
    environment = {"semifine": "0.1.0 (0123456789)", "device": "GPU"}
    more = {
        "seconds": 3.0,
        "environment": environment,
        "images": {"labeled": 6, "unlabeled": 60, "val": 0, "test": 400},
    }
    run = Run(write_run(tmp_path / "run", result=more))
    results.add(row, run)
    results.write("cpu")
    found = grid.Results(tmp_path / "main.json").find(row)
    assert found["top1"] == 60
    assert found["standard_error"]["top1"] == round((60 * 40 / 400) ** 0.5, 2)
    assert len(found["class_accuracy"]) == run.num_classes
    other = semi_cub.Parts(options(tmp_path, budget=7)).rows("main")[0]
    assert grid.Results(tmp_path / "main.json").find(other) is None
    results.add(other, run)
    assert [entry["settings"]["iterations"] for entry in results.entries] == [other.settings()["iterations"]]


def test_the_table_has_deviations_and_standard_errors(benchmark: Any, tmp_path: Path) -> None:
    grid = benchmark("grid")
    for part, seeds in (("main", {"soc": [60.0], "fixmatch": [50.0]}), ("seeds", {"soc": [62.0]})):
        entries = [
            {"row": row, "iterations": 9, "top1": top1, "top5": 80.0, "standard_error": {"top1": 0.5, "top5": 1.3}}
            for row, values in seeds.items()
            for top1 in values
        ]
        (tmp_path / f"{part}.json").write_text(json.dumps({"results": entries}))
    assert grid.format_table(tmp_path, ["main", "seeds"]).splitlines()[2:] == [
        "| soc | 2 | 9 | 61.0 ± 1.4 | 1.0 | 80.0 ± 0.0 | 1.3 |",
        "| fixmatch | 1 | 9 | 50.0 | 0.5 | 80.0 | 1.3 |",
    ]


def test_the_recipe_is_chosen_by_the_mean_over_validation_sets(
    benchmark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = benchmark("recipe_search")
    val = {
        "semi_cub": {"soc": 50.0, "ema": 54.0, "align": 53.0, "dst": 60.0, "supervised": 70.0},
        "longtail": {"soc": 40.0, "ema": 38.0, "align": 42.0, "supervised": 70.0},
    }
    for part, points in val.items():
        entries = [{"row": row, "seed": 0, "val": {"top1": top1}} for row, top1 in points.items()]
        (tmp_path / f"{part}.json").write_text(json.dumps({"results": entries}))
    found = search.scores(tmp_path, list(val))
    assert found["ema"] == {"semi_cub": 4.0, "longtail": -2.0}
    assert search.choose(found) == "align", "dst has one data set, and labels alone are no recipe"
    monkeypatch.setattr(search, "PRESETS", tmp_path)
    search.write_preset("align", found["align"])
    written = yaml.safe_load((tmp_path / "best.yaml").read_text())
    assert written["method"] == {"name": "soc", "align": 0.5}
    assert "semi_cub +3.0, longtail +2.0" in written["summary"]


def test_candidates_are_valid_and_one_is_the_preset(benchmark: Any) -> None:
    search = benchmark("recipe_search")
    preset = read_preset("best")
    matches = [
        title
        for title, (recipe, settings) in search.CANDIDATES.items()
        if {"method.name": recipe, **settings} == dict(preset)
    ]
    assert len(matches) == 1
    arguments = argparse.Namespace(data=None, longtail=None, no_embedded=False, candidates=None, budget=5)
    for row in search.plan(arguments):
        resolve([row.stages[-1].settings])


def test_the_small_copy_has_webp_photos_and_validation_images_of_long_tails(benchmark: Any, tmp_path: Path) -> None:
    shrink = benchmark("shrink_semi_cub")
    (tmp_path / "001.A").mkdir()
    Image.new("RGB", (300, 200), (9, 9, 9)).save(tmp_path / "001.A" / "1.jpg")
    small = shrink.shrink("001.A/1.jpg", tmp_path, 100, 75)
    assert small[8:12] == b"WEBP"
    shrink.pack(["001.A/1.jpg"], tmp_path, 100, 75, tmp_path / "in.tar")
    shrink.write(tmp_path / "list.txt", [("001.A/1.jpg", "0")])
    assert (tmp_path / "list.txt").read_text() == "001.A/1.webp 0\n"
    train_val = [("a1", "0"), ("a2", "0"), ("b1", "1")]
    train, val = shrink.split_off(train_val, [("a2", "0"), ("b1", "1"), ("c", "0")])
    assert train == [("a1", "0"), ("b1", "1")], "class 1 keeps its only label"
    assert val == [("a2", "0"), ("c", "0")]
