"""Pretrained weights: files of other projects, and matching of tensor names."""

from __future__ import annotations

import math
import re
import zipfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors.torch import load_file
from timm.layers.pos_embed import resample_abs_pos_embed
from torch import Tensor, nn

from semifine.errors import UserError, first_few
from semifine.models.classifier import Classifier

# Keys of the network in a checkpoint, in order of preference: averaged weights come first, because their authors
# evaluate them. PyContrast's `model_ema` is not listed; it is the key encoder of MoCo.
STATE_DICT_KEYS = (
    "state_dict_ema",  # timm
    "eval_model",  # SoC
    "ema_model",  # TorchSSL
    "model_state_dict",  # Su et al., where `model` is the name of the backbone
    "state_dict",  # MoCo, timm, the iNaturalist network
    "model",  # PyContrast, torchvision's training scripts
    "train_model",
)

# Classes of other objects in checkpoints. They are ignored, so their code never runs.
IGNORED_CLASSES = (
    "argparse.Namespace",
    "numpy.dtype",
    "numpy.ndarray",
    *(f"numpy.{core}.multiarray.{name}" for core in ("core", "_core") for name in ("scalar", "_reconstruct")),
    "pathlib.PosixPath",
    "pathlib.WindowsPath",
)


class _IgnoredObject:
    """Replaces objects of IGNORED_CLASSES: accepts any arguments and state without keeping them."""

    def __new__(cls, *_: Any) -> _IgnoredObject:
        return super().__new__(cls)

    def __setstate__(self, _: Any) -> None:
        pass


def read_state_dict(path: Path) -> dict[str, Tensor]:
    """Reads the tensors of a network from a .safetensors or PyTorch file. Code in the file is never executed.

    Raises:
        UserError: If the file is missing, damaged, or contains no tensors.
    """
    if not path.is_file():
        raise UserError(f"The weights file {path} does not exist: check the path.")
    if path.suffix == ".safetensors":
        return _read_safetensors(path)
    return _network(_read_pickle(path), path)


def _read_safetensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except Exception as error:  # safetensors raises its own exception types
        raise UserError(f"The weights file {path} cannot be read: it is damaged or not a safetensors file.") from error


def load_tensors(path: Path) -> Any:
    """Reads a file of ``torch.save`` without executing code; raises many kinds of errors for a damaged file.

    Example:
        >>> torch.save({"step": 3}, "state.pt")
        >>> load_tensors(Path("state.pt"))
        {'step': 3}
    """
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            # PyTorch compresses nothing. A small compressed file could become larger than the memory.
            if sum(member.file_size for member in archive.infolist()) > path.stat().st_size:
                raise ValueError("its content is compressed")
    return torch.load(path, map_location="cpu", weights_only=True)


