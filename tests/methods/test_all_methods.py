"""What every method must do; a new file in methods/ is picked up by itself."""

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
from semifine.methods import method_class, method_names
from semifine.methods.base import Batch, Progress
from semifine.training.fit import fit
from semifine.training.loader import LABELED, UNLABELED, BatchLoader
from semifine.training.progress import Display
from semifine.training.trainer import Trainer
from tests.conftest import tiny_settings
from tests.methods.one_step import OneByOne, make_batch, make_method, make_networks

CLASSIFYING = [name for name in method_names() if method_class(name).trains_classifier]
SEMI_SUPERVISED = [name for name in CLASSIFYING if method_class(name).unlabeled_views]
WITH_OTHER_STATE: list[tuple[str, dict[str, object]]] = [
    ("soc", {"method__similarity": "labeled_features"}),
    ("soc", {"method__similarity": "pseudo_features"}),
    ("simmatch", {"method__first_epoch": "unlabeled", "method__blank_labels": True}),
    ("moco", {"method__version": "v1"}),
]
HONEST = [name for name in method_names() if not method_class(name).trains_on_truth]


def run(settings: Any, out: Path, *, resume: bool = False) -> dict[str, Any]:
    return fit(settings, out, resume=resume, display=Display(quiet=True))


def final_weights(out: Path) -> dict[str, Tensor]:
    return load_file(out / "checkpoints" / "last" / "model.safetensors")


def final_student(out: Path) -> dict[str, Tensor]:
    """The weights that learned, without the heads that only some methods have."""
    weights = training_state(out).get("student", final_weights(out))
    return {name: value for name, value in weights.items() if not name.startswith("heads.")}


def training_state(out: Path) -> dict[str, Any]:
    return dict(torch.load(out / "checkpoints" / "last" / "training.pt", weights_only=True))


def weightless(name: str) -> dict[str, object]:
    """Settings of a method by which its unlabeled losses count for nothing."""
    return {setting.name: 0.0 for setting in fields(method_class(name).Settings) if setting.name.startswith("weight")}


def accepting_all(name: str) -> dict[str, object]:
    """Settings of a method by which every pseudo-label trains, as few would in so short a run."""
    return {setting.name: 0.0 for setting in fields(method_class(name).Settings) if setting.name == "threshold"}


def of_method(settings: dict[str, object]) -> dict[str, object]:
    """A method's own settings as those of a run."""
    return {f"method__{key}": value for key, value in settings.items()}


def logged(out: Path, key: str) -> list[float]:
    """A number of each log interval."""
    records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
    return [record[key] for record in records if record["kind"] == "train" and key in record]


def assert_same(first: Any, second: Any) -> None:
    torch.testing.assert_close(first, second, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", method_names())
def test_trains_and_fills_its_run_folder(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name), tmp_path / "run")
    assert result["method"] == name
    assert result["seed"] == 0
    assert result["environment"]["torch"] == torch.__version__
    for file in ("settings.yaml", "metrics.jsonl", "result.json", "classes.json"):
        assert (tmp_path / "run" / file).is_file()


@pytest.mark.parametrize("name", CLASSIFYING)
def test_measures_its_classifier_and_its_labels(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, iterations=4), tmp_path / "run")
    assert 0 <= result["top1"] <= result["top5"] <= 100
    assert (tmp_path / "run" / "classes.safetensors").is_file()
    samples = pq.read_table(tmp_path / "run" / "samples.parquet")
    assert samples.num_rows == 6 * 9
    assert set(samples.column("z_obj2").to_pylist()) <= set(range(1, 7))


