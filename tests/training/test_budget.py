"""A time budget becomes a number of steps and of cached views."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch

from semifine.config import RunSettings
from semifine.config.autotune import ema_decay_for
from semifine.data.sources import load_catalog
from semifine.errors import Interrupted, UserError
from semifine.models.classifier import create_classifier
from semifine.runs.run import Run
from semifine.training import budget
from semifine.training import fit as fit_module
from semifine.training.budget import VERSIONS, Plan, adopt_plan, plan_training
from semifine.training.fit import fit
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import tiny_settings, tiny_teacher

CPU = torch.device("cpu")
EVALUATED = 11 * (12 + 24) + 5 * 12 + 54
IN_TRIAL = 24 + 5 * 18 // 4 + 54


def settings_with_time(time: str, method: str = "soc", **more: object) -> RunSettings:
    return tiny_settings(method, time=time, iterations=100_000, train_stages=2, ema=0.999, **more)


def plan(
    settings: RunSettings, monkeypatch: pytest.MonkeyPatch, view: float = 0.01, step: float = 0.5, trainings: int = 1
) -> Plan | None:
    monkeypatch.setattr(budget, "_tail_seconds", lambda *_: (view, step))
    monkeypatch.setattr(budget, "_full_seconds", lambda *_: (0.03, step))
    catalog = load_catalog(settings.data, settings.data_settings)
    classifier = create_classifier("test_resnet", 6, 32)
    return plan_training(settings, catalog, classifier, CPU, used=20.0, trainings=trainings)


def test_steps_fill_the_rest_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """18 labeled and 54 unlabeled images: 6 * 18 + (2 + 3) * 54 views take 1.3 * 3.78 s; 580 s are left, less 3 %.

    There are 12 validation and 24 test images, which are evaluated eleven times.
    """
    found = plan(settings_with_time("10m"), monkeypatch)
    assert found is not None
    assert (found.labeled_versions, found.unlabeled_versions) == VERSIONS[0]
    assert found.steps == int((580 * 0.97 - EVALUATED * 0.03 - 1.3 * 378 * 0.01) / 0.5)
    twice = plan(settings_with_time("10m"), monkeypatch, trainings=2)
    assert twice is not None
    assert twice.steps == int((580 * 0.97 - (EVALUATED + IN_TRIAL) * 0.03 - 1.3 * 378 * 0.01) / 0.5 / 2)


def test_a_slow_machine_caches_fewer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(settings_with_time("10m"), monkeypatch, view=0.4)
    assert found is not None
    assert (found.labeled_versions, found.unlabeled_versions) == VERSIONS[1]


def test_many_test_images_are_evaluated_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """36 images take 3 * 0.22 s each, so two evaluations fit into a tenth of 562 s."""
    found = plan(settings_with_time("10m", evaluate_every=None, save_every=None), monkeypatch, view=0.22)
    assert found is not None
    assert found.evaluations == 2
    train = found.apply(settings_with_time("10m", evaluate_every=None, save_every=None)).train
    assert train.evaluate_every == -(-found.steps // 2)
    assert train.save_every == -(-found.steps // 10)
    given = found.apply(settings_with_time("10m", evaluate_every=7, save_every=5)).train
    assert (given.evaluate_every, given.save_every) == (7, 5)


def test_methods_without_unlabeled_views_cache_labeled_ones_only(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(settings_with_time("10m", "supervised"), monkeypatch)
    assert found is not None
    assert found.steps == int((580 * 0.97 - EVALUATED * 0.03 - 1.3 * 6 * 18 * 0.01) / 0.5)


def test_iterations_are_the_upper_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_with_time("10m")
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, iterations=50))
    found = plan(settings, monkeypatch)
    assert found is not None
    assert found.steps == 50


def test_too_short_a_budget_has_no_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plan(settings_with_time("30s"), monkeypatch, step=1.0) is None
    assert plan(settings_with_time("15s"), monkeypatch) is None, "more time is used than there is"


def test_the_average_follows_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_with_time("10m")
    found = plan(settings, monkeypatch)
    assert found is not None
    applied = found.apply(settings).train
    assert (applied.iterations, applied.ema) == (found.steps, ema_decay_for(found.steps))
    for ema in (0.97, 0.0):
        given = dataclasses.replace(settings, train=dataclasses.replace(settings.train, ema=ema))
        assert found.apply(given).train.ema == ema, "it does not follow from the steps, so it was chosen"
    assert found.apply(settings_with_time("10m", "simmatch")).train.ema == 0.999, "the average is part of the method"


def test_the_plan_is_one_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    found = plan(settings_with_time("10m"), monkeypatch, trainings=2)
    assert found is not None
    assert found.note == (
        "training: 539 steps of 4 labeled and 8 unlabeled photos, twice, about 9 min; the first time without a quarter "
        "of the labels, to measure whether training beats the probe"
    )
    settings = settings_with_time("10m", "supervised")
    settings = dataclasses.replace(settings, train=dataclasses.replace(settings.train, iterations=50))
    found = plan(settings, monkeypatch)
    assert found is not None
    assert found.note == (
        "training: 50 steps of 4 labeled photos, about 26 s; the time would allow more; --iterations sets more steps"
    )


def test_a_resumed_run_keeps_its_plan(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_with_time("10m")
    found = plan(settings, monkeypatch)
    assert found is not None
    planned = found.apply(settings)
    assert adopt_plan(settings, planned.train) == planned


def test_measured_times_are_positive() -> None:
    settings = settings_with_time("10m")
    view, step = budget._tail_seconds(settings, create_classifier("test_resnet", 6, 32), CPU)
    assert view > 0
    assert step > 0
    whole = dataclasses.replace(settings, train=dataclasses.replace(settings.train, train_stages=None))
    assert min(budget._full_seconds(whole, create_classifier("test_resnet", 6, 32), CPU)) > 0


def test_without_time_for_training_the_probe_is_the_result(tmp_path: Path) -> None:
    probe = {"weights": tiny_teacher(), "weights_head": "fresh", "probe": True}
    result = fit(settings_with_time("0.01s", **probe), tmp_path / "run", display=Display(quiet=True))
    assert result["chosen"] == "probe"
    assert (tmp_path / "run" / "result.json").is_file()
    with pytest.raises(UserError, match=r"--time 0\.01s is too short for a training; allow more time"):
        fit(settings_with_time("0.01s"), tmp_path / "no-probe", display=Display(quiet=True))


@pytest.mark.usefixtures("quick_probe")
@pytest.mark.parametrize("stops_in", ["trial", "run"])
def test_a_run_that_is_stopped_keeps_its_plan(stops_in: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second plan would have fewer steps than the checkpoint of the trial, or another budget."""
    probe = {"weights": tiny_teacher(), "weights_head": "fresh", "probe": True, "data__val_per_class": 0}
    settings = settings_with_time("10m", data__labeled_per_class=8, lr=1e-3, **probe)
    monkeypatch.setattr(fit_module, "plan_training", lambda *_, **__: Plan(6, 1, 2, 2, "a plan"))
    run = Trainer.run

    def stop_after_five_steps(trainer: Trainer, *_: object) -> None:
        if trainer.folder.path.name == stops_in:
            run(trainer, None, lambda: os.kill(os.getpid(), signal.SIGINT) if trainer.step == 5 else None)
        run(trainer, None, None)

    monkeypatch.setattr(Trainer, "run", stop_after_five_steps)
    out = tmp_path / "run"
    with pytest.raises(Interrupted):
        fit(settings, out, display=Display(quiet=True))
    assert Run(out).find_checkpoint() == "probe"
    monkeypatch.setattr(Trainer, "run", run)
    monkeypatch.setattr(fit_module, "plan_training", lambda *_, **__: pytest.fail("the run has a plan"))
    result = fit(settings, out, resume=True, display=Display(quiet=True))
    assert result["iterations"] == 6
    assert Run(out / "trial").result["iterations"] == 6
    assert Run(out).train_settings.labeled_versions == 2
