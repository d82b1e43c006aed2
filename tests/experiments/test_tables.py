"""Tables of the paper: rows, published numbers and jobs."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from semifine.config import resolve, write_settings
from semifine.errors import UserError
from semifine.experiments.recipes import Conditions, read_shipped
from semifine.experiments.scheduler import State, mark_finished
from semifine.experiments.stages import plan_stages, stage_settings
from semifine.experiments.tables import choose_rows, fill_cells, plan_jobs, read_table, scale_to_classes, table_names
from semifine.files import write_json
from semifine.soft_labels import SoftLabelSelector
from tests.conftest import trained_methods

SMALL = Conditions("synthetic", profile="small", budget="tiny")


def test_the_tables_have_the_rows_of_the_paper() -> None:
    assert [len(read_table(name).rows) for name in table_names() if name != "beyond"] == [13, 16, 3, 13, 9]


def test_every_method_with_a_classifier_has_a_row() -> None:
    rows = [row for name in table_names() for row in read_table(name).rows]
    used = {stage.settings["method.name"] for row in rows for stage in plan_stages(row.recipe, SMALL)}
    assert used == set(trained_methods())


def test_the_table_beyond_has_runs_with_valid_settings_of_their_own(tmp_path: Path) -> None:
    jobs = plan_jobs(read_table("beyond"), {"scratch": SMALL}, 1, tmp_path, 40)
    last = [seed[-1] for by_seed in jobs.values() for seed in by_seed]
    assert len({job.folder.path for job in last}) == len(read_table("beyond").rows)
    for job in last:
        resolve([stage_settings(job.stage, job.column)])


@pytest.mark.parametrize("data", ["semi_aves", "semi_fungi"])
def test_published_numbers_match_the_rows(data: str) -> None:
    for name, by_init in read_shipped("published.yaml")[data].items():
        table = read_table(name)
        for init, numbers in by_init.items():
            assert init in table.inits
            assert set(numbers) == {row.title for row in table.rows}, (name, init)


def test_some_published_numbers() -> None:
    published = read_shipped("published.yaml")
    assert published["semi_aves"]["table1"]["scratch"]["MoCo + SoC"] == "39.3±0.2 / 62.4±0.4"
    assert published["semi_fungi"]["table2"]["scratch"]["alpha = 5 (SoC)"] == "39.4 / 62.5"
    assert published["semi_fungi"]["ood_experts"]["inat"]["SoC"] == "58.9±0.3 / 82.6±0.2"


def test_variants_scale_with_the_number_of_classes() -> None:
    assert scale_to_classes({"method.k": 50}, 40) == {"method.k": 10}
    assert scale_to_classes({"method.alpha": "finest"}, 40) == {"method.alpha": 40 / 38}
    assert scale_to_classes({"method.beta": "finest"}, 40) == {"method.beta": math.log(1.95)}
    assert scale_to_classes({"method.threshold": 0.8}, 40) == {"method.threshold": 0.8}


@pytest.mark.parametrize("num_classes", [3, 4, 5, 8, 9, 200])
def test_variants_of_soc_fit_any_number_of_classes(num_classes: int) -> None:
    for row in read_table("table2").rows:
        settings = scale_to_classes(row.settings, num_classes)
        options = {key.removeprefix("method."): value for key, value in settings.items()}
        if row.recipe == "soc":
            assert SoftLabelSelector(num_classes, 10, **options).k_max <= num_classes
        if num_classes == 200 and "finest" not in row.settings.values():
            assert settings == row.settings


def test_two_classes_have_no_finest_map() -> None:
    assert scale_to_classes({"method.alpha": "finest"}, 2) == {}
    assert scale_to_classes({"method.map": "exponential", "method.beta": "finest"}, 2) == {"method.map": "exponential"}
    assert scale_to_classes({"method.k": 25}, 2) == {"method.k": 2}


def test_rows_can_be_chosen_by_recipe_or_title() -> None:
    table = choose_rows(read_table("table1"), ["soc", "FixMatch"])
    assert [row.title for row in table.rows] == ["FixMatch", "SoC"]
    with pytest.raises(UserError, match="table1 has no row 'cnn'"):
        choose_rows(read_table("table1"), ["cnn"])


def test_cells_of_a_column_share_stages(tmp_path: Path) -> None:
    table = choose_rows(read_table("table1"), ["moco", "moco+soc"])
    jobs = plan_jobs(table, {"scratch": Conditions("synthetic", profile="small")}, 2, tmp_path, 40)
    folders = {job.folder.path for by_seed in jobs.values() for seed in by_seed for job in seed}
    assert len(folders) == 2 * 3, "moco, moco+supervised, moco+soc for each seed"


def test_variants_have_separate_folders(tmp_path: Path) -> None:
    jobs = plan_jobs(read_table("table2"), {"scratch": Conditions("synthetic", profile="small")}, 1, tmp_path, 40)
    folders = [seed[-1].folder.path for by_seed in jobs.values() for seed in by_seed]
    assert len(set(folders)) == 16
    assert all(folder.parent == tmp_path / "scratch-in" / "seed-0" for folder in folders)


def test_time_of_a_recipe_includes_all_stages(tmp_path: Path) -> None:
    table = choose_rows(read_table("table1"), ["self_training"])
    jobs = plan_jobs(table, {"scratch": Conditions("synthetic", profile="small")}, 2, tmp_path, 40)
    first, second = jobs["KD-Self-Training", "scratch"]
    facts = {"method": "supervised", "data": "synthetic", "seed": 0}
    for job, seconds in zip(first, (10, 15), strict=True):
        job.folder.path.mkdir(parents=True)
        write_settings(resolve([dict(stage_settings(job.stage, job.column))]), job.folder.settings)
        write_json(job.folder.result, {"top1": 50.0, "top5": 80.0, "seconds": seconds, **facts})
    mark_finished([*first, *second])
    cell = fill_cells(table, jobs, "synthetic")["KD-Self-Training", "scratch"]
    assert cell.seconds == [25]
    assert (cell.text("top1"), cell.text("top5"), cell.progress_note) == ("50.0", "80.0", " (1 of 2 seeds)")


def test_failure_has_seed_and_stage(tmp_path: Path) -> None:
    table = choose_rows(read_table("table1"), ["self_training"])
    jobs = plan_jobs(table, {"scratch": Conditions("synthetic", profile="small")}, 2, tmp_path, 40)
    teacher, student = jobs["KD-Self-Training", "scratch"][1]
    teacher.state, teacher.reason = State.FAILED, "the loss is not finite"
    student.state, student.reason = State.FAILED, "needs supervised, which failed"
    cell = fill_cells(table, jobs, "synthetic")["KD-Self-Training", "scratch"]
    assert cell.failures == ["seed 1 failed at supervised: the loss is not finite"]