@pytest.mark.parametrize(("name", "more"), [*((name, {}) for name in method_names()), *WITH_OTHER_STATE])
def test_resumes_bit_for_bit_in_mid_epoch(
    name: str, more: dict[str, object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N + resume + N steps equal 2N steps; the interruption falls between two checkpoints and two epochs."""
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
    assert {"student", "teacher"} & whole.keys(), "the network that is not evaluated must be kept, too"
    for key in set(whole) - {"seconds"}:
        assert_same(parts[key], whole[key])


@pytest.mark.parametrize("name", HONEST)
def test_hidden_labels_never_reach_training(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Poison: with other hidden labels every weight stays the same, to the last bit."""
    run(tiny_settings(name), tmp_path / "true")
    honest_load = sources.load_catalog

    def poisoned(*arguments: Any) -> Catalog:
        catalog = honest_load(*arguments)
        assert (catalog.label[catalog.rows(Split.UNLABELED)] == -1).all()
        random = np.random.default_rng(1).integers(0, catalog.num_classes, len(catalog))
        return replace(catalog, truth=np.where(catalog.split == Split.UNLABELED, random, catalog.truth))

    monkeypatch.setattr(sources, "load_catalog", poisoned)
    run(tiny_settings(name), tmp_path / "poisoned")
    assert_same(final_weights(tmp_path / "poisoned"), final_weights(tmp_path / "true"))
    assert_same(training_state(tmp_path / "poisoned")["method"], training_state(tmp_path / "true")["method"])
    if name not in CLASSIFYING:
        return
    accuracies = [
        np.mean(pq.read_table(tmp_path / which / "samples.parquet").column("truth").to_numpy())
        for which in ("true", "poisoned")
    ]
    assert accuracies[0] != accuracies[1], "the poison must have been in the data, or this test shows nothing"


@pytest.mark.parametrize("name", method_names())
def test_trains_among_images_of_unknown_classes(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are among the unlabeled images that it learns from, never among the labeled ones."""
    settings = tiny_settings(name, iterations=4, log_every=1, data__unlabeled="inout", data__ood_genera=1)
    catalog = load_catalog(settings.data, settings.data_settings)
    seen: dict[str, list[int]] = {LABELED: [], UNLABELED: []}
    labels: list[int] = []
    make_views, make_batch = AugmentPipeline.augment, BatchLoader.batch

    def watched_views(maker: AugmentPipeline, rows: Any, names: Any, step: int, stream: str, **share: int) -> Any:
        if stream in seen:
            seen[stream] += rows.tolist()
        return make_views(maker, rows, names, step, stream, **share)

    def watched_batch(loader: BatchLoader, step: int) -> Batch:
        batch = make_batch(loader, step)
        labels.extend(batch.label.tolist())
        return batch

    monkeypatch.setattr(AugmentPipeline, "augment", watched_views)
    monkeypatch.setattr(BatchLoader, "batch", watched_batch)
    result = run(settings, tmp_path / "run")

    assert len(logged(tmp_path / "run", "loss")) == 4
    for key in ("loss", "loss_labeled", "loss_unlabeled", "loss_instances"):
        assert np.isfinite(logged(tmp_path / "run", key)).all()
    assert labels == catalog.truth[seen[LABELED]].tolist()
    assert labels
    assert max(labels) < catalog.num_classes
    assert (catalog.truth[seen[UNLABELED]] >= catalog.num_classes).any() == bool(method_class(name).unlabeled_views)
    if name in CLASSIFYING:
        assert result["unlabeled"]["in_class"]["images"] == 6 * 9
        assert result["unlabeled"]["out_of_class"]["images"] == 2 * 9


@pytest.mark.parametrize("name", [name for name in method_names() if not method_class(name).unlabeled_views])
def test_images_of_unknown_classes_change_nothing_where_labels_alone_train(name: str, tmp_path: Path) -> None:
    for unlabeled in ("in", "inout"):
        run(tiny_settings(name, data__unlabeled=unlabeled, data__ood_genera=1, iterations=4), tmp_path / unlabeled)
    assert_same(final_weights(tmp_path / "in"), final_weights(tmp_path / "inout"))


def test_the_oracle_does_use_hidden_labels(tmp_path: Path) -> None:
    run(tiny_settings("oracle"), tmp_path / "oracle")
    run(tiny_settings("supervised"), tmp_path / "supervised")
    with pytest.raises(AssertionError):
        assert_same(final_weights(tmp_path / "oracle"), final_weights(tmp_path / "supervised"))


@pytest.mark.parametrize("name", CLASSIFYING)
def test_lowers_its_loss(name: str, tmp_path: Path) -> None:
    settings = tiny_settings(name, iterations=60, log_every=10, evaluate_every=60, save_every=60, lr=0.02)
    run(settings, tmp_path / "run")
    losses = logged(tmp_path / "run", "loss_labeled" if name in SEMI_SUPERVISED else "loss")
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_lowers_its_unlabeled_loss(name: str, tmp_path: Path) -> None:
    """Below that of a run in which it counts for nothing: by itself it may rise, as labels become more certain."""
    settings = {"iterations": 40, "log_every": 20, "evaluate_every": 40, "save_every": 40, "lr": 0.02}
    settings |= of_method(accepting_all(name))
    run(tiny_settings(name, **settings), tmp_path / "with")
    run(tiny_settings(name, **settings | of_method(weightless(name))), tmp_path / "without")
    losses = [logged(tmp_path / which, "loss_unlabeled")[-1] for which in ("with", "without")]
    assert losses[0] < 0.95 * losses[1]


def test_moco_lowers_its_loss(tmp_path: Path) -> None:
    """Below that of the same run without learning: against fresh noise in its queue any network does well at first.

    A short queue holds few keys of the queries' own images, which no network could tell from the right one.
    """
    settings = {"iterations": 60, "log_every": 30, "save_every": 60, "mu": 4, "ema": 0.99, "method__queue": 16}
    for lr in (0.05, 0):
        run(tiny_settings("moco", **settings, lr=lr), tmp_path / str(lr))
    losses = [logged(tmp_path / str(lr), "loss")[-1] for lr in (0.05, 0)]
    assert losses[0] < 0.98 * losses[1]


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_weight_zero_gives_exactly_the_supervised_loss(name: str) -> None:
    """With a network whose output for an image does not depend on the others of the same pass."""
    method, networks = make_method(name, **accepting_all(name), **weightless(name)), make_networks(name)
    networks.student = OneByOne(networks.student)
    batch, progress = make_batch(method), Progress(0, 10)
    loss = method(networks, batch, progress).loss
    # Pseudo-Label takes the mean over labeled and unlabeled images
    share = 4 / 12 if name == "pseudo_label" else 1
    assert_same(loss, share * make_method("supervised")(networks, batch, progress).loss)


@pytest.mark.parametrize("name", method_names())
def test_numbers_are_detached_scalars_and_the_loss_has_a_gradient(name: str) -> None:
    method, networks = make_method(name), make_networks(name, train=True)
    result = method(networks, make_batch(method), Progress(0, 10))
    assert result.loss.requires_grad
    assert all(value.ndim == 0 and not value.requires_grad for value in result.metrics.values())
    if result.pseudo_labels is not None:
        assert not result.pseudo_labels.target.requires_grad


@pytest.mark.parametrize("name", [name for name in method_names() if method_class(name).cuda_graph_safe])
def test_a_capturable_step_does_not_look_at_progress(name: str) -> None:
    """The same operations every time: what the host says of the step changes nothing."""
    losses = []
    for step in (0, 7):
        method, networks = make_method(name), make_networks(name, train=True)
        losses.append(method(networks, make_batch(method), Progress(step, 10)).loss)
    assert_same(*losses)


@pytest.mark.parametrize("name", method_names())
def test_runs_in_bf16(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, precision="bf16", iterations=4), tmp_path / "run")
    assert all(torch.isfinite(value).all() for value in final_weights(tmp_path / "run").values())
    assert result["iterations"] == 4


@pytest.mark.parametrize("name", SEMI_SUPERVISED)
def test_unlabeled_images_may_join_later(name: str, tmp_path: Path) -> None:
    """Until they join, training is supervised to the last bit."""
    run(tiny_settings(name, supervised_warmup=1.0), tmp_path / "labeled")
    run(tiny_settings("supervised"), tmp_path / "supervised")
    assert_same(final_student(tmp_path / "labeled"), final_student(tmp_path / "supervised"))
    run(tiny_settings(name, supervised_warmup=0.5), tmp_path / "half")
    with pytest.raises(AssertionError):
        assert_same(final_student(tmp_path / "half"), final_student(tmp_path / "supervised"))


@pytest.mark.parametrize("name", [name for name in method_names() if method_class(name).unlabeled_views])
def test_without_unlabeled_images_it_says_so(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest_load = sources.load_catalog

    def without_unlabeled(*arguments: Any) -> Catalog:
        catalog = honest_load(*arguments)
        return catalog.take(np.flatnonzero(catalog.split != Split.UNLABELED))

    monkeypatch.setattr(sources, "load_catalog", without_unlabeled)
    with pytest.raises(UserError, match=f"no unlabeled images, which the method '{name}'"):
        run(tiny_settings(name), tmp_path / "run")


@pytest.mark.parametrize("mode", ["joint", "split", "dp2"])
@pytest.mark.parametrize("name", method_names())
def test_runs_in_every_forward_mode(name: str, mode: str, tmp_path: Path) -> None:
    run(tiny_settings(name, forward=mode, iterations=2), tmp_path / "run")


@pytest.mark.gpu
@pytest.mark.parametrize("name", method_names())
def test_trains_on_the_gpu(name: str, tmp_path: Path) -> None:
    result = run(tiny_settings(name, device="cuda"), tmp_path / "run")
    assert result["environment"]["kind"] == "cuda"
