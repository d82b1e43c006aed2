"""The settings of a training run, and how layers of them become one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml

from semifine.config.schema import build, field_names, setting, unknown_key
from semifine.errors import UserError
from semifine.run_folder import write_atomically

if TYPE_CHECKING:
    from semifine.data.suggestions import Suggestions

PRESETS = Path(__file__).parent / "presets"


@dataclass(frozen=True)
class TrainSettings:
    """What every run has; the settings of a method and of a data source stand beside their code."""

    iterations: int = setting(50_000, "training steps", low=1)
    batch_size: int = setting(32, "labelled images a step", low=1)
    mu: int = setting(5, "unlabelled images a step, as a multiple of the batch size", low=1)
    image_size: int = setting(224, "side of the square the network sees, in pixels", low=8, high=4096)
    store_size: int | None = setting(
        None, "shorter side at which images are kept; default: 8/7 of the image size", low=8
    )
    crop_scale: tuple[float, float] = setting((0.08, 1.0), "share of the image that a random crop covers")
    backbone: str = setting("resnet50", "any timm model by name, see 'semifine list backbones'")
    pretrained: bool = setting(False, "start from ImageNet weights (installed ones, else timm's)")
    weights: str | None = setting(
        None, "start from the weights in this file or run folder, see docs/weights.md; default: fresh ones"
    )
    weights_head: Literal["auto", "keep", "fresh"] = setting(
        "auto",
        "the classifier in --weights: auto keeps it if it comes from a run on the same classes, fresh leaves it out",
    )
    labels: str | None = setting(
        None,
        "labels that people gave to unlabelled images: the studio's log, or a CSV file (path, label); default: none",
    )
    lr: float = setting(0.01, "learning rate", low=0)
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    nesterov: bool = setting(True, "Nesterov momentum")
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    decay_exempt: Literal["bn", "bn+bias", "none"] = setting(
        "bn", "parameters without weight decay: those whose name contains 'bn', or also 'bias'"
    )
    schedule: Literal["cos716", "half_cosine", "half_cosine_floor", "steps", "constant"] = setting(
        "cos716",
        "learning rate over time: a cosine to 0.195 of it, to 0, to a thousandth, divided by ten at 60 % and at 80 %, "
        "or as it is",
    )
    horizon: int | None = setting(None, "steps over which the schedule decays; default: all iterations", low=1)
    warmup: float = setting(0.0, "share of the horizon over which the learning rate rises from 0", low=0, high=1)
    labelled_first: float = setting(
        0.0, "share of the steps that learn from labelled images alone, before the unlabelled ones join", low=0, high=1
    )
    ema: float = setting(0.999, "decay of the averaged model that is evaluated; 0 evaluates the raw one", low=0, high=1)
    forward: Literal["split", "joint", "dp2"] = setting(
        "split",
        "how a step passes its views: each by itself, those that make labels without gradient; all in one; two halves",
    )
    store: Literal["auto", "gpu", "host", "disk"] = setting(
        "auto", "where the decoded images lie; auto: on the GPU where they fit, else in memory, else on disk"
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile; auto: on a GPU, in runs of 10000 steps or more"
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto", "steps as one recorded CUDA graph; auto: where possible"
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "numbers to compute with; auto: bf16 on a GPU that has it, else fp32"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where to train; auto: on a GPU where there is one")
    on_nonfinite: Literal["stop", "skip"] = setting(
        "stop", "when a loss is not a finite number: stop, or learn nothing from that batch and go on"
    )
    devices: int = setting(1, "processes of the run, on GPUs one each; they share every batch", low=1)
    sync_bn: bool = setting(False, "batch norm over the batches of all processes, not of each by itself")
    seed: int = setting(0, "seed of weights, sample order, augmentation and first medoids", low=0, high=2**32 - 1)
    seed_weights: int | None = setting(
        None, "another seed for the first weights alone; default: that of --seed", low=0, high=2**32 - 1
    )
    seed_order: int | None = setting(
        None, "another seed for the order of samples alone; default: that of --seed", low=0, high=2**32 - 1
    )
    seed_views: int | None = setting(
        None, "another seed for the augmentation alone; default: that of --seed", low=0, high=2**32 - 1
    )
    seed_method: int | None = setting(
        None, "another seed for the first medoids alone; default: that of --seed", low=0, high=2**32 - 1
    )
    deterministic: bool = setting(False, "same seed, same machine kind, same result, on a GPU too; slower there")
    evaluate_every: int | None = setting(
        None, "steps between evaluations; default: a tenth of the run, at least 20", low=1
    )
    save_every: int | None = setting(None, "steps between checkpoints; default: as evaluations", low=1)
    log_every: int = setting(50, "steps between lines of metrics.jsonl", low=1)
    loggers: str = setting(
        "auto",
        "where numbers go beside metrics.jsonl: tensorboard,wandb,mlflow or none; auto: TensorBoard if installed",
    )
    keep_facts: Literal["auto", "last", "every"] = setting(
        "auto",
        "facts of each unlabelled image: at the end of the run alone, or at every evaluation, too; auto: at every one "
        "where that costs little",
    )
    skip_unreadable: bool = setting(False, "leave out unreadable labelled images instead of stopping")
    cache: str | None = setting(None, "folder of decoded images; default: $SEMIFINE_CACHE or ~/.cache/semifine")

    def __post_init__(self) -> None:
        low, high = self.crop_scale
        if not 0 < low <= high <= 1:
            raise UserError(f"crop_scale must satisfy 0 < low <= high <= 1, not {low},{high}.")
        if self.pretrained and self.weights:
            raise UserError(
                "Give either pretrained or weights, not both: each names where the weights come from. "
                "With a preset that sets pretrained, add --no-pretrained."
            )

    @property
    def labelled_only_steps(self) -> int:
        return round(self.labelled_first * self.iterations)

    @property
    def evaluation_interval(self) -> int:
        return self.evaluate_every or max(20, self.iterations // 10)

    @property
    def save_interval(self) -> int:
        return self.save_every or self.evaluation_interval

    @property
    def stored_side(self) -> int:
        return self.store_size or round(self.image_size * 8 / 7)


@dataclass(frozen=True)
class RunSettings:
    """A whole run: data source and method by name, each with its own settings, and the training."""

    data: str
    method: str
    train: TrainSettings
    data_settings: Any
    method_settings: Any
    remarks: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """What was chosen for lack of a setting, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, in the form that ``settings.yaml`` and ``--config`` share."""
        return {
            "data": {"source": self.data, **dataclasses.asdict(self.data_settings)},
            "method": {"name": self.method, **dataclasses.asdict(self.method_settings)},
            **dataclasses.asdict(self.train),
        }


def resolve(layers: Sequence[Mapping[str, Any]]) -> RunSettings:
    """One run's settings from layers of flat keys, the later one winning.

    The preset of the data source, where there is one, lies below all layers, so that the embedded set
    trains a small network on small images unless told otherwise.
    """
    from semifine.data import sources
    from semifine.methods import method_class

    merged = {key: value for layer in layers for key, value in layer.items()}
    data = str(merged.get("data.source", "synthetic"))
    method = str(merged.get("method.name", "soc"))
    source_name, root = sources.resolve(data)
    merged = {**source_defaults(source_name), **merged}

    data_settings_class = sources.settings_class(source_name)
    chosen_method = method_class(method)
    method_settings_class = chosen_method.Settings
    groups: dict[str, dict[str, Any]] = {"": {}, "data": {}, "method": {}}
    for key, value in merged.items():
        group, _, name = key.rpartition(".")
        if key in ("data.source", "method.name"):
            continue
        if group not in groups:
            raise unknown_key(key, all_keys(data_settings_class, method_settings_class))
        groups[group][name] = value
    data_settings = build(data_settings_class, groups["data"], "data.")
    # Where it is not evaluated, the average is a part of the method.
    left_alone = set() if chosen_method.evaluates_average else {"ema"}
    suggested = _suggestions(source_name, data, data_settings, groups[""], left_alone)
    train = build(TrainSettings, {**suggested.values, **groups[""]})
    train = dataclasses.replace(train, weights=_absolute(train.weights), labels=_absolute(train.labels))
    return RunSettings(
        data=f"{source_name}:{root}" if root else source_name,  # absolute, to be found from any folder
        method=method,
        train=train,
        data_settings=data_settings,
        method_settings=build(method_settings_class, groups["method"], "method."),
        remarks=(f"chosen from the data: {', '.join(suggested.reasons)}",) if suggested.reasons else (),
    )


def _suggestions(
    source_name: str, data: str, data_settings: Any, given: Mapping[str, Any], left_alone: set[str]
) -> Suggestions:
    """What suits somebody's own photos, for settings that nobody gave; other sources are known."""
    from semifine.data.sources import OWN_PHOTOS, load_catalog
    from semifine.data.suggestions import SUGGESTED, Suggestions, suggest

    if source_name not in OWN_PHOTOS or given.keys() | left_alone >= SUGGESTED:
        return Suggestions()
    try:
        catalog = load_catalog(data, dataclasses.replace(data_settings, group_by=None))
        named = ("batch_size", "mu", "iterations")
        numbers = build(TrainSettings, {name: given[name] for name in named if name in given})
    except UserError:  # it will be said when the data is opened
        return Suggestions()
    return suggest(catalog, given.keys() | left_alone, numbers.batch_size, numbers.mu, numbers.iterations)


