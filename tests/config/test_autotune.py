"""Settings chosen from the data, where nobody gave them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from semifine import devices
from semifine.config import (
    RunSettings,
    open_and_resolve,
    preset_names,
    read_preset,
    read_settings_file,
    resolve,
    write_settings,
)
from semifine.config.autotune import ema_decay_for
from semifine.config.loading import OF_THE_DATA
from semifine.models import imagenet


def tuned(layers: list[dict[str, Any]]) -> RunSettings:
    return open_and_resolve(layers)[0]


def photos(root: Path, side: int, labeled: int, unlabeled: int, rare: int | None = None) -> Path:
    """Writes photos of two classes with ``labeled`` labels, or with ``rare`` labels of the second one."""
    for number in range(labeled):
        for name in ("labeled/a", *["labeled/b"] * (rare is None or number < rare)):
            (root / name).mkdir(parents=True, exist_ok=True)
            color = (number, number, 255 * (name == "labeled/a"))  # else they were copies, which are held together
            Image.new("RGB", (side + 20, side), color).save(root / name / f"{number}.png")
    (root / "unlabeled").mkdir()
    for number in range(unlabeled):
        (root / "unlabeled" / f"{number}.jpg").touch()
    return root


@pytest.mark.parametrize(
    ("side", "labeled", "unlabeled", "wanted"),
    [
        (80, 10, 30, (64, 16, 500, 0.98)),  # 16 of 20 labels are for training
        (64, 50, 400, (64, 32, 500, 0.98)),
        (10, 2, 2000, (32, 4, 10_000, 0.999)),
    ],
)
def test_size_batch_length_and_average_follow_small_photos(
    tmp_path: Path, side: int, labeled: int, unlabeled: int, wanted: tuple[float, ...]
) -> None:
    settings = tuned([{"data.source": str(photos(tmp_path, side, labeled, unlabeled))}])
    train = settings.train
    assert (train.image_size, train.batch_size, train.iterations, train.ema) == wanted
    assert (train.pretrained, train.time) == (False, None)
    size, training = settings.notes
    assert size == f"image size: {wanted[0]} pixels, because the photos are about {side} pixels across"
    assert training.startswith(f"training: {wanted[2]} steps of {wanted[1]} labeled photos; ")


@pytest.mark.parametrize(("side", "size"), [(100, 224), (400, 224)])
def test_larger_photos_start_from_installed_weights_at_their_image_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, side: int, size: int
) -> None:
    root = str(photos(tmp_path, side, 10, 30))
    monkeypatch.setattr(imagenet, "installed_backbone", lambda: "tf_efficientnet_lite0")
    settings = tuned([{"data.source": root, "device": "cpu"}])
    train = settings.train
    assert (train.backbone, train.pretrained, train.probe, train.image_size, train.time) == (
        "tf_efficientnet_lite0",
        True,
        True,
        size,
        "10m",
    )
    assert settings.notes == (
        "network: tf_efficientnet_lite0 with ImageNet weights, at 224 x 224 pixels; its last 2 stages are trained, the "
        "first ones stay as they are",
        "time: at most 10 minutes, the default on a CPU; for more: --time 1h",
    )
    assert tuned([{"data.source": root, "backbone": "resnet18", "pretrained": True}]).train.image_size == 224
    assert tuned([{"data.source": root, "iterations": 50}]).train.time is None
    assert tuned([{"data.source": root, "time": "none"}]).train.time is None
    assert tuned([{"data.source": root, "train": "head", "device": "cpu"}]).train.train_stages is None


@pytest.fixture
def _gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings are chosen as on a machine with a GPU."""
    monkeypatch.setattr(devices, "resolve_device", lambda _: "cuda")


