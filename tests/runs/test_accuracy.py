"""The accuracy of a run is shown with its interval, and one photo more is not progress."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from semifine.cli.demo import _print_table
from semifine.cli.train import result_line
from semifine.experiments.tables import Cell
from semifine.report.sections.summary import describe_comparisons
from semifine.runs.accuracy import Accuracy, describe_difference, difference_margin, final_accuracy
from semifine.runs.analysis import wilson_interval
from semifine.runs.run import Run
from tests.runs.fake_runs import write_run

CROSS_VALIDATION = {"top1": 90.0, "images": 50, "low": 78.6, "high": 95.7}
COMPARISON = {"images": 12, "top1": [50.0, 58.3, 66.7, 75.0, 66.7], "loss": [1.0, 0.9, 0.8, 0.7, 0.9]}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        ({"top1": 80.0, "val": {"top1": 70.0}, "images": {"test": 40, "val": 20}}, Accuracy("test", 80.0, 40)),
        ({"top1": None, "val": {"top1": 70.0}, "images": {"test": 0, "val": 20}}, Accuracy("val", 70.0, 20)),
        (
            {"top1": None, "comparison": COMPARISON, "weight": 0.75, "chosen": "interpolated"},
            Accuracy("held_out", 75.0, 12),
        ),
        (
            {"top1": None, "comparison": COMPARISON, "weight": 0, "chosen": "probe",
             "probe": {"cross_validation": CROSS_VALIDATION}},
            Accuracy("cross_validation", 90.0, 50),
        ),
        ({"top1": None, "comparison": None, "weight": 0.5, "chosen": "interpolated",
          "probe": {"cross_validation": CROSS_VALIDATION}}, None),
        ({"top1": None}, None),
    ],
)  # fmt: skip
def test_accuracy_on_the_most_independent_images(result: dict[str, Any], expected: Accuracy | None) -> None:
    assert final_accuracy(result) == expected


def test_result_line_has_intervals() -> None:
    result = {"method": "soc", "top1": 85.0, "top5": 100.0, "images": {"test": 60}}
    low, high = (f"{value:.1f}" for value in (wilson_interval(85.0, 60).low, wilson_interval(85.0, 60).high))
    line = result_line(result, Path("runs/a"))
    assert line.startswith(f"soc: test top-1 85.0 % (95 % interval {low} to {high}, 60 images), top-5 100.0 % (94.0 to")
    assert line.endswith("Run folder: runs/a")


def test_result_line_without_test_images() -> None:
    result = {"method": "probe", "top1": None, "top5": None, "chosen": "probe",
              "probe": {"cross_validation": CROSS_VALIDATION}}  # fmt: skip
    line = result_line(result, Path("runs/a"))
    assert line == "probe: cross-validation top-1 90.0 % (95 % interval 78.6 to 95.7, 50 images). Run folder: runs/a"
    assert "without images to measure accuracy" in result_line({"method": "moco"}, Path("runs/a"))


@pytest.mark.parametrize("images", [10, 60, 500])
def test_one_photo_more_is_not_progress(images: int) -> None:
    before, after = 60.0, 60.0 + 100 / images
    assert after - before < difference_margin(before, after, images)
    assert "within the 95 % margin of chance" in describe_difference(before, after, images)


def test_a_single_seed_in_a_table_has_its_interval() -> None:
    cell = Cell([{"top1": 50.0, "top5": 80.0, "images": {"test": 100}}], [], None, num_seeds=1)
    assert cell.text("top1") == "50.0 [40.4, 59.6]"


def test_demo_table_and_its_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [
        Run(write_run(tmp_path / method, method, top1=top1, images_per_class=10, result={"images": {"test": 60}}))
        for method, top1 in (("supervised", 60.0), ("soc", 61.7))
    ]
    _print_table(runs)
    printed = " ".join(capsys.readouterr().out.split())
    assert "95 % intervals of the accuracy on 60 test images" in printed
    (sentence,) = describe_comparisons(runs)
    assert "inconclusive" in sentence
    assert "±17.0" in sentence
