"""Run folders of all kinds, complete and damaged."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from semifine import UserError
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run
from tests.runs.fake_runs import make_groups, planted_counts, result_of, write_run


def test_a_complete_run(tmp_path: Path) -> None:
    groups = make_groups(2, 3)
    counts = planted_counts(groups)
    run = Run(write_run(tmp_path / "my run", groups=groups, transitions=counts, val=55.0, seed=3))
    assert (run.name, run.method, run.seed, run.data, run.num_classes) == ("my run", "soc", 3, "synthetic", 6)
    assert run.class_groups == tuple(groups)
    assert run.transitions is not None
    np.testing.assert_array_equal(run.transitions, counts)
    assert run.confusion is not None
    assert run.confusion.sum() == 60
    assert run.result == result_of(run.path)
    assert run.settings["method"] == {"name": "soc", "alpha": 5.0}
    assert run.environment["device"] == "a processor"
    assert set(run.series) == {
        "test_top1", "val_top1", "pseudo_label_accuracy", "candidates", "candidate_hit_rate", "accepted", "loss",
        "cluster_changes", "images_per_second", "data_wait", "step_seconds",
    }  # fmt: skip
    assert run.series["test_top1"].steps.tolist() == list(range(100, 1001, 100))
    assert run.series["test_top1"].values[-1] == pytest.approx(60.0)
    assert len(run.series["candidates"]) == 20


def test_a_supervised_run_without_test_images_truth_or_groups(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run", "supervised", top1=None, truth_known=False))
    assert run.transitions is None
    assert run.confusion is None
    assert run.class_groups is None
    assert set(run.series) == {"loss", "images_per_second", "data_wait", "step_seconds"}
    assert "pseudo_label_accuracy" not in run.unlabeled


def test_samples_are_read_by_column(tmp_path: Path) -> None:
    run = Run(write_run(tmp_path / "run"))
    samples = run.samples("truth", "confidence")
    assert list(samples) == ["truth", "confidence"]
    assert samples["truth"].tolist() == [0, 1, 2, 3]
    assert [row.tolist() for row in run.samples("candidates")["candidates"]] == [[0], [1, 2], [2], [0, 3]]
    assert set(run.samples()) == {"index", "truth", "confidence", "candidates"}
    with pytest.raises(ValueError, match=r"no column 'size'\. Valid ones: index, truth"):
        run.samples("size")
    (run.path / "samples.parquet").unlink()
    assert run.samples("truth") == {}


def test_numbers_that_are_not_finite_and_a_cut_line_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 1050, "candidates": NaN}\n{"kind": "train", "st')
    assert Run(path).series["candidates"].steps[-1] == 1000


def test_other_folders_unfinished_and_damaged_runs_are_user_errors(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="not a run folder"):
        Run(tmp_path)
    unfinished = write_run(tmp_path / "unfinished")
    (unfinished / "result.json").unlink()
    with pytest.raises(UserError, match="not finished"):
        Run(unfinished).check_finished()
    damaged = write_run(tmp_path / "damaged")
    (damaged / "classes.json").write_text('{"names": [')
    with pytest.raises(UserError, match=r"classes.json is damaged"):
        Run(damaged).check_finished()
    lost = write_run(tmp_path / "lost")
    (lost / "classes.json").unlink()
    with pytest.raises(UserError, match=r"classes.json cannot be read"):
        Run(lost).check_finished()
    mixed = write_run(tmp_path / "mixed", names=["a", "b"])
    (mixed / "classes.json").write_text('{"names": ["a", "b", "c"]}')
    with pytest.raises(UserError, match="3 classes"):
        Run(mixed).check_finished()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "many", [1]])
def test_shares_of_steps_that_are_no_numbers_name_the_settings(value: object, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", settings={"supervised_cooldown": value})
    with pytest.raises(UserError, match=r"settings\.yaml is damaged"):
        _ = Run(path).step_seconds


def test_damaged_tables_are_user_errors(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "samples.parquet").write_bytes(b"PAR1 no table")
    with pytest.raises(UserError, match=r"samples.parquet is damaged: "):
        Run(path).samples("truth")
    (path / "classes.safetensors").write_bytes(b"nothing")
    with pytest.raises(UserError, match=r"classes.safetensors is damaged"):
        Run(path).check_finished()


def test_a_run_without_class_facts_or_environment_still_reads(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run")
    (path / "classes.safetensors").unlink()
    (path / "environment.json").unlink()
    run = Run(path)
    assert run.confusion is None
    assert run.environment["kind"] == "cpu", "result.json holds a copy"


def test_a_step_costs_what_steps_with_unlabeled_images_cost(tmp_path: Path) -> None:
    """0.6 of 1000 steps see labeled images alone: lines up to step 600 do not count, nor does one across it."""
    path = write_run(tmp_path / "run", settings={"supervised_warmup": 0.6})
    metrics = path / "metrics.jsonl"
    metrics.unlink()
    folder = RunFolder(path)
    for step, seconds in ((300, 0.01), (550, 0.01), (700, 0.05), (800, 0.9), (900, 0.2), (1000, 0.2)):
        folder.append_metrics({"kind": "train", "step": step, "step_seconds": seconds})
    assert Run(path).step_seconds == pytest.approx(0.2), "the median: a single slow line does not count"
    metrics.unlink()
    metrics.touch()
    assert Run(path).step_seconds is None, "the mean of all steps would be of two kinds of them"
    assert Run(write_run(tmp_path / "other")).step_seconds == pytest.approx(0.1)
