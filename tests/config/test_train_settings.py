from __future__ import annotations

from pathlib import Path

import pytest
import timm

from semifine.config import preset_names, preset_summary, read_preset, read_settings_file, resolve, write_settings
from semifine.config.loading import flatten
from semifine.config.train_settings import parse_duration
from semifine.data.sources import source_names
from semifine.errors import UserError


def test_later_layers_win() -> None:
    settings = resolve([{"iterations": 10, "lr": 0.1}, {"iterations": "20"}])
    assert (settings.train.iterations, settings.train.lr) == (20, 0.1)


def test_defaults_are_soc_on_the_embedded_set() -> None:
    settings = resolve([])
    assert (settings.data, settings.method, settings.method_settings.alpha) == ("synthetic", "soc", 5.0)
    assert settings.train.backbone != "resnet50", "the embedded set brings its own small network"


def test_paper_defaults_hold_for_other_data(tmp_path: Path) -> None:
    (tmp_path / "labeled" / "a").mkdir(parents=True)
    train = resolve([{"data.source": str(tmp_path)}]).train
    assert (train.backbone, train.image_size, train.batch_size, train.mu) == ("resnet50", 224, 32, 5)
    assert (train.momentum, train.nesterov, train.weight_decay, train.ema) == (0.9, True, 5e-4, 0.999)


def test_nested_and_short_forms_are_the_same() -> None:
    assert flatten({"method": {"name": "soc", "alpha": 4}, "lr": 1}) == {
        "method.name": "soc",
        "method.alpha": 4,
        "lr": 1,
    }
    assert flatten({"method": "fixmatch", "data": "synthetic"}) == {
        "method.name": "fixmatch",
        "data.source": "synthetic",
    }


def test_written_settings_give_the_same_run(tmp_path: Path) -> None:
    settings = resolve([{"method.alpha": 3, "data.genera": 4, "crop_scale": "0.3,0.9", "weights": None}])
    write_settings(settings, tmp_path / "settings.yaml")
    assert resolve([read_settings_file(tmp_path / "settings.yaml")]) == settings


def test_weights_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve([{"weights": "runs/first"}]).train.weights == str(tmp_path / "runs" / "first")
    assert resolve([{"weights": "~/x.pt"}]).train.weights == str(Path.home() / "x.pt")
    assert resolve([{"weights": "none"}]).train.weights is None


def test_on_and_off_of_yaml_are_choices(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("compile: off\ncuda_graphs: on\n")
    train = resolve([read_settings_file(tmp_path / "mine.yaml")]).train
    assert (train.compile, train.cuda_graphs) == ("off", "on")


def test_all_paths_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = resolve([{"method.name": "self_training", "method.teacher": "runs/first", "cache": "kept"}])
    assert settings.method_settings.teacher == str(tmp_path / "runs" / "first")
    assert settings.train.cache == str(tmp_path / "kept")


@pytest.mark.parametrize("name", [name for name in preset_names() if name.startswith(("soc", "fixmatch", "flexmatch"))])
def test_published_recipes_pass_all_views_at_once(name: str) -> None:
    """In one pass, or as two GPUs would; only these methods have views that make labels alone, and so the choice."""
    assert resolve([read_preset(name)]).train.forward == ("dp2" if "official-code" in name else "joint")


def test_presets_read_expert_initialization_as_paper_and_released_code_do() -> None:
    paper, code = (resolve([read_preset(f"soc-{name}-pretrained")]).train for name in ("paper", "official-code"))
    assert (paper.pretrained, paper.weights_head) == (True, "fresh")
    assert (code.pretrained, code.weights_head) == (False, "keep")
    assert (paper.iterations, paper.lr, paper.warmup) == (code.iterations, code.lr, code.warmup) == (50_000, 1e-3, 0.1)


@pytest.mark.parametrize(
    ("layer", "part"),
    [
        ({"method.alhpa": 5}, "Did you mean 'method.alpha'?"),  # codespell:ignore alhpa
        ({"method.name": "fixmatch", "method.alpha": 5}, "Unknown setting 'method.alpha'"),
        ({"iteratoins": 5}, "Did you mean 'iterations'?"),  # codespell:ignore iteratoins
        ({"views.size": 5}, "Unknown setting 'views.size'"),
        ({"method.name": "sock"}, "Unknown method 'sock'. Valid names: "),
        ({"data.source": "nowhere"}, "nowhere"),
        ({"crop_scale": "0,1"}, "crop_scale must satisfy"),
        ({"pretrained": True, "weights": "x.pt"}, "either pretrained or weights"),
    ],
)
def test_mistakes_name_the_key(layer: dict[str, object], part: str) -> None:
    with pytest.raises(UserError, match=part.replace("?", r"\?").replace(".", r"\.")):
        resolve([layer])


@pytest.mark.parametrize(
    ("content", "part"), [(b"a: [", "not valid YAML"), (b"- a", "key: value"), (b"\xff\xfe", "not valid YAML")]
)
def test_broken_settings_files_are_named(tmp_path: Path, content: bytes, part: str) -> None:
    (tmp_path / "broken.yaml").write_bytes(content)
    with pytest.raises(UserError, match=r"broken\.yaml") as caught:
        read_settings_file(tmp_path / "broken.yaml")
    assert part in str(caught.value)


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_resolves_and_says_what_it_is(name: str) -> None:
    resolve([read_preset(name)])
    assert preset_summary(name)


def test_unknown_preset_is_named() -> None:
    with pytest.raises(UserError, match="Unknown preset 'none-such'"):
        read_preset("none-such")


def test_dataset_presets_belong_to_sources() -> None:
    folder = Path(read_settings_file.__code__.co_filename).parent / "presets" / "datasets"
    assert {path.stem for path in folder.glob("*.yaml")} <= set(source_names())


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("10 min", 600), ("1.5h", 5400), ("1h30m", 5400)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["10", "", "m", "-5m", "0m", "5 m 3", "1d", "infh", 600])
def test_time_needs_a_unit(text: str | int) -> None:
    """A number alone may be meant in seconds or in minutes."""
    with pytest.raises(UserError, match=rf"time is '{text}'; give a number and its unit, such as 90s, 10m or 1h\."):
        resolve([{"time": text}])


@pytest.mark.parametrize(
    "name", [name for name in preset_names() if "resnet50" in str(read_preset(name).get("backbone"))]
)
def test_presets_of_the_paper_have_its_network(name: str) -> None:
    train = resolve([{"method.name": "soc"}, read_preset(name)]).train
    config = timm.get_pretrained_cfg(train.backbone)
    assert config is not None
    assert (config.architecture, config.tag) == ("resnet50", "tv_in1k")
    assert not train.zero_init_last
    assert train.stored_side == 500, "photos of 500 px are cropped at their own size"
