"""The command line: one module per command, imported when the command runs."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NoReturn

from semifine.cli.hints import check_options, unknown_command
from semifine.errors import Interrupted, OutOfMemory, UserError, address_space_limit, exhausted_memory
from semifine.files import NOT_WRITTEN
from semifine.processes import end_with_parent
from semifine.version import __version__

STARTED = time.perf_counter()
MAX_MESSAGE = 4000
"""Length of the longest error message; a list of all settings takes half of it."""

# OpenMP threads wait for each other by spinning. If another program uses the same cores, spinning makes a step up to
# twenty times slower. A short spin costs nothing on free cores.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

VERBS = {
    "demo": "train on the built-in data set and write a report",
    "prepare": "decode a data set and report what it contains",
    "train": "train a classifier from a few labeled and many unlabeled images",
    "experiment": "train with a published recipe, which may have several stages",
    "reproduce": "run the paper's experiments and print its tables",
    "studio": "label uncertain images in the browser",
    "evaluate": "measure accuracy on test or validation images",
    "predict": "classify images, with calibrated confidence",
    "export": "write a trained classifier as an ONNX file",
    "report": "write an HTML report of finished runs, and the paper's figures",
    "doctor": "check the installation, the devices and the disk space",
    "list": "list methods, data sets, backbones, presets or experiments",
}


WITHOUT_TORCH = ("doctor", "reproduce")
"""Commands that load PyTorch in other processes only, or that report its errors."""
LOAD_TORCH = """
import sys
try:
    import numpy, torch, semifine.training.fit
except ModuleNotFoundError:
    sys.exit(0)
numpy.eye(99) @ numpy.eye(99), torch.eye(99) @ torch.eye(99)
torch.empty(300_000_000, dtype=torch.uint8)
"""
"""Loads the libraries, lets them start their threads, and leaves some space for a small network.

A missing library is not an error here, because the command itself reports it."""
LARGE_ADDRESS_SPACE = 8 << 30
"""Limit of the address space in bytes from which loading PyTorch is not tried first."""


class _HelpAll(argparse._HelpAction):
    def __call__(self, parser: argparse.ArgumentParser, *_: object, **__: object) -> NoReturn:
        assert isinstance(parser, Parser)
        parser.short_help = {}
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An ``ArgumentParser`` that raises ``UserError`` with a hint instead of exiting."""

    short_help: Mapping[str, Sequence[str]] = {}
    """Options and positional arguments that ``--help`` shows, by group; all if empty."""

    def set_short_help(self, groups: Mapping[str, Sequence[str]]) -> None:
        """Limits ``--help`` to a few options, and adds ``--help-all``, which shows all.

        Args:
            groups: Names of options and positional arguments, by the title of their group.
        """
        self.short_help = groups
        self.add_argument("--help-all", action=_HelpAll, help="show all settings and exit")

    def format_help(self) -> str:
        if not self.short_help:
            return super().format_help()
        arguments = {action.dest: action for action in self._get_positional_actions()} | self._option_string_actions
        formatter = self._get_formatter()
        formatter.add_usage(self.usage, self._actions, self._mutually_exclusive_groups)
        formatter.add_text(self.description)
        for title, names in self.short_help.items():
            formatter.start_section(title)
            formatter.add_arguments([arguments[name] for name in names])
            formatter.end_section()
        formatter.add_text(f"'{self.prog} --help-all' shows all settings.")
        return formatter.format_help()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        check_options(self, args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        sentence = message[0].upper() + message[1:]
        raise UserError(f"{sentence}. '{self.prog} --help' shows the options.")


def add_device(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help=f"device to {verb} on; auto uses a GPU if available (default: auto)",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        choices=("auto", "last", "best_val", "probe", "interpolated"),
        default="auto",
        help="weights of the last step, of the best validation accuracy, of the linear probe, or between probe and "
        "last step; auto: the result of the run (default: auto)",
    )


def add_views(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--views",
        type=int,
        choices=(1, 2, 5, 10),
        default=1,
        help="average the predictions of several views of each image: 1: the center crop; 2: with its mirror image; 5: "
        "crops at the center and the corners; 10: with their mirror images (default: 1)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb and returns the exit code.

    Returns:
        0 on success, the ``exit_code`` of a ``UserError``, or 128 + n if signal n stopped the command. ``reproduce``
        returns 1 if a run failed.

    Example:
        >>> main(["--version"])  # doctest: +ELLIPSIS
        semifine ...
        0
    """
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    end_with_parent()
    try:
        return _dispatch(arguments)
    except UserError as error:
        return _fail(error)
    except Interrupted as stop:  # the verb has printed how to continue
        return stop.exit_code
    except KeyboardInterrupt:  # before anything could be saved, or a second Ctrl-C
        print("semifine: interrupted", file=sys.stderr)
        return Interrupted(signal.SIGINT).exit_code
    except BrokenPipeError:  # the reader of the output, such as `head`, has exited
        sys.stderr.close()
        return 0
    except (RuntimeError, MemoryError, ImportError, SystemError, OSError) as error:
        if memory := exhausted_memory(error):
            return _fail(OutOfMemory(memory, "process fewer images at once, or close other programs"))
        if not isinstance(error, OSError) or (error.filename is None and error.errno not in NOT_WRITTEN):
            raise
        return _fail(UserError(_file_problem(error)))


def _dispatch(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(help_text(), flush=True)
        return 0
    if arguments[0] in ("-V", "--version"):
        print(f"semifine {__version__}", flush=True)
        return 0
    verb = arguments[0]
    if verb not in VERBS:
        raise unknown_command(verb, list(VERBS))
    if verb not in WITHOUT_TORCH and not any(argument.lower().endswith(".onnx") for argument in arguments):
        _check_address_space()
    module = import_module(f"semifine.cli.{verb}")
    return int(module.run(arguments[1:]) or 0)


def _check_address_space() -> None:
    """Raises ``OutOfMemory`` if a limit of the address space does not allow to load PyTorch.

    Libraries abort their process if an allocation fails, so another process tries it. Without a limit, or with a high
    one, nothing is tried.
    """
    limit = address_space_limit()
    if limit is None or limit > LARGE_ADDRESS_SPACE:
        return
    if subprocess.run([sys.executable, "-c", LOAD_TORCH], capture_output=True, check=False).returncode:
        raise OutOfMemory("host", "remove it")


def _fail(error: UserError) -> int:
    message = str(error)
    if len(message) > MAX_MESSAGE:  # a value of a damaged file may have any length
        message = f"{message[:MAX_MESSAGE]}…"
    print(f"semifine: {message}", file=sys.stderr)
    return error.exit_code


def _file_problem(error: OSError) -> str:
    """Describes an error of a file: its name, the reason and the remedy."""
    file = os.fsdecode(error.filename2 or error.filename or "A file")
    advice = {
        errno.ENOSPC: "free some space on that disk",
        errno.EDQUOT: "free some of your disk quota",
        errno.EACCES: "check the permissions of the file and its parent folders",
    }.get(error.errno or 0, "check that path")
    reason = os.strerror(error.errno) if error.errno else error.strerror
    return f"{file} cannot be used: {reason}; {advice}."


def help_text() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()]
    return "\n".join(
        [
            "semifine: fine-grained image classification from a few labeled and many unlabeled photos",
            "",
            "Usage: semifine COMMAND [OPTIONS]      (semifine COMMAND --help shows the options)",
            "",
            *lines,
            "",
            "Try: semifine demo",
            f"Version {__version__}",
        ]
    )