def _read_pickle(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([(_IgnoredObject, name) for name in IGNORED_CLASSES]):
            return load_tensors(path)
    except Exception as error:  # torch, pickle and zipfile raise different types
        foreign = re.search(r"GLOBAL ([\w.]+)", str(error))
        damaged = "it is damaged or was not written by torch.save"
        reason = f"it contains '{foreign[1]}', but only tensors can be read" if foreign else damaged
        raise UserError(f"The weights file {path} cannot be read: {reason}.") from error


def _network(loaded: Any, path: Path) -> dict[str, Tensor]:
    keys = loaded if isinstance(loaded, Mapping) else {}
    table = next((keys[key] for key in STATE_DICT_KEYS if isinstance(keys.get(key), Mapping)), keys)
    tensors = {str(name): value for name, value in table.items() if isinstance(value, Tensor)}
    if not tensors:
        found = f", only the keys {', '.join(map(str, list(keys)[:8]))}" if keys else ""
        raise UserError(f"The weights file {path} contains no state dict{found}.")
    return tensors


# A counter that old PyTorch versions did not save; training does not use it.
IGNORED_BUFFER = "num_batches_tracked"


@dataclass(frozen=True)
class LoadReport:
    """Which tensors of the backbone were loaded."""

    source: str
    head: bool
    """Whether the classification head was loaded."""
    matched: list[str]
    missing: list[str]
    wrong_shape: dict[str, dict[str, list[int]]]
    """Shapes in the file and in the network by name."""
    unexpected: list[str]
    """Unused tensors of the file."""
    new_classes: tuple[str, ...] = ()
    """Classes that the loaded classification head does not know; their rows keep their initial values."""

    @property
    def total(self) -> int:
        """Number of tensors of the backbone."""
        return len(self.matched) + len(self.missing) + len(self.wrong_shape)

    def as_dict(self) -> dict[str, Any]:
        """Content of ``weights.json``."""
        lists = {name: getattr(self, name) for name in ("matched", "missing", "wrong_shape", "unexpected")}
        return {
            "source": self.source,
            "head": "partly kept" if self.new_classes else "kept" if self.head else "fresh",
            "new_classes": list(self.new_classes),
            "counts": {name: len(names) for name, names in lists.items()},
            **lists,
        }

    def __str__(self) -> str:
        counts = [
            (len(self.missing), "missing"),
            (len(self.wrong_shape), "with another shape"),
            (len(self.unexpected), "unused tensors in the file"),
        ]
        differences = ", ".join(f"{count} {name}" for count, name in counts if count)
        head = "its classifier" if self.head else "a fresh classifier"
        if self.new_classes:
            head += f" for the classes that it knows, and {len(self.new_classes)} new: {first_few(self.new_classes)}"
        matched = f"{len(self.matched)} of {self.total} backbone tensors from {self.source}"
        return f"{matched}{f' ({differences})' if differences else ''}, with {head}"


class ClassNames(NamedTuple):
    """Names of the classes of a weights file and of a network, in the order of their rows in the head."""

    file: Sequence[str]
    network: Sequence[str]


def load_matching_weights(
    classifier: Classifier,
    state: Mapping[str, Tensor],
    source: str,
    keep_head: bool,
    names: ClassNames | None = None,
) -> LoadReport:
    """Loads the tensors of ``state`` with matching names and shapes into the classifier.

    Args:
        classifier: The network; it does not change if an error is raised.
        state: Tensors by name, possibly with a prefix such as ``module.encoder.``.
        source: Where the tensors are from, for messages.
        keep_head: Whether to load the classification head, too.
        names: If given, rows of the head are loaded by the names of their classes.

    Raises:
        UserError: If fewer than half of the backbone's tensors match, or the head does not fit.
    """
    own = classifier.backbone.state_dict()
    prefix = find_prefix(state, own)
    found = {name: state[prefix + name] for name in own if prefix + name in state}
    found = {name: _resize_position_embedding(classifier.backbone, name, value) for name, value in found.items()}
    fitting = {name: value for name, value in found.items() if value.shape == own[name].shape}
    head = _read_head(classifier, state, prefix, source, names) if keep_head else {}
    heads = {name: tensors for name in classifier.heads if (tensors := _read_method_head(classifier, name, state))}
    used = {prefix + name for name in found} | set(head)
    used |= {f"heads.{name}.{key}" for name, tensors in heads.items() for key in tensors}
    report = LoadReport(
        source=source,
        head=bool(head),
        matched=[name for name in fitting if IGNORED_BUFFER not in name],
        missing=[name for name in own if name not in found and IGNORED_BUFFER not in name],
        wrong_shape={
            name: {"file": list(value.shape), "network": list(own[name].shape)}
            for name, value in found.items()
            if name not in fitting
        },
        unexpected=[name for name in state if name not in used],
        new_classes=tuple(name for name in names.network if name not in names.file) if names else (),
    )
    _check_enough(report)
    classifier.backbone.load_state_dict(fitting, strict=False)
    for name, tensors in heads.items():
        classifier.heads[name].load_state_dict(tensors)
    if head:
        weight, bias = head.values()
        classifier.head.load_state_dict({"weight": weight, "bias": bias})
    return report


def _resize_position_embedding(backbone: nn.Module, name: str, value: Tensor) -> Tensor:
    """Interpolates the position embedding (1, N, D) of a vision transformer to the image size of the backbone."""
    own = getattr(backbone, name, None) if name == "pos_embed" else None
    if own is None or own.shape == value.shape or own.ndim != 3 or own.shape[::2] != value.shape[::2]:
        return value
    grid = list(getattr(getattr(backbone, "patch_embed", None), "grid_size", ()))
    patches = math.prod(grid)
    prefix = own.shape[1] - patches
    side = math.isqrt(max(value.shape[1] - prefix, 0))
    if prefix < 0 or side**2 != value.shape[1] - prefix:
        return value
    resized: Tensor = resample_abs_pos_embed(value.float(), grid, [side, side], num_prefix_tokens=prefix)
    return resized


def _read_method_head(classifier: Classifier, name: str, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a method's head if they fit: SimMatch continues with the projection of MoCo."""
    own = classifier.heads[name].state_dict()
    found = {key: state[f"heads.{name}.{key}"] for key in own if f"heads.{name}.{key}" in state}
    return found if {key: value.shape for key, value in found.items()} == {k: v.shape for k, v in own.items()} else {}


def find_prefix(names: Collection[str], own: Collection[str]) -> str:
    """Returns the most frequent prefix of the backbone's names in a file, such as ``module.encoder.``.

    MoCo saves two encoders with the same names; the query encoder is the trained one.

    Example:
        >>> find_prefix(["module.conv1.weight", "module.bn1.bias", "queue"], {"conv1.weight", "bn1.bias"})
        'module.'
    """
    counts: Counter[str] = Counter()
    for name in names:
        parts = name.split(".")
        endings = (".".join(parts[start:]) for start in range(len(parts)))
        counts.update(name.removesuffix(ending) for ending in endings if ending in own)
    return max(counts, key=lambda prefix: (counts[prefix], "encoder_k" not in prefix), default="")


def _read_head(
    classifier: Classifier, state: Mapping[str, Tensor], prefix: str, source: str, names: ClassNames | None
) -> dict[str, Tensor]:
    """Returns weight and bias of the classification head under their names in the file, in the order of the network."""
    for layer in _head_names(classifier, prefix):
        head = {name: state[name] for name in (f"{layer}.weight", f"{layer}.bias") if name in state}
        if len(head) < 2:
            continue
        own = classifier.head.state_dict()
        theirs, ours = tuple(head[f"{layer}.weight"].shape), tuple(own["weight"].shape)
        expected = ours if names is None else (len(names.file), *ours[1:])
        if theirs != expected:
            raise UserError(
                f"The classifier in {source} has {_describe(theirs)}, this one {_describe(expected)}; "
                "load only the backbone with --weights-head fresh."
            )
        return head if names is None else {key: _by_name(own[key.split(".")[-1]], head[key], names) for key in head}
    raise UserError(f"There is no classifier in {source}; load only the backbone with --weights-head fresh.")


def _by_name(own: Tensor, theirs: Tensor, names: ClassNames) -> Tensor:
    """Returns ``own`` with the rows of the classes that the file knows."""
    known = [(row, names.file.index(name)) for row, name in enumerate(names.network) if name in names.file]
    rows, rows_of_file = (torch.tensor(column) for column in zip(*known, strict=True))
    return own.index_copy(0, rows, theirs[rows_of_file].to(own.dtype))


def _head_names(classifier: Classifier, prefix: str) -> list[str]:
    """Returns possible names of the classification head; the layer after an encoder is a projection."""
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
        examples.append(f"missing are {_some(report.missing)}")
    if report.wrong_shape:
        examples.append(f"different shapes have {_some(list(report.wrong_shape))}")
    if report.unexpected:
        examples.append(f"the file has {_some(report.unexpected)}")
    raise UserError(
        f"Only {len(report.matched)} of {report.total} tensors of the backbone are in {report.source}: "
        f"{'; '.join(examples)}. Is it a file of another backbone, or does it use other tensor names than timm?"
    )


def _some(names: list[str]) -> str:
    return ", ".join(f"'{name}'" for name in names[:3]) + (", ..." if len(names) > 3 else "")


def load_weights_file(
    classifier: Classifier, path: Path, keep_head: bool, names: ClassNames | None = None
) -> LoadReport:
    """Loads the weights of another training; docs/how-to/starting_weights.md lists the supported files."""
    return load_matching_weights(classifier, read_state_dict(path), str(path), keep_head, names)
