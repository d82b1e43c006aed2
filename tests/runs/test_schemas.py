"""JSON files of a run folder that are damaged or made to harm give one sentence that names the file."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from semifine import files
from semifine.errors import UserError
from semifine.report import write_page
from semifine.runs.run import Run

from .fake_runs import write_run

DEEP = "[" * 100_000


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("result.json", '{"top1": ' + DEEP, "result.json is damaged: maximum recursion depth exceeded"),
        ("result.json", '{"top1": ' + "9" * 5000 + "}", "result.json is damaged: Exceeds the limit"),
        ("classes.json", '{"names": ["a", 3, "c"]}', r"classes.json is damaged: names\[1\] must be text, not 3"),
        ("classes.json", '{"names": ["\\ud800"]}', "classes.json is damaged: 'utf-8' codec can't encode"),
        ("classes.json", b'{"names": ["\xff"]}', "classes.json is damaged: 'utf-8' codec can't decode"),
        ("data.json", '{"splits": 3}', "data.json is damaged: splits must be an object, not 3"),
        ("environment.json", "[]", "environment.json is damaged: it does not contain a JSON object"),
        ("metrics.jsonl", f"{DEEP}\n{{}}\n", "metrics.jsonl is damaged: line 1 is not a record"),
        ("metrics.jsonl", '{"step": 1e400}\n{}\n', "metrics.jsonl is damaged: line 1 is not a record"),
        ("metrics.jsonl", '{"step": 3, "loss": "x"}\n', "metrics.jsonl is damaged: line 1.loss must be a number"),
    ],
)
def test_a_damaged_file(name: str, content: str | bytes, message: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=message) as caught:
        Run(run).check_finished()
    assert len(str(caught.value)) < 400 + len(str(run))


@pytest.mark.parametrize(
    ("key", "value"),
    [("top1", "71"), ("top1", [71.0]), ("seed", 2**70), ("seed", None), ("unlabeled", [1]), ("images", {"test": "x"})],
)
def test_a_wrong_type_in_the_result(key: str, value: object, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    (run / "result.json").write_text(json.dumps(result | {key: value}))
    with pytest.raises(UserError, match=f"result.json is damaged: .*{key}"):
        Run(run).check_finished()


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    result = json.loads((run / "result.json").read_text())
    del result["unlabeled"]["pseudo_label_accuracy"]
    (run / "result.json").write_text(json.dumps(result))
    with pytest.raises(UserError, match=r"result.json is damaged: the key 'pseudo_label_accuracy' is missing"):
        write_page([run], tmp_path / "report.html")


@pytest.mark.parametrize("item", [{"path": "a.jpg"}, {"path": "a", "split": "b", "kind": "x", "reason": "c"}])
def test_wrong_items_that_are_left_out(item: dict[str, str], tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "data.json").write_text(json.dumps({"left_out": [item]}))
    with pytest.raises(UserError, match=r"data.json is damaged: "):
        write_page([run], tmp_path / "report.html")


@pytest.mark.parametrize("name", ["result.json", "classes.json", "metrics.jsonl"])
def test_a_huge_file_is_not_read(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with (run / name).open("r+b") as file:
        file.truncate(40 << 30)  # takes no space on the disk
    with pytest.raises(UserError, match=rf"{name} is damaged: it is larger than \d+ MB"):
        Run(run).check_finished()


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "classes.json").unlink()
    os.mkfifo(run / "classes.json")
    with pytest.raises(UserError, match=r"classes.json is damaged: it is not a regular file"):
        Run(run).check_finished()


def test_exhausted_memory_names_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def exhaust(*_: object) -> str:
        raise MemoryError

    monkeypatch.setattr(files, "read_text", exhaust)
    with pytest.raises(UserError, match=r"Out of host memory: .*classes.json is too large to be read here"):
        files.read_json(tmp_path / "classes.json")