def _absolute(path: str | None) -> str | None:
    """The path in a form that can be found from any folder."""
    return str(Path(path).expanduser().absolute()) if path else path


def all_keys(data_settings_class: type, method_settings_class: type) -> list[str]:
    """Every key that a run with this source and this method takes."""
    return [
        "data.source",
        "method.name",
        *field_names(TrainSettings),
        *("data." + name for name in field_names(data_settings_class)),
        *("method." + name for name in field_names(method_settings_class)),
    ]


def flatten(nested: Mapping[str, Any]) -> dict[str, Any]:
    """``{"method": {"alpha": 5}}`` as ``{"method.alpha": 5}``; ``method: soc`` is short for its name."""
    short = {"data": "data.source", "method": "method.name"}
    flat: dict[str, Any] = {}
    for key, value in nested.items():
        if isinstance(value, Mapping):
            flat.update({f"{key}.{name}": inner for name, inner in value.items()})
        else:
            flat[short.get(key, key)] = value
    return flat


def read_settings_file(path: Path) -> dict[str, Any]:
    """The flat keys of a YAML settings file."""
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"Cannot read the settings file {path}: {error.strerror or error}.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"The settings file {path} is not valid YAML: {reason}.") from error
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise UserError(f"The settings file {path} must hold 'key: value' lines.")
    return flatten(loaded)


