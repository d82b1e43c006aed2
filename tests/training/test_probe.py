"""The probe leaves a complete run folder before the first step, and training starts from it."""

from __future__ import annotations

import copy
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from semifine.cli.main import main
from semifine.config import RunSettings
from semifine.data.catalog import Split
from semifine.errors import Interrupted, UserError
from semifine.inference.evaluate import Evaluator, create_preprocessor
from semifine.inference.model import TrainedModel
from semifine.models.classifier import Classifier
from semifine.runs.folder import RunFolder
from semifine.runs.run import Run
from semifine.training.fit import fit
from semifine.training.probe import RunProbeFitter
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import open_dataset, tiny_settings, tiny_teacher

QUIET = Display(quiet=True)


def settings_with_probe(method: str = "soc", **more: object) -> RunSettings:
    return tiny_settings(method, weights=tiny_teacher(), weights_head="fresh", probe=True, **more)


@pytest.fixture(scope="module")
def probe_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "probe"
    fit(settings_with_probe("probe"), out, display=QUIET)
    return out


@pytest.fixture
def stopped_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is stopped before its first step."""

    def stop(*_: object) -> None:
        raise Interrupted(15)

    monkeypatch.setattr(Trainer, "run", stop)
    with pytest.raises(Interrupted):
        fit(settings_with_probe(), tmp_path / "run", display=QUIET)
    monkeypatch.undo()
    return tmp_path / "run"


@pytest.fixture
def early_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run that is stopped when only the labeled images have been used."""

    def stop(*_: object) -> None:
        raise Interrupted(15)

    monkeypatch.setattr(RunProbeFitter, "fit", stop)
    with pytest.raises(Interrupted):
        fit(settings_with_probe(), tmp_path / "run", display=QUIET)
    monkeypatch.undo()
    return tmp_path / "run"


def test_early_probe_needs_no_features_of_unlabeled_images(early_run: Path, probe_run: Path) -> None:
    early, final = (json.loads((run / "probe.json").read_text()) for run in (early_run, probe_run))
    assert not (early_run / "samples.parquet").exists()
    assert not early["probe"]["self_trained"]
    assert early["probe"]["cross_validation"]["images"] == final["probe"]["cross_validation"]["images"]


def test_method_probe_takes_no_steps(probe_run: Path) -> None:
    result = json.loads((probe_run / "result.json").read_text())
    assert result["chosen"] == "probe"
    assert result["iterations"] == 0
    assert result["top1"] == result["probe"]["top1"]
    found = result["probe"]["cross_validation"]
    assert 0 <= found["low"] <= found["top1"] <= found["high"] <= 100
    assert found["images"] == 6 * (3 + 2), "labeled and validation images"


