"""The settings of a training run."""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from semifine.augment.settings import AugmentOptions
from semifine.errors import UserError
from semifine.fields import setting


@dataclass(frozen=True)
class TrainSettings(AugmentOptions):
    """Settings of every run. Methods and data sources define their own settings beside their code.

    Example:
        >>> TrainSettings(iterations=1000).evaluation_interval
        100
    """

    iterations: int = setting(50_000, "training steps", low=1)
    time: str | None = setting(
        None,
        "time budget of the command, such as 10m or 1h: training takes as many steps as fit, at most --iterations",
    )
    batch_size: int = setting(32, "labeled images per step", low=1)
    mu: int = setting(5, "unlabeled images per step, as a multiple of the batch size", low=1)
    balance: bool = setting(
        False,
        "draw labeled images of each class equally often; chosen for own photos if the largest class has more than "
        "five times the labels of the smallest",
    )
    image_size: int = setting(224, "side of the square input of the network, in pixels", low=8, high=4096)
    store_size: int | None = setting(
        None, "shorter side of the decoded images in the store; default: 8/7 of the image size", low=8
    )
    backbone: str = setting("resnet50", "any timm model by name, see 'semifine list backbones'")
    backbone_args: str | None = setting(
        None, "further arguments of timm's model, such as pad_type=same or class_token=false,global_pool=avg"
    )
    mean: tuple[float, float, float] | None = setting(
        None, "mean of the color channels, for values in 0..1; default: as in the pretraining of the backbone"
    )
    std: tuple[float, float, float] | None = setting(
        None, "standard deviation of the color channels; default: as in the pretraining of the backbone"
    )
    drop_path: float = setting(
        0.0, "largest probability with which a residual branch of the backbone is skipped in training", low=0, high=0.9
    )
    pretrained: bool = setting(False, "start from ImageNet weights (an installed package, or timm's download)")
    weights: str | None = setting(
        None, "start from the weights in this file or run folder; default: random initialization", is_path=True
    )
    weights_head: Literal["auto", "keep", "fresh"] = setting(
        "auto",
        "part of the classifier in --weights to keep; auto: the classes that the earlier run knows; keep: all; "
        "fresh: nothing",
    )
    zero_init_last: bool = setting(
        True,
        "random initialization: the last normalization of each residual block starts at 0, as in timm",
    )
    labels: str | None = setting(
        None,
        "labels for unlabeled images: the studio's log, or a CSV file with the columns path and label; default: none",
        is_path=True,
    )
    probe: bool = setting(
        False,
        "first fit a linear classifier on the features of the pretrained network; training starts from it, and the "
        "better of both is the result",
    )
    head_init: Literal["probe", "random"] = setting(
        "probe", "with --probe: initial weights of the classifier, unless --weights contains a classifier"
    )
    trial: bool = setting(
        True,
        "with a probe and without validation images: first train on three quarters of the labels, to compare both on "
        "the others",
    )
    lr: float = setting(0.01, "learning rate", low=0)
    backbone_lr: float = setting(1.0, "learning rate of the backbone, relative to the heads", low=0)
    layer_decay: float = setting(
        1.0,
        "learning rate of each layer of the backbone relative to the layer after it; 1: the same for all layers",
        low=0.01,
        high=1,
    )
    optimizer: str = setting("sgd", "sgd, adamw, lamb or any other optimizer of timm by its name")
    clip_grad: float | None = setting(
        None, "largest norm of the gradient; longer ones are scaled down; default: no limit", low=0
    )
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    nesterov: bool = setting(True, "Nesterov momentum")
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    decay_exempt: Literal["bn", "bn+bias", "1d", "none"] = setting(
        "bn",
        "parameters without weight decay: those with 'bn' in their name, or also those with 'bias'; 1d: all norms, "
        "biases and position embeddings",
    )
    schedule: Literal["cos716", "half_cosine", "half_cosine_floor", "steps", "constant"] = setting(
        "cos716",
        "learning rate schedule: cosine to 0.195 of the rate, cosine to 0, cosine to a thousandth, divided by ten at "
        "60 % and at 80 %, or constant",
    )
    horizon: int | None = setting(None, "steps over which the schedule decays; default: all iterations", low=1)
    warmup: float = setting(
        0.0, "fraction of the horizon over which the learning rate rises linearly from 0", low=0, high=1
    )
    supervised_warmup: float = setting(
        0.0, "fraction of the steps that train on labeled images only, before unlabeled ones join", low=0, high=1
    )
    supervised_cooldown: float = setting(
        0.0, "fraction of the steps that train on labeled images only, at the end", low=0, high=1
    )
    ema: float = setting(
        0.999,
        "decay of the exponential moving average of the weights, which is evaluated; 0: the raw weights are evaluated; "
        "if not given, the average covers a tenth of the steps",
        low=0,
        high=1,
    )
    mixup: float = setting(
        0.0,
        "mixup: parameter of the Beta distribution of the weights with which images are mixed; 0: none",
        low=0,
    )
    cutmix: float = setting(
        0.0,
        "CutMix of labeled images: parameter of the Beta distribution of the share that a second image covers; with "
        "--mixup, each step uses one of both; 0: none",
        low=0,
    )
    train: Literal["all", "head", "norm", "lora"] = setting(
        "all",
        "weights to train; head: the classifier; norm: the classifier and the norms; lora: the classifier and low-rank "
        "updates of the linear layers of a transformer",
    )
    lora_rank: int = setting(8, "with --train lora: rank of the updates", low=1)
    train_stages: int | None = setting(
        None,
        "number of stages at the end of the backbone that are trained; the other stages are frozen, and their "
        "activations are computed once for a few versions of each view; default: the whole backbone is trained",
        low=1,
    )
    labeled_versions: int = setting(6, "with --train-stages: versions of the view of each labeled image", low=1)
    unlabeled_versions: int = setting(
        3,
        "with --train-stages: versions of the strong view of each unlabeled image; the weak view has one version less",
        low=1,
    )
    forward: Literal["split", "joint", "dp2"] = setting(
        "split",
        "forward passes of a step; split: one for each view, without gradient for views that only make labels; joint: "
        "one for all views; dp2: one for each half of the joint batch",
    )
    store: Literal["auto", "gpu", "host", "disk"] = setting(
        "auto",
        "where the decoded images are kept; auto: on the GPU if they fit, else in memory, else on disk",
        may_change=True,
    )
    compile: Literal["auto", "on", "off"] = setting(
        "auto", "torch.compile; auto: on a GPU, for 10000 steps or more", may_change=True
    )
    cuda_graphs: Literal["auto", "on", "off"] = setting(
        "auto", "record each step as one CUDA graph; auto: if possible", may_change=True
    )
    precision: Literal["auto", "fp32", "bf16", "fp16"] = setting(
        "auto", "floating-point precision of training; auto: bf16 on a GPU that supports it, else fp32"
    )
    device: Literal["auto", "cpu", "cuda"] = setting(
        "auto", "where to train; auto: on a GPU if there is one", may_change=True
    )
    on_nonfinite: Literal["stop", "skip"] = setting(
        "stop", "if a loss is not finite: stop, or skip that batch and continue", may_change=True
    )
    devices: int = setting(
        1,
        "number of processes, each with its own GPU if there are any; they share every batch",
        low=1,
        may_change=True,
    )
    sync_bn: bool = setting(False, "synchronize batch norm over all processes")
    seed: int = setting(0, "seed of weights, sample order, augmentation and first medoids", low=0, high=2**32 - 1)
    seed_weights: int | None = setting(
        None, "seed of the initial weights alone; default: --seed", low=0, high=2**32 - 1
    )
    seed_order: int | None = setting(None, "seed of the sample order alone; default: --seed", low=0, high=2**32 - 1)
    seed_views: int | None = setting(None, "seed of the augmentation alone; default: --seed", low=0, high=2**32 - 1)
    seed_method: int | None = setting(None, "seed of the first medoids alone; default: --seed", low=0, high=2**32 - 1)
    deterministic: bool = setting(
        False, "bit-identical results for the same seed on the same kind of machine, also on a GPU, where it is slower"
    )
    evaluate_every: int | None = setting(
        None, "steps between evaluations; default: a tenth of the run, at least 20", low=1, may_change=True
    )
    save_every: int | None = setting(
        None, "steps between checkpoints; default: same as evaluations", low=1, may_change=True
    )
    log_every: int = setting(50, "steps between lines of metrics.jsonl", low=1, may_change=True)
    loggers: str = setting(
        "auto",
        "further loggers besides metrics.jsonl: tensorboard,wandb,mlflow or none; auto: TensorBoard if installed",
        may_change=True,
    )
    keep_sample_stats: Literal["auto", "last", "every"] = setting(
        "auto",
        "when to write statistics of each unlabeled image: at the end only, or at every evaluation; auto: at every "
        "evaluation if that costs little",
        may_change=True,
    )
    cache: str | None = setting(
        None,
        "folder of decoded images; default: $SEMIFINE_CACHE or ~/.cache/semifine",
        is_path=True,
        may_change=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.supervised_warmup + self.supervised_cooldown > 1 and self.supervised_cooldown:
            raise UserError(
                f"supervised_warmup ({self.supervised_warmup}) and supervised_cooldown ({self.supervised_cooldown}) "
                "must be at most 1 together: lower one of them."
            )
        if self.time is not None:
            try:
                parse_duration(self.time)
            except ValueError as error:
                raise UserError(
                    f"time is '{self.time}'; give a number and its unit, such as 90s, 10m or 1h."
                ) from error
        if self.pretrained and self.weights:
            raise UserError(
                "Give either pretrained or weights, not both: each names where the weights come from. "
                "With a preset that sets pretrained, add --no-pretrained."
            )
        if self.train == "head" and self.train_stages is not None:
            raise UserError("Give either train head or train_stages, not both: train head freezes all stages.")
        if self.std is not None and min(self.std) <= 0:
            raise UserError(f"std must be three numbers above 0, not {','.join(map(str, self.std))}.")

    @property
    def trained_stages(self) -> int | None:
        """Number of stages at the end of the backbone that are not frozen; None if no stage is frozen."""
        return 0 if self.train == "head" else self.train_stages

    @property
    def network_options(self) -> dict[str, Any]:
        """Options of ``create_classifier``, with which a trained network is created again."""
        return {"backbone_args": self.backbone_args, "mean": self.mean, "std": self.std}

    @property
    def supervised_steps(self) -> int:
        """Number of steps at the start that train on labeled images only."""
        return round(self.supervised_warmup * self.iterations)

    @property
    def full_steps(self) -> range:
        """Steps that train on labeled and unlabeled images."""
        return range(self.supervised_steps, self.iterations - round(self.supervised_cooldown * self.iterations))

    @property
    def evaluation_interval(self) -> int:
        """Steps between evaluations."""
        return self.evaluate_every or max(20, self.iterations // 10)

    @property
    def save_interval(self) -> int:
        """Steps between checkpoints."""
        return self.save_every or self.evaluation_interval

    @property
    def stored_side(self) -> int:
        """Shorter side of the decoded images in the store."""
        return self.store_size or round(self.image_size * 8 / 7)


@dataclass(frozen=True)
class RunSettings:
    """All settings of a run: data source and method with their settings, and the training settings."""

    data: str
    method: str
    train: TrainSettings
    data_settings: Any
    method_settings: Any
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """Settings that were chosen automatically, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, in the format of ``settings.yaml`` and ``--config``."""
        return {
            "data": {"source": self.data, **dataclasses.asdict(self.data_settings)},
            "method": {"name": self.method, **dataclasses.asdict(self.method_settings)},
            **dataclasses.asdict(self.train),
        }


DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(seconds?|sec|s|minutes?|min|m|hours?|h)\s*")
UNITS = {"s": 1, "m": 60, "h": 3600}


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration.

    Raises:
        ValueError: If the text is not a positive duration. A number without a unit is none, because it may be meant in
            seconds or in minutes.

    Example:
        >>> parse_duration("90s"), parse_duration("10 min"), parse_duration("1h 30m")
        (90.0, 600.0, 5400.0)
    """
    parts = DURATION.findall(text.strip().lower())
    seconds = sum(float(number) * UNITS[unit[0]] for number, unit in parts)
    if DURATION.sub("", text.strip().lower()) or not seconds:
        raise ValueError("a duration must be positive and have a unit")
    return seconds


def derive_seed(seed: int, purpose: str) -> int:
    """Returns a 63-bit seed for one purpose, the same on every machine and in every process.

    Example:
        >>> derive_seed(0, "weights") == derive_seed(0, "weights")
        True
    """
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_for(purpose: str, settings: TrainSettings, part: str = "") -> int:
    """Returns the seed of ``weights``, ``order``, ``views`` or ``method``: ``seed_<purpose>`` if set, else ``seed``."""
    own: int | None = getattr(settings, f"seed_{purpose}")
    return derive_seed(settings.seed if own is None else own, f"{part} {purpose}".strip())


def may_change_on_resume(key: str) -> bool:
    """Whether a run may be resumed with another value of this setting.

    Such settings say where a run computes and what it writes. ``on_nonfinite`` changes results only for broken losses.

    Example:
        >>> may_change_on_resume("log_every"), may_change_on_resume("lr"), may_change_on_resume("method.alpha")
        (True, False, False)
    """
    return any(field.name == key and field.metadata["may_change"] for field in dataclasses.fields(TrainSettings))
