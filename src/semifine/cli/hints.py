"""Hints for mistyped commands and options, and for options that other programs have."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from semifine.errors import UserError


class Synonym(NamedTuple):
    """Names that people know from other programs."""

    names: tuple[str, ...]
    known: str
    """The option or positional argument of semifine; the hint applies to commands that have it."""
    hint: str = ""
    """What to do; by default, asks whether ``known`` is meant."""


OPTIONS = (
    Synonym(
        ("--epochs", "--epoch", "--num-epochs", "--n-epochs", "--max-epochs", "-e"),
        "--iterations",
        "Training is measured in steps: use '--iterations' (labeled photos / batch size steps are one epoch).",
    ),
    Synonym(("--duration", "--max-time", "--time-limit", "--time-budget", "--minutes", "--hours"), "--time"),
    Synonym(("--steps", "--num-steps", "--max-steps", "--total-steps", "--iters", "--max-iter"), "--iterations"),
    Synonym(("--optim", "--opt"), "--optimizer"),
    Synonym(("--learning-rate", "--learningrate", "--base-lr"), "--lr"),
    Synonym(("--lr-schedule", "--lr-scheduler", "--scheduler"), "--schedule"),
    Synonym(("--wd", "--decay"), "--weight-decay"),
    Synonym(("--bs", "--batch", "-b"), "--batch-size"),
    Synonym(("--num-workers", "--n-workers", "--threads", "-j"), "--workers"),
    Synonym(("--workers", "--num-workers", "--parallel", "-j"), "--jobs"),
    Synonym(
        ("--workers", "--num-workers", "--n-workers", "--threads", "-j"),
        "",
        "All CPU cores are used; on Linux, 'taskset -c 0-3 semifine ...' limits them.",
    ),
    Synonym(
        ("--gpu", "--gpus", "--num-gpus", "--n-gpus", "--gpu-id"),
        "--devices",
        "Use '--device cuda' for one GPU, or '--devices N' for N GPUs.",
    ),
    Synonym(("--gpu", "--gpus", "--gpu-id", "--cuda", "--use-gpu"), "--device", "Use '--device cuda'."),
    Synonym(("--cpu", "--no-cuda", "--no-gpu"), "--device", "Use '--device cpu'."),
    Synonym(
        ("--model", "--model-name", "--arch", "--architecture", "--network", "--net"),
        "--backbone",
        "Use '--backbone' for the network and '--method' for the training method.",
    ),
    Synonym(("--img-size", "--imgsz", "--input-size", "--resolution", "--size"), "--image-size"),
    Synonym(("--output", "--output-dir", "--out-dir", "--outdir", "--save-dir", "--save", "-o"), "--out"),
    Synonym(("--ckpt", "--init-weights", "--from"), "--weights"),
    Synonym(("--random-seed", "--random-state", "--manual-seed"), "--seed"),
    Synonym(("--amp", "--fp16", "--bf16", "--half"), "--precision"),
    Synonym(("--distributed", "--ddp", "--world-size", "--nproc"), "--devices"),
    Synonym(("--topk", "--top-k", "-k"), "--top"),
    Synonym(
        ("--data", "--dataset", "--data-dir", "--data-path", "--train-dir", "--input", "-d"),
        "DATA",
        "The data set is an argument without a name: 'semifine train DATA --out RUN'.",
    ),
    Synonym(("--model", "--run", "--weights", "--ckpt"), "MODEL", "The model is the first argument, without a name."),
    Synonym(
        ("--model", "--run", "--weights", "--ckpt"),
        "RUN",
        "The run folder is the first argument, without a name.",
    ),
    Synonym(
        ("--data", "--dataset", "--input", "--images", "--source", "--test-dir", "-i"),
        "PATH",
        "Paths of photos follow the run folder, without a name.",
    ),
)
"""Options of other programs; the first entry that fits the command applies."""

COMMANDS = {
    "fit": "train",
    "finetune": "train",
    "fine-tune": "train",
    "test": "evaluate",
    "eval": "evaluate",
    "validate": "evaluate",
    "score": "evaluate",
    "infer": "predict",
    "inference": "predict",
    "classify": "predict",
    "label": "studio",
    "annotate": "studio",
    "convert": "export",
    "onnx": "export",
    "plot": "report",
    "check": "doctor",
    "info": "doctor",
    "help": "--help",
    "version": "--version",
}
"""Commands of other programs."""


def unknown_command(name: str, commands: Sequence[str]) -> UserError:
    """Returns the error for an unknown command.

    Example:
        >>> unknown_command("evaluat", ["train", "evaluate"])
        UserError("Unknown command 'evaluat'. Did you mean 'evaluate'? Valid commands: train, evaluate.")
    """
    near = _closest(name, [*commands, *COMMANDS])
    near = COMMANDS.get(near, near)
    hint = f" Did you mean '{near}'?" if near else ""
    return UserError(f"Unknown command '{name}'.{hint} Valid commands: {', '.join(commands)}.")


def check_options(parser: argparse.ArgumentParser, arguments: Sequence[str]) -> None:
    """Raises ``UserError`` for the first unknown option. argparse would report its value, or only a missing option."""
    known = parser._option_string_actions
    for argument in arguments:
        if argument == "--":
            return
        name = argument.partition("=")[0]
        is_value = len(name) < 2 or " " in argument or parser._negative_number_matcher.match(argument)
        if name.startswith("-") and name not in known and not is_value:
            hint = option_hint(parser, name)
            hint = f" {hint}" if hint else ""
            everything = "--help-all" if "--help-all" in known else "--help"
            raise UserError(f"Unknown option '{name}'.{hint} '{parser.prog} {everything}' lists all options.")


def option_hint(parser: argparse.ArgumentParser, name: str) -> str:
    """Returns what to do instead of using an unknown option; empty if nothing is similar."""
    options = list(parser._option_string_actions)
    known = {*options, *(str(action.metavar) for action in parser._get_positional_actions()), ""}
    spelled = name.lower().replace("_", "-")
    if spelled in options:
        return _did_you_mean(spelled)
    for synonym in OPTIONS:
        if spelled in synonym.names and synonym.known in known:
            return synonym.hint or _did_you_mean(synonym.known)
    return _did_you_mean(_setting(name, options) or _closest(spelled, options))


def _did_you_mean(option: str) -> str:
    return f"Did you mean '{option}'?" if option else ""


def _closest(name: str, names: Sequence[str]) -> str:
    return next(iter(difflib.get_close_matches(name.lower(), names, n=1)), "")


def _setting(name: str, options: Sequence[str]) -> str:
    """Returns the option for a setting of a method or data source that was given without its prefix."""
    if "--method" not in options:  # the command has no such settings
        return ""
    wanted = name.strip("-").replace("-", "_").lower()
    return next((f"--{setting}" for setting in _dotted_settings() if setting.partition(".")[2] == wanted), "")


def _dotted_settings() -> Iterator[str]:
    # Slow: imports torch. Only an unknown option needs them.
    from semifine.data.sources import all_sources
    from semifine.fields import field_names
    from semifine.methods.registry import method_class, method_names

    for source in all_sources().values():
        yield from (f"data.{field}" for field in field_names(source.settings_class))
    for method in method_names():
        yield from (f"method.{field}" for field in field_names(method_class(method).Settings))
