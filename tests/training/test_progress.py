"""Warnings, the dashboard, and the log of a run."""

from __future__ import annotations

import io
import json
import logging
import warnings
from datetime import datetime
from pathlib import Path

import pytest
from rich.console import Console

from semifine.errors import UserError
from semifine.training.fit import fit
from semifine.training.progress import Dashboard, Display, find_warnings, record_log, sparkline
from tests.conftest import tiny_settings


def shown(display: Display) -> io.StringIO:
    """Redirects the display to a terminal of 100 columns and returns its text."""
    text = io.StringIO()
    display.console = Console(file=text, width=100, force_terminal=True, color_system=None)
    return text


def test_sparkline_spans_lowest_to_highest() -> None:
    assert sparkline([0, 1, 2, 3, 4, 5, 6, 7]) == "▁▂▃▄▅▆▇█"
    assert sparkline([3, 3]) == "▁▁"
    assert sparkline([]) == ""
    assert sparkline([1.0, float("nan"), 2.0]) == "▁?█"
    assert sparkline(list(range(1000)), width=4) == "▁▃▆█"


def test_dashboard_shows_progress_metrics_and_warnings() -> None:
    display = Display()
    text = shown(display)
    with display.training(total=100, done=10):
        numbers = {"loss": 2.5, "images_per_second": 10.0, "accepted": 0.25, "pseudo_label_accuracy": 33.3}
        display.log_metrics(50, numbers, ["the disk is on fire."])
        display.log_evaluation({"step": 50, "test_top1": 41.5, "test_top5": 80.0}, total=100, images={"test": 200})
    parts = (
        "50/100",
        "loss",
        "2.500",
        "41.5 % (34.9 to 48.4)",
        "33.3 %",
        "25%",
        "! the disk is on fire.",
        "step     50/100",
    )
    for part in parts:
        assert part in text.getvalue(), part
    text.truncate(0)
    display.log_metrics(60, numbers, [])
    assert text.getvalue() == "", "no dashboard after training"


def test_warning_on_the_dashboard_is_logged_once() -> None:
    display, recorded = Display(), list[str]()
    text = shown(display)
    with display.tee(recorded.append), display.training(total=10, done=0):
        for step in (1, 2):
            display.log_metrics(step, {"loss": 1.0}, ["predictions collapse: about 1 of 6."])
    assert recorded == ["warning, step 1: predictions collapse: about 1 of 6."]
    assert "warning, step" not in text.getvalue(), "the dashboard shows the warning"


def test_warning_disappears_with_its_cause() -> None:
    dashboard = Dashboard(total=10, done=0)
    console = Console(width=80)
    dashboard.set_warnings(["no label is accepted."])
    with console.capture() as before:
        console.print(dashboard)
    dashboard.set_warnings([])
    with console.capture() as after:
        console.print(dashboard)
    assert "no label is accepted" in before.get()
    assert "no label" not in after.get()


def test_each_warning_is_printed_once_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display()
    with display.training(total=10, done=0):
        for step in (1, 2, 3):
            warnings = [f"{50 + step} % of the time is spent on making batches.", "predictions collapse: about 1 of 6."]
            display.log_metrics(step, {"loss": 1.0, "images_per_second": 1.0}, warnings)
    assert capsys.readouterr().err.splitlines() == [
        "warning, step 1: 51 % of the time is spent on making batches.",
        "warning, step 1: predictions collapse: about 1 of 6.",
    ]


WELL = {"loss": 1.0, "accepted": 0.5, "predicted_classes": 90.0, "data_wait": 0.1}


@pytest.mark.parametrize(
    ("numbers", "skipped", "expected"),
    [
        ({}, 0, []),
        ({"predicted_classes": 3.2}, 0, ["predictions collapse: only about 3 of 100 classes"]),
        ({"accepted": 0.0}, 0, ["no pseudo-label passes the threshold"]),
        ({}, 2, ["the loss was not finite in 2 steps"]),
        ({"data_wait": 0.8}, 0, ["80 % of the time is spent on making batches"]),
        ({"accepted": 0.0, "predicted_classes": 1.0}, 0, ["predictions collapse", "no pseudo-label"]),
    ],
)
def test_warnings_name_the_problem(numbers: dict[str, float], skipped: int, expected: list[str]) -> None:
    found = find_warnings(500, 1000, 100, {**WELL, **numbers}, skipped)
    assert len(found) == len(expected)
    assert all(sentence.startswith(start) for sentence, start in zip(found, expected, strict=True))


def test_no_warnings_early_in_a_run() -> None:
    ill = {**WELL, "predicted_classes": 1.0, "accepted": 0.0}
    assert find_warnings(50, 1000, 100, ill, skipped=0) == []
    assert len(find_warnings(100, 1000, 100, ill, skipped=0)) == 2


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_log_contains_messages_even_if_quiet_and_is_appended_on_resume(tmp_path: Path) -> None:
    out = tmp_path / "run"
    fit(tiny_settings(iterations=4), out, display=Display(quiet=True))
    first = lines(out / "log.jsonl")
    assert [first[0]["kind"], first[-1]["kind"]] == ["start", "end"]
    assert any(line["kind"] == "message" and "from step 0 of 4" in line["text"] for line in first)
    times = [datetime.fromisoformat(line["time"]) for line in first]
    assert times == sorted(times)
    (out / "result.json").unlink()
    fit(tiny_settings(iterations=4), out, resume=True, display=Display(quiet=True))
    second = lines(out / "log.jsonl")
    assert second[: len(first)] == first
    assert any("from step 4 of 4" in line["text"] for line in second[len(first) :])


def test_warnings_and_the_final_error_are_logged(tmp_path: Path) -> None:
    def complain() -> None:
        with record_log(tmp_path / "log.jsonl", Display(quiet=True), rank=1):
            warnings.warn("this is odd", stacklevel=1)
            logging.getLogger("some.library").warning("so is %s", "that")
            raise UserError("The cause.")

    with pytest.warns(UserWarning, match="this is odd"), pytest.raises(UserError):
        complain()
    logged = lines(tmp_path / "log.jsonl")
    assert [line["kind"] for line in logged] == ["start", "warning", "warning", "error"]
    assert [line["text"] for line in logged[1:]] == ["UserWarning: this is odd", "so is that", "The cause."]


def test_incomplete_line_does_not_damage_later_lines(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"time": "20')
    with record_log(path, Display(quiet=True), rank=0):
        pass
    cut, *whole = path.read_text().splitlines()
    assert cut == '{"time": "20'
    assert [json.loads(line)["kind"] for line in whole] == ["start", "end"]


def test_error_before_training_is_logged_and_the_folder_stays_usable(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match="does not exist: check the path"):
        fit(tiny_settings(iterations=1, weights=str(tmp_path / "none.pth")), out, display=Display(quiet=True))
    assert "does not exist: check the path" in lines(out / "log.jsonl")[-1]["text"]
    assert fit(tiny_settings(iterations=1), out, display=Display(quiet=True))["iterations"] == 1