@pytest.mark.parametrize("folder", ["probe_run", "stopped_run", "early_run"])
def test_commands_work_before_training_has_finished(
    folder: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = request.getfixturevalue(folder)
    assert main(["evaluate", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["images"] == 24
    assert main(["report", str(run), "--out", str(tmp_path / "report.html")]) == 0
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert main(["export", str(run), "--out", str(tmp_path / "model.pt2")]) == 0


def test_head_equals_the_probe_and_the_backbone_stays(probe_run: Path) -> None:
    weights = load_file(probe_run / "checkpoints" / "probe" / "model.safetensors")
    pretrained = load_file(tiny_teacher())
    for name, value in pretrained.items():
        if name.startswith("backbone."):
            assert torch.equal(weights[name], value), name
    assert not torch.equal(weights["head.weight"], pretrained["head.weight"])


def test_calibration_is_cross_fitted(probe_run: Path) -> None:
    """Thirty labels, of which the twelve of the validation split would not suffice."""
    model = TrainedModel(probe_run, device="cpu")
    assert model.checkpoint == "probe"
    assert model.calibration.images == 30
    sets = model.calibration.conformal_set(np.full((1, 6), 1 / 6), 0.9)
    assert sets is not None


def test_labels_are_compared_with_the_cross_validation(probe_run: Path) -> None:
    run = Run(probe_run)
    check, found = run.label_check, run.result["probe"]
    assert check is not None
    catalog = run.catalog
    rows = np.concatenate([catalog.rows(Split.LABELED), catalog.rows(Split.VAL)])
    label_of = {str(catalog.paths[row]): int(catalog.label[row]) for row in rows}
    assert dict(zip(check.paths, check.label.tolist(), strict=True)) == label_of
    assert check.num_suspects == found["suspect_labels"]
    correct = np.trace(check.confusion(6))
    assert 100 * correct / 30 == pytest.approx(found["cross_validation"]["top1"])


def test_hidden_labels_do_not_affect_the_probe(probe_run: Path, tmp_path: Path) -> None:
    settings = settings_with_probe("probe")
    dataset = open_dataset(settings)
    truth = dataset.catalog.truth.copy()
    hidden = dataset.catalog.rows(Split.UNLABELED)
    truth[hidden] = (truth[hidden] + 1) % 6
    dataset.catalog = dataclasses.replace(dataset.catalog, truth=truth)  # type: ignore[misc]
    fit(settings, tmp_path / "poisoned", dataset=dataset, display=QUIET)
    clean, poisoned = (
        load_file(run / "checkpoints" / "probe" / "model.safetensors") for run in (probe_run, tmp_path / "poisoned")
    )
    assert all(torch.equal(clean[name], poisoned[name]) for name in clean)


def test_training_starts_from_a_head_without_validation_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wrong validation labels change the probe, but not the head with which training starts."""
    heads = []
    for shift in (0, 1):
        settings = settings_with_probe()
        dataset = open_dataset(settings)
        label = dataset.catalog.label.copy()
        rows = dataset.catalog.rows(Split.VAL)
        label[rows] = (label[rows] + shift) % 6
        dataset.catalog = dataclasses.replace(
            dataset.catalog, label=label, truth=np.where(label < 0, dataset.catalog.truth, label)
        )  # type: ignore[misc]

        def record(trainer: Trainer, *_: object) -> None:
            heads.append(trainer.train_state.student.head.weight.detach().clone())
            raise Interrupted(15)

        monkeypatch.setattr(Trainer, "run", record)
        with pytest.raises(Interrupted):
            fit(settings, tmp_path / str(shift), dataset=dataset, display=QUIET)
    probes = [load_file(tmp_path / str(i) / "checkpoints" / "probe" / "model.safetensors") for i in (0, 1)]
    assert not torch.equal(probes[0]["head.weight"], probes[1]["head.weight"])
    torch.testing.assert_close(heads[0], heads[1], rtol=0.05, atol=0.02)


def test_head_init_decides_whether_training_starts_from_the_probe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads: dict[str, torch.Tensor] = {}
    for head in ("probe", "random"):

        def record(trainer: Trainer, *_: object, name: str = head) -> None:
            heads[name] = trainer.train_state.student.head.weight.detach().clone()
            raise Interrupted(15)

        monkeypatch.setattr(Trainer, "run", record)
        with pytest.raises(Interrupted):
            fit(settings_with_probe(head_init=head), tmp_path / head, display=QUIET)
    probe = load_file(tmp_path / "random" / "checkpoints" / "probe" / "model.safetensors")["head.weight"]
    assert torch.corrcoef(torch.stack([heads["probe"].flatten(), probe.flatten()]))[0, 1] > 0.5
    assert not torch.equal(heads["random"], heads["probe"])
    assert heads["random"].abs().max() < probe.shape[1] ** -0.5, "the initialization of PyTorch"


def test_features_of_another_normalization_are_not_reused(tmp_path: Path) -> None:
    found = []
    for mean in (None, "0.1,0.2,0.3"):
        fit(settings_with_probe("probe", cache=str(tmp_path / "cache"), mean=mean), tmp_path / f"{mean}", display=QUIET)
        found.append(len(list((tmp_path / "cache").glob("features-*"))))
    assert found == [2, 4]


def finished(tmp_path: Path, **more: object) -> dict[str, Any]:
    return fit(settings_with_probe(**more), tmp_path / "run", display=QUIET)


def test_the_better_one_on_validation_images_is_the_result(tmp_path: Path) -> None:
    """A learning rate that destroys the network makes the probe the result."""
    result = finished(tmp_path, lr=50.0, on_nonfinite="skip", iterations=6)
    run = Run(tmp_path / "run")
    loss = result["comparison"]["loss"]
    assert loss[0] < min(loss[1:]), "the test needs a training that fails"
    assert result["chosen"] == "probe"
    assert run.find_checkpoint() == "probe"
    assert result["top1"] == result["probe"]["top1"]
    assert TrainedModel(run, device="cpu").evaluate()["top1"] == pytest.approx(result["top1"])


def test_stopped_run_resumes_and_finishes(stopped_run: Path, tmp_path: Path) -> None:
    assert Run(stopped_run).find_checkpoint() == "probe"
    result = fit(settings_with_probe(), stopped_run, resume=True, display=QUIET)
    whole = fit(settings_with_probe(), tmp_path / "whole", display=QUIET)
    assert result["iterations"] == 12
    assert result["trained"] == whole["trained"]
    first, second = (
        load_file(run / "checkpoints" / "last" / "model.safetensors") for run in (stopped_run, tmp_path / "whole")
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_unfinished_run_without_a_probe_has_no_result(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no result\.json yet"):
        RunFolder(tmp_path).read_result()


def test_probe_needs_pretrained_weights(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="add --pretrained"):
        fit(tiny_settings("probe"), tmp_path / "run", display=QUIET)


def test_new_classes_are_added_to_a_trained_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training starts with the old rows of known classes, and with fitted rows of new ones that find their images."""
    old = tmp_path / "old"
    fit(tiny_settings("supervised", data__genera=2, iterations=4, backbone="test_resnet"), old, display=QUIET)
    known = Run(old).class_names
    settings = tiny_settings(weights=str(old), probe=True)
    starts: list[Classifier] = []

    def record(trainer: Trainer, *_: object) -> None:
        starts.append(copy.deepcopy(trainer.train_state.student))
        raise Interrupted(15)

    monkeypatch.setattr(Trainer, "run", record)
    with pytest.raises(Interrupted):
        fit(settings, tmp_path / "new", display=QUIET)
    names = Run(tmp_path / "new").class_names
    assert len(known) < len(names)
    weights = load_file(old / "checkpoints" / "last" / "model.safetensors")
    head = starts[0].head.state_dict()
    for row, name in enumerate(names):
        if name in known:
            assert torch.equal(head["weight"][row], weights["head.weight"][known.index(name)])
    is_new = torch.tensor([name not in known for name in names])
    assert head["weight"][is_new].abs().sum() > 0
    report = json.loads((tmp_path / "new" / "weights.json").read_text())
    assert report["new_classes"] == [name for name in names if name not in known]
    dataset = open_dataset(settings)
    rows = dataset.catalog.rows(Split.LABELED)
    evaluator = Evaluator(dataset.store, create_preprocessor(32, 48, torch.device("cpu")), torch.device("cpu"))
    logits = torch.cat([output.logits for output in evaluator.outputs(starts[0].eval(), rows)])
    label = torch.from_numpy(dataset.catalog.label[rows])
    of_new = is_new[label]
    assert (logits.argmax(dim=1) == label)[of_new].float().mean() > 0.6
