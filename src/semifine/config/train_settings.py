"""The settings of a training run."""

from __future__ import annotations

import dataclasses
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
    image_size: int = setting(224, "side of the square input of the network, in pixels", low=8, high=4096)
    store_size: int | None = setting(
        None, "shorter side of the decoded images in the store; default: 8/7 of the image size", low=8
    )
    backbone: str = setting("resnet50", "any timm model by name, see 'semifine list backbones'")
    pretrained: bool = setting(False, "start from ImageNet weights (an installed package, or timm's download)")
    weights: str | None = setting(
        None, "start from the weights in this file or run folder; default: random initialization", is_path=True
    )
    weights_head: Literal["auto", "keep", "fresh"] = setting(
        "auto",
        "the classifier in --weights: auto keeps it if it comes from a run on the same classes, fresh leaves it out",
    )
    zero_init_last: bool = setting(
        True,
        "random initialization: scale the last normalization of each residual block by 0, where timm does so",
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
    trial: bool = setting(
        True,
        "with a probe and without validation images: first train on three quarters of the labels, to compare both on "
        "the others",
    )
    lr: float = setting(0.01, "learning rate", low=0)
    backbone_lr: float = setting(1.0, "learning rate of the backbone, relative to the heads", low=0)
    optimizer: Literal["sgd", "adamw"] = setting("sgd", "optimizer")
    momentum: float = setting(0.9, "momentum of SGD", low=0, high=1)
    nesterov: bool = setting(True, "Nesterov momentum")
    weight_decay: float = setting(5e-4, "weight decay", low=0)
    decay_exempt: Literal["bn", "bn+bias", "none"] = setting(
        "bn", "parameters without weight decay: those with 'bn' in their name, or also those with 'bias'"
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
    ema: float = setting(
        0.999, "decay of the exponential moving average that is evaluated; 0 evaluates the raw model", low=0, high=1
    )
    mixup: float = setting(
        0.0,
        "mixup: parameter of the Beta distribution of the weights with which images are mixed; 0: none",
        low=0,
    )
    train_stages: int | None = setting(
        None,
        "number of stages at the end of the backbone that are trained; the other stages are frozen, and their "
        "activations are computed once for a few versions of each view; default: the whole backbone is trained",
        low=1,
    )
    labeled_versions: int = setting(6, "with --train-stages: versions of the view of each labeled image", low=1)
    unlabeled_versions: int = setting(
        3, "with --train-stages: versions of the strong view of each unlabeled image; of the weak view one less", low=1
    )
    forward: Literal["split", "joint", "dp2"] = setting(
        "split",
        "how views pass the network: each alone, label-making ones without gradient; all in one batch; in two halves",
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
        if self.time is not None:
            try:
                parse_duration(self.time)
            except ValueError as error:
                raise UserError(f"time is '{self.time}'; give a duration such as 90s, 10m or 1h.") from error
        if self.pretrained and self.weights:
            raise UserError(
                "Give either pretrained or weights, not both: each names where the weights come from. "
                "With a preset that sets pretrained, add --no-pretrained."
            )

    @property
    def supervised_steps(self) -> int:
        """Number of steps that train on labeled images only."""
        return round(self.supervised_warmup * self.iterations)

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


def parse_duration(text: str) -> float:
    """Returns the seconds of a duration.

    Raises:
        ValueError: If the text is not a positive number with the unit s, m or h.

    Example:
        >>> parse_duration("10m"), parse_duration("1.5h"), parse_duration("90")
        (600.0, 5400.0, 90.0)
    """
    factor = {"s": 1, "m": 60, "h": 3600}.get(text[-1:].lower())
    seconds = float(text[:-1]) * factor if factor else float(text)
    if not 0 < seconds < float("inf"):
        raise ValueError("a duration must be positive")
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
