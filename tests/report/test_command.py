"""The output file of ``semifine report``."""

from __future__ import annotations

from pathlib import Path

import pytest

from semifine.cli.main import main
from semifine.report import write_page
from tests.runs.fake_runs import write_run


def test_report_of_several_runs_is_written_to_their_parent_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (write_run(tmp_path / "runs" / name, "supervised", top1=None) for name in ("a", "b"))
    alone = write_page([first], first / "report.html", "About the first alone")
    monkeypatch.chdir(second)
    assert main(["report", "../a", "."]) == 0
    assert "About the first alone" in alone.read_text(encoding="utf-8"), "which stays"
    assert "Supervised (b)" in (tmp_path / "runs" / "report.html").read_text(encoding="utf-8")
    assert main(["report", "."]) == 0
    assert (second / "report.html").is_file()


def test_runs_in_different_folders_need_an_output_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / folder / "run", "supervised", top1=None)) for folder in ("a", "b")]
    assert main(["report", *runs]) == 2
    assert "give the file of the report with --out" in capsys.readouterr().err
    assert not list(tmp_path.rglob("*.html"))
    assert main(["report", *runs, "--out", str(tmp_path / "page.html")]) == 0


def test_files_of_others_are_not_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(write_run(tmp_path / name, "supervised", top1=None)) for name in ("a", "b")]
    (tmp_path / "report.html").write_text("Dear Ada")
    assert main(["report", *runs]) == 2
    assert "is not a report of semifine" in capsys.readouterr().err
    assert (tmp_path / "report.html").read_text() == "Dear Ada"
