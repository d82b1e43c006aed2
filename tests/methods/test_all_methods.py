"""Properties that every method must have. New files in methods/ are tested automatically."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from semifine.augment.pipeline import AugmentPipeline
from semifine.data import sources
from semifine.data.catalog import Catalog, Split
from semifine.data.sources import load_catalog
from semifine.errors import Interrupted, UserError
from semifine.methods import method_class
from semifine.methods.base import Batch, Progress
from semifine.runs.folder import RunFolder
from semifine.training.fit import fit
from semifine.training.loader import LABELED, UNLABELED, BatchLoader
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import tiny_settings, trained_methods
from tests.methods.one_step import SingleImageNetwork, make_batch, make_method, make_networks

WITH_CLASSIFIER = [name for name in trained_methods() if method_class(name).trains_classifier]
SEMI_SUPERVISED = [name for name in WITH_CLASSIFIER if method_class(name).unlabeled_views]
OTHER_STATE: list[tuple[str, dict[str, object]]] = [
    ("soc", {"method__similarity": "labeled_features"}),
    ("soc", {"method__similarity": "pseudo_features"}),
    ("simmatch", {"method__first_epoch": "unlabeled", "method__blank_labels": True}),
    ("moco", {"method__version": "v1"}),
    ("soc", {"method__align": 0.5, "method__align_to": "em", "method__adjust_unlabeled": 0.5}),
    ("vote", {"method__candidates": True}),
    ("fixmatch", {"supervised_cooldown": 0.5, "method__adjust_unlabeled": 0.5}),
]
OWN_LABELED_LOSS = {"abc"}
"""Methods whose loss of labeled images differs from the supervised one also without the unlabeled loss."""
WITHOUT_HIDDEN_LABELS = [name for name in trained_methods() if not method_class(name).trains_on_truth]


def run(settings: Any, out: Path, *, resume: bool = False) -> dict[str, Any]:
    return fit(settings, out, resume=resume, display=Display(quiet=True))


def final_weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def final_student(out: Path) -> dict[str, Tensor]:
    """Returns the weights of the student without the additional heads of some methods."""
    weights = training_state(out).get("student", final_weights(out))
    return {name: value for name, value in weights.items() if not name.startswith("heads.")}


def training_state(out: Path) -> dict[str, Any]:
    return dict(torch.load(out / "checkpoints" / "last" / "training.pt", weights_only=True))


def zero_weights(name: str) -> dict[str, object]:
    """Returns settings that set the weights of all unlabeled losses to 0."""
    return {setting.name: 0.0 for setting in fields(method_class(name).Settings) if setting.name.startswith("weight")}


def zero_threshold(name: str) -> dict[str, object]:
    """Returns settings that accept every pseudo-label. With the defaults, a short run accepts few."""
    return {setting.name: 0.0 for setting in fields(method_class(name).Settings) if setting.name == "threshold"}


def without_mixup(name: str) -> dict[str, object]:
    """Returns settings without a method's own mixup, whose targets keep the labeled loss high."""
    return {setting.name: 0.0 for setting in fields(method_class(name).Settings) if setting.name == "mixup"}


def run_settings(settings: dict[str, object]) -> dict[str, object]:
    """Returns settings of a method as keyword arguments of ``tiny_settings``."""
    return {f"method__{key}": value for key, value in settings.items()}


