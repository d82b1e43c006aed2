"""The settings of a training run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from semifine.errors import UserError
from semifine.fields import setting


@dataclass(frozen=True)
class TrainSettings:
    """What every run has; the settings of a method and of a data source stand beside their code."""

    iterations: int = setting(50_000, "training steps", low=1)
    batch_size: int = setting(32, "labeled images a step", low=1)
    mu: int = setting(5, "unlabeled images a step, as a multiple of the batch size", low=1)
    image_size: int = setting(224, "side of the square the network sees, in pixels", low=8, high=4096)
    store_size: int | None = setting(
        None, "shorter side at which images are kept; default: 8/7 of the image size", low=8
    )
    crop_scale: tuple[float, float] = setting((0.08, 1.0), "share of the image that a random crop covers")
    backbone: str = setting("resnet50", "any timm model by name, see 'semifine list backbones'")
    pretrained: bool = setting(False, "start from ImageNet weights (installed ones, else timm's)")
    weights: str | None = setting(
        None,
        "start from the weights in this file or run folder, see docs/how-to/starting_weights.md; default: fresh ones",
        is_path=True,
    )
    weights_head: Literal["auto", "keep", "fresh"] = setting(
        "auto",
        "the classifier in --weights: auto keeps it if it comes from a run on the same classes, fresh leaves it out",
    )
    labels: str | None = setting(
        None,
        "labels that people gave to unlabeled images: the studio's log, or a CSV file (path, label); default: none",
        is_path=True,
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
    supervised_warmup: float = setting(
        0.0, "share of the steps that learn from labeled images alone, before the unlabeled ones join", low=0, high=1
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
    keep_sample_stats: Literal["auto", "last", "every"] = setting(
        "auto",
        "facts of each unlabeled image: at the end of the run alone, or at every evaluation, too; auto: at every one "
        "where that costs little",
    )
    skip_unreadable: bool = setting(False, "leave out unreadable labeled images instead of stopping")
    cache: str | None = setting(
        None, "folder of decoded images; default: $SEMIFINE_CACHE or ~/.cache/semifine", is_path=True
    )

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
    def supervised_steps(self) -> int:
        return round(self.supervised_warmup * self.iterations)

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
    notes: tuple[str, ...] = dataclasses.field(default=(), compare=False)
    """What was chosen for lack of a setting, and why."""

    def as_dict(self) -> dict[str, Any]:
        """Nested plain values, in the form that ``settings.yaml`` and ``--config`` share."""
        return {
            "data": {"source": self.data, **dataclasses.asdict(self.data_settings)},
            "method": {"name": self.method, **dataclasses.asdict(self.method_settings)},
            **dataclasses.asdict(self.train),
        }


def derive_seed(seed: int, purpose: str) -> int:
    """A 63-bit seed for one purpose; the same on every machine and in every process."""
    digest = blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def seed_for(purpose: str, settings: TrainSettings, part: str = "") -> int:
    """The seed of weights, order, views or method: its own where the settings give one, else from the common seed."""
    own: int | None = getattr(settings, f"seed_{purpose}")
    return derive_seed(settings.seed if own is None else own, f"{part} {purpose}".strip())