@pytest.mark.usefixtures("_gpu")
def test_a_transformer_is_trained_with_settings_that_suit_it(tmp_path: Path) -> None:
    given = {"data.source": str(photos(tmp_path, 120, 8, 8)), "pretrained": True, "backbone": "test_vit"}
    settings = tuned([given])
    train = settings.train
    assert (train.optimizer, train.layer_decay, train.decay_exempt, train.train_stages) == ("adamw", 0.7, "1d", None)
    assert any(note.startswith("training: --optimizer adamw --lr 0.0005") for note in map(_plain, settings.notes))
    assert tuned([{**given, "layer_decay": 0.9}]).train.layer_decay == 0.9
    assert tuned([{**given, "optimizer": "sgd"}]).train.layer_decay == 1, "a chosen optimizer is left alone"


def _plain(note: str) -> str:
    return note.replace(",", "")


@pytest.mark.usefixtures("_gpu")
def test_a_convolutional_network_keeps_sgd(tmp_path: Path) -> None:
    given = {"data.source": str(photos(tmp_path, 120, 8, 8)), "pretrained": True, "backbone": "resnet18"}
    train = tuned([given]).train
    assert (train.optimizer, train.layer_decay, train.drop_path) == ("sgd", 1, 0)


@pytest.mark.parametrize("given", [{"train": "head"}, {"train": "all"}, {"cutmix": 1.0}])
def test_trained_parts_and_cutmix_replace_the_training_of_the_last_stages(
    tmp_path: Path, given: dict[str, object]
) -> None:
    data = {"data.source": str(photos(tmp_path, 120, 8, 8)), "pretrained": True, "device": "cpu"}
    assert tuned([data]).train.train_stages == 2
    assert tuned([{**data, **given}]).train.train_stages is None


def test_normalization_and_arguments_come_from_the_run_of_the_weights(tmp_path: Path) -> None:
    root = str(photos(tmp_path / "photos", 120, 8, 8))
    values = {"backbone": "test_resnet", "mean": "0.4,0.5,0.6", "backbone_args": "drop_rate=0.1"}
    write_settings(resolve([values]), tmp_path / "settings.yaml")
    train = tuned([{"data.source": root, "weights": str(tmp_path)}]).train
    assert (train.mean, train.std, train.backbone_args) == ((0.4, 0.5, 0.6), None, "drop_rate=0.1")
    other = tuned([{"data.source": root, "weights": str(tmp_path), "mean": "0.1,0.1,0.1"}]).train
    assert other.mean == (0.1, 0.1, 0.1)


def test_no_time_is_planned_for_the_probe_alone(tmp_path: Path) -> None:
    settings = tuned([{"data.source": str(photos(tmp_path, 100, 10, 30)), "method.name": "probe"}])
    assert settings.train.time is None
    (network,) = settings.notes
    assert network.endswith("at 224 x 224 pixels")


def test_weights_of_a_run_determine_backbone_and_image_size(tmp_path: Path) -> None:
    earlier = {"backbone": "resnet18", "backbone_args": "stem_width=32", "image_size": 256}
    write_settings(resolve([earlier]), tmp_path / "settings.yaml")
    root = str(photos(tmp_path / "photos", 100, 10, 30))
    train = tuned([{"data.source": root, "weights": str(tmp_path)}]).train
    assert (train.backbone, train.image_size, train.pretrained, train.probe) == ("resnet18", 256, False, True)
    assert train.backbone_args == "stem_width=32"
    given = {"data.source": root, "weights": str(tmp_path), "backbone": "resnet34", "image_size": 64}
    assert (tuned([given]).train.backbone, tuned([given]).train.image_size) == ("resnet34", 64)


@pytest.mark.parametrize(("labeled", "rare", "balance"), [(10, 2, False), (11, 2, True)])
def test_classes_of_very_different_sizes_are_balanced(tmp_path: Path, labeled: int, rare: int, balance: bool) -> None:
    root = str(photos(tmp_path, 40, labeled, 10, rare))
    layer = {"data.source": root, "data.val_share": 0}
    settings = tuned([layer])
    assert settings.train.balance == balance
    assert any("balance: classes have 2 to 11 labels" in note for note in settings.notes) == balance
    assert not tuned([{**layer, "balance": False}]).train.balance
    assert not tuned([{**layer, "method.name": "moco"}]).train.balance, "it uses no labels"
    assert not tuned([{**layer, "method.adjust_labeled": 1}]).train.balance, "it balances the classes, too"