def logged_values(out: Path, key: str) -> list[float]:
    """Returns the values of a logged_values metric."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record[key] for record in records if record["kind"] == "train" and key in record]


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", trained_methods())
def test_training_writes_the_run_folder(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name), tmp_path / "run")
    assert result["method"] == name
    assert result["seed"] == 0
    assert result["environment"]["torch"] == torch.__version__
    for file in ("settings.yaml", "metrics.jsonl", "result.json", "classes.json"):
        assert (tmp_path / "run" / file).is_file()


@pytest.mark.parametrize("name", WITH_CLASSIFIER)
def test_result_and_sample_statistics_are_written(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, iterations=4), tmp_path / "run")
    assert 0 <= result["top1"] <= result["top5"] <= 100
    assert (tmp_path / "run" / "classes.safetensors").is_file()
    samples = pq.read_table(tmp_path / "run" / "samples.parquet")
    assert samples.num_rows == 6 * 9
    assert set(samples.column("z_obj2").to_pylist()) <= set(range(1, 7))


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in trained_methods()), *OTHER_STATE])
def test_resume_within_an_epoch_is_bit_identical(
    name: str, more: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N steps, a resume and N more steps equal 2N steps. The interruption is between two checkpoints and two epochs."""
    settings = tiny_settings(name, **more)
    run(settings, tmp_path / "whole")

    save = Trainer.save

    def stop_after_first_save(trainer: Trainer) -> None:
        save(trainer)
        raise Interrupted(15)

    monkeypatch.setattr(Trainer, "save", stop_after_first_save)
    for _ in range(2):
        with pytest.raises(Interrupted):
            run(settings, tmp_path / "parts", resume=True)
    monkeypatch.undo()
    run(settings, tmp_path / "parts", resume=True)

    assert_same(final_weights(tmp_path / "parts"), final_weights(tmp_path / "whole"))
    whole, parts = training_state(tmp_path / "whole"), training_state(tmp_path / "parts")
    assert parts.keys() == whole.keys()
    assert {"student", "ema"} & whole.keys(), "the checkpoint must contain the network that is not evaluated"
    for key in set(whole) - {"seconds"}:
        assert_same(parts[key], whole[key])


@pytest.mark.parametrize("name", WITHOUT_HIDDEN_LABELS)
def test_hidden_labels_do_not_affect_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random hidden labels do not change any weight, bit for bit."""
    run(tiny_settings(name), tmp_path / "true")
    load_original = sources.load_catalog

    def with_random_labels(*arguments: Any) -> Catalog:
        catalog = load_original(*arguments)
        assert (catalog.label[catalog.rows(Split.UNLABELED)] == -1).all()
        random = np.random.default_rng(1).integers(0, catalog.num_classes, len(catalog))
        return replace(catalog, truth=np.where(catalog.split == Split.UNLABELED, random, catalog.truth))

    monkeypatch.setattr(sources, "load_catalog", with_random_labels)
    run(tiny_settings(name), tmp_path / "random")
    assert_same(final_weights(tmp_path / "random"), final_weights(tmp_path / "true"))
    assert_same(training_state(tmp_path / "random")["method"], training_state(tmp_path / "true")["method"])
    if name not in WITH_CLASSIFIER:
        return
    accuracies = [
        np.mean(pq.read_table(tmp_path / which / "samples.parquet").column("truth").to_numpy())
        for which in ("true", "random")
    ]
    assert accuracies[0] != accuracies[1], "the random labels must be in the data, otherwise the test proves nothing"


@pytest.mark.parametrize("name", trained_methods())
def test_training_with_images_of_unknown_classes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Images of unknown classes are unlabeled training images and never labeled ones."""
    settings = tiny_settings(name, iterations=4, log_every=1, data__unlabeled="inout", data__ood_genera=1)
    catalog = load_catalog(settings.data, settings.data_settings)
    seen: dict[str, list[int]] = {LABELED: [], UNLABELED: []}
    labels: list[int] = []
    make_views, make_batch = AugmentPipeline.augment, BatchLoader.batch

    def record_views(pipeline: AugmentPipeline, rows: Any, names: Any, step: int, stream: str, **part: int) -> Any:
        if stream in seen:
            seen[stream] += rows.tolist()
        return make_views(pipeline, rows, names, step, stream, **part)

    def record_batch(loader: BatchLoader, step: int) -> Batch:
        batch = make_batch(loader, step)
        labels.extend(batch.label.tolist())
        return batch

    monkeypatch.setattr(AugmentPipeline, "augment", record_views)
    monkeypatch.setattr(BatchLoader, "batch", record_batch)
    result = run(settings, tmp_path / "run")

    assert len(logged_values(tmp_path / "run", "loss")) == 4
    for key in ("loss", "loss_labeled", "loss_unlabeled", "loss_instances"):
        assert np.isfinite(logged_values(tmp_path / "run", key)).all()
    assert labels == catalog.truth[seen[LABELED]].tolist()
    assert labels
    assert max(labels) < catalog.num_classes
    assert (catalog.truth[seen[UNLABELED]] >= catalog.num_classes).any() == bool(method_class(name).unlabeled_views)
    if name in WITH_CLASSIFIER:
        assert result["unlabeled"]["in_class"]["images"] == 6 * 9
        assert result["unlabeled"]["out_of_class"]["images"] == 2 * 9