def read_train_settings(path: Path) -> TrainSettings:
    """The training settings of a settings file alone: the data need not be there any more."""
    values = {key: value for key, value in read_settings_file(path).items() if "." not in key}
    try:
        return build(TrainSettings, values)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_run_settings(path: Path, changed: Mapping[str, Any] | None = None) -> RunSettings:
    """All settings of a run, from the file that it wrote; a value that cannot be is told with the file's name.

    ``changed`` takes the place of what is written there.
    """
    values = read_begun_settings(path)
    try:
        return resolve([{**values, **(changed or {})}])
    except UserError as error:
        raise UserError(f"{path}: {error}") from error


def read_begun_settings(path: Path) -> dict[str, Any]:
    """The flat keys that a run wrote when it began, as they are written."""
    values = read_settings_file(path)
    missing = [key for key in ("data.source", "method.name", "iterations") if key not in values]
    if missing:
        raise UserError(f"{path} is damaged: it does not say '{missing[0]}'; bring back the whole file.")
    return values


def preset_names() -> list[str]:
    """Names that ``--preset`` takes."""
    return sorted(path.stem for path in PRESETS.glob("*.yaml"))


def read_preset(name: str) -> dict[str, Any]:
    """The flat keys of a shipped preset; its ``summary`` is for people and left out."""
    if name not in preset_names():
        raise UserError(f"Unknown preset '{name}'. Valid ones: {', '.join(preset_names())}.")
    return {key: value for key, value in read_settings_file(PRESETS / f"{name}.yaml").items() if key != "summary"}


def preset_summary(name: str) -> str:
    return str(read_settings_file(PRESETS / f"{name}.yaml").get("summary", ""))


def source_defaults(source_name: str) -> dict[str, Any]:
    """What a known data source suggests for training on it."""
    path = PRESETS / "datasets" / f"{source_name}.yaml"
    return read_settings_file(path) if path.exists() else {}


def write_settings(settings: RunSettings, path: Path) -> None:
    """Writes every resolved value, so that the file alone repeats the run."""
    write_atomically(path, yaml.safe_dump(settings.as_dict(), sort_keys=False, allow_unicode=True))