def test_own_photos_have_the_method_settings_of_the_recipe(tmp_path: Path) -> None:
    root = {"data.source": str(photos(tmp_path, 120, 10, 30)), "device": "cpu"}
    levers = {key: value for key, value in read_preset("best").items() if key.startswith("method.")}
    plain = resolve([{"method.name": "soc"}]).method_settings
    assert tuned([root]).method_settings == resolve([levers]).method_settings != plain
    assert tuned([{**root, "method.align": 0.1}]).method_settings == dataclasses.replace(plain, align=0.1)
    fixmatch = {"method.name": "fixmatch"}
    assert tuned([{**root, **fixmatch}]).method_settings == resolve([fixmatch]).method_settings


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_pins_no_steps_size_and_average_of_own_photos(tmp_path: Path, name: str) -> None:
    root = str(photos(tmp_path, 40, 10, 30))
    preset = read_preset(name)
    teacher = {"method.teacher": str(tmp_path)} if "self-training" in name else {}
    train = tuned([preset, {"data.source": root, **teacher}]).train
    assert (train.image_size, train.horizon, train.evaluate_every) == (224 if train.pretrained else 32, None, None)
    assert train.iterations <= 500
    keeps_average = name.startswith(("moco", "simmatch"))  # their average is a part of the method
    assert train.ema == (0.999 if keeps_average else ema_decay_for(train.iterations))
    assert all(getattr(train, key) == preset[key] for key in {"lr", "batch_size", "backbone"} & preset.keys())
    given = tuned([preset, {"data.source": root, "iterations": 70, "image_size": 64, **teacher}]).train
    assert (given.iterations, given.image_size) == (70, 64), "options are not values of the preset"
    exact = resolve([preset, teacher]).train
    assert all(getattr(exact, key) == preset[key] for key in OF_THE_DATA & preset.keys()), "other data sets"


def test_average_follows_the_steps_on_every_data_set(tmp_path: Path) -> None:
    lists = {"data.source": f"semi_aves:{tmp_path}"}
    assert resolve([{**lists, "iterations": 100}]).train.ema == 0.9
    assert resolve([lists]).train.ema == 0.999
    assert resolve([{**lists, "iterations": 100, "ema": 0.99}]).train.ema == 0.99


def test_what_is_given_wins_and_written_settings_say_nothing_more(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 90, 10, 640)
    settings = tuned([{"data.source": str(root), "batch_size": "8", "mu": 2, "image_size": 64}])
    assert (settings.train.image_size, settings.train.batch_size) == (64, 8)
    assert settings.train.iterations == 100 * 640 // 16
    assert tuned([{"data.source": str(root), "iterations": 1000}]).train.ema == 0.99
    assert tuned([{"data.source": str(root), "ema": 0}]).train.ema == 0
    write_settings(settings, tmp_path / "settings.yaml")
    again = tuned([read_settings_file(tmp_path / "settings.yaml")])
    assert again == settings
    assert again.notes == ()


def test_labels_that_groups_hold_back_do_not_count(tmp_path: Path) -> None:
    root = photos(tmp_path / "photos", 40, 10, 10)
    assert "; 16 labeled and" in tuned([{"data.source": str(root)}]).notes[1]
    for name in ("a", "b"):
        (root / "labeled" / name).rename(root / "site")
        (root / "labeled" / name).mkdir()
        (root / "site").rename(root / "labeled" / name / "site")
    one_group_a_class = tuned([{"data.source": str(root), "data.group_by": "folder"}])
    assert "; 20 labeled and" in one_group_a_class.notes[1], "no class can give its only group"


def test_known_data_sets_are_left_alone() -> None:
    assert tuned([]).notes == ()