@pytest.mark.parametrize("name", [name for name in trained_methods() if not method_class(name).unlabeled_views])
def test_images_of_unknown_classes_do_not_affect_methods_without_unlabeled_views(name: str, tmp_path: Path) -> None:
    for unlabeled in ("in", "inout"):
        run(tiny_settings(name, data__unlabeled=unlabeled, data__ood_genera=1, iterations=4), tmp_path / unlabeled)
    assert_same(final_weights(tmp_path / "in"), final_weights(tmp_path / "inout"))


def test_oracle_uses_hidden_labels(tmp_path: Path) -> None:
    run(tiny_settings("oracle"), tmp_path / "oracle")
    run(tiny_settings("supervised"), tmp_path / "supervised")
    with pytest.raises(AssertionError):
        assert_same(final_weights(tmp_path / "oracle"), final_weights(tmp_path / "supervised"))


@pytest.mark.parametrize("name", WITH_CLASSIFIER)
def test_training_lowers_the_loss(name: str, tmp_path: Path) -> None:
    settings = {"iterations": 60, "log_every": 10, "evaluate_every": 60, "save_every": 60, "lr": 0.02}
    run(tiny_settings(name, **settings, **run_settings(without_mixup(name))), tmp_path / "run")
    losses = logged_values(tmp_path / "run", "loss_labeled" if name in SEMI_SUPERVISED else "loss")
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_training_lowers_the_unlabeled_loss(name: str, tmp_path: Path) -> None:
    """Compares with a run without the unlabeled loss: it may increase over time, because labels become more certain."""
    steps = 120 if name == "dst" else 40  # DST's labels and the head that learns them start independently
    settings = {"iterations": steps, "log_every": 20, "evaluate_every": steps, "save_every": steps, "lr": 0.02}
    settings |= run_settings(zero_threshold(name))
    run(tiny_settings(name, **settings), tmp_path / "with")
    run(tiny_settings(name, **settings | run_settings(zero_weights(name))), tmp_path / "without")
    losses = [logged_values(tmp_path / which, "loss_unlabeled")[-1] for which in ("with", "without")]
    assert losses[0] < 0.95 * losses[1]


def test_moco_training_lowers_the_loss(tmp_path: Path) -> None:
    """Compares with a run with learning rate 0: the random initial queue gives any network a low loss at first.

    A short queue has few previous keys of the queries' images, which a network cannot tell apart from the positive key.
    """
    settings = {"iterations": 60, "log_every": 30, "save_every": 60, "mu": 4, "ema": 0.99, "method__queue": 16}
    for lr in (0.05, 0):
        run(tiny_settings("moco", **settings, lr=lr), tmp_path / str(lr))
    losses = [logged_values(tmp_path / str(lr), "loss")[-1] for lr in (0.05, 0)]
    assert losses[0] < 0.98 * losses[1]


@pytest.mark.parametrize("name", [name for name in SEMI_SUPERVISED if name not in OWN_LABELED_LOSS])
def test_weight_zero_gives_the_supervised_loss(name: str) -> None:
    method = make_method(name, **zero_threshold(name), **zero_weights(name), **without_mixup(name))
    networks = make_networks(name)
    networks.student = SingleImageNetwork(networks.student)
    batch, progress = make_batch(method), Progress(0, 10)
    loss = method(networks, batch, progress).loss
    # Pseudo-Label averages over labeled and unlabeled images.
    labeled_fraction = 4 / 12 if name == "pseudo_label" else 1
    assert_same(loss, labeled_fraction * make_method("supervised")(networks, batch, progress).loss)


@pytest.mark.parametrize("name", trained_methods())
def test_metrics_are_detached_scalars_and_the_loss_has_a_gradient(name: str) -> None:
    method, networks = make_method(name), make_networks(name, train=True)
    result = method(networks, make_batch(method), Progress(0, 10))
    assert result.loss.requires_grad
    assert all(value.ndim == 0 and not value.requires_grad for value in result.metrics.values())
    if result.pseudo_labels is not None:
        assert not result.pseudo_labels.target.requires_grad


