"""The structured log of a run folder."""

from __future__ import annotations

import json
import logging
import warnings
from datetime import datetime
from pathlib import Path

import pytest

from semifine.errors import UserError
from semifine.training.fit import fit
from semifine.training.progress import Display, record_log
from tests.conftest import tiny_settings


def lines(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_run_logs_what_it_says_even_when_quiet_and_adds_to_it(tmp_path: Path) -> None:
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


def test_warnings_and_the_reason_of_the_end_are_logged(tmp_path: Path) -> None:
    def complain() -> None:
        with record_log(tmp_path / "log.jsonl", Display(quiet=True), process=1):
            warnings.warn("this is odd", stacklevel=1)
            logging.getLogger("some.library").warning("so is %s", "that")
            raise UserError("The cause.")

    with pytest.warns(UserWarning, match="this is odd"), pytest.raises(UserError):
        complain()
    logged = lines(tmp_path / "log.jsonl")
    assert [line["kind"] for line in logged] == ["start", "warning", "warning", "error"]
    assert [line["text"] for line in logged[1:]] == ["UserWarning: this is odd", "so is that", "The cause."]


def test_a_line_that_was_cut_short_spoils_no_other(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"time": "20')
    with record_log(path, Display(quiet=True), process=0):
        pass
    cut, *whole = path.read_text().splitlines()
    assert cut == '{"time": "20'
    assert [json.loads(line)["kind"] for line in whole] == ["start", "end"]


def test_a_mistake_before_the_run_is_logged_and_the_folder_can_be_used_again(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.raises(UserError, match="no weights file"):
        fit(tiny_settings(iterations=1, weights=str(tmp_path / "none.pth")), out, display=Display(quiet=True))
    assert "no weights file" in lines(out / "log.jsonl")[-1]["text"]
    assert fit(tiny_settings(iterations=1), out, display=Display(quiet=True))["iterations"] == 1