@pytest.mark.parametrize("name", [name for name in trained_methods() if method_class(name).cuda_graph_safe])
def test_cuda_graph_safe_step_does_not_depend_on_progress(name: str) -> None:
    losses = []
    for step in (0, 7):
        method, networks = make_method(name), make_networks(name, train=True)
        losses.append(method(networks, make_batch(method), Progress(step, 10)).loss)
    assert_same(*losses)


@pytest.mark.parametrize("name", trained_methods())
def test_training_in_bf16(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, precision="bf16", iterations=4), tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in final_weights(tmp_path / "run").values())
    assert result["iterations"] == 4


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_supervised_warmup_equals_supervised_training(name: str, tmp_path: Path) -> None:
    """Before unlabeled images are used, training equals supervised training bit for bit."""
    run(tiny_settings(name, supervised_warmup=1.0), tmp_path / "labeled")
    run(tiny_settings("supervised"), tmp_path / "supervised")
    assert_same(final_student(tmp_path / "labeled"), final_student(tmp_path / "supervised"))
    run(tiny_settings(name, supervised_warmup=0.5), tmp_path / "half")
    with pytest.raises(AssertionError):
        assert_same(final_student(tmp_path / "half"), final_student(tmp_path / "supervised"))


def test_supervised_cooldown_trains_on_labeled_images_at_the_end(tmp_path: Path) -> None:
    """Steps 7 to 12 are the same as those of a supervised run with the same state."""
    run(tiny_settings("fixmatch", supervised_cooldown=0.5, log_every=1, method__threshold=0), tmp_path / "run")
    records = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    with_unlabeled = [record["step"] for record in records if record["kind"] == "train" and "accepted" in record]
    assert with_unlabeled == [1, 2, 3, 4, 5, 6]
    run(tiny_settings("fixmatch", supervised_cooldown=1), tmp_path / "labeled")
    run(tiny_settings("supervised"), tmp_path / "supervised")
    assert_same(final_student(tmp_path / "labeled"), final_student(tmp_path / "supervised"))


def test_supervised_steps_use_the_logit_adjustment_of_the_method(tmp_path: Path) -> None:
    run(tiny_settings("fixmatch", method__adjust_labeled=1, supervised_cooldown=1), tmp_path / "labeled")
    run(tiny_settings("supervised", method__adjust_labeled=1), tmp_path / "supervised")
    assert_same(final_student(tmp_path / "labeled"), final_student(tmp_path / "supervised"))


@pytest.mark.parametrize("name", [name for name in trained_methods() if method_class(name).unlabeled_views])
def test_missing_unlabeled_images_raise_a_user_error(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load_original = sources.load_catalog

    def without_unlabeled(*arguments: Any) -> Catalog:
        catalog = load_original(*arguments)
        return catalog.take(np.flatnonzero(catalog.split != Split.UNLABELED))

    monkeypatch.setattr(sources, "load_catalog", without_unlabeled)
    with pytest.raises(UserError, match=f"no unlabeled images, which the method '{name}'"):
        run(tiny_settings(name), tmp_path / "run")


@pytest.mark.parametrize("mode", ["joint", "split", "dp2"])
@pytest.mark.parametrize("name", trained_methods())
def test_runs_in_every_forward_mode(name: str, mode: str, tmp_path: Path) -> None:
    run(tiny_settings(name, forward=mode, iterations=2, log_every=1), tmp_path / "run")
    records = [record for record in RunFolder(tmp_path / "run").read_metrics() if record["kind"] == "train"]
    assert [record["step"] for record in records] == [1, 2]
    assert all(0 < record["loss"] < 100 for record in records)
    assert all(value.isfinite().all() for value in final_student(tmp_path / "run").values())


@pytest.mark.gpu
@pytest.mark.parametrize("name", trained_methods())
def test_training_on_a_gpu(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, device="cuda"), tmp_path / "run")
    assert result["environment"]["kind"] == "cuda"
