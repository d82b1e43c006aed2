"""The command line. Each verb is a file of this folder; heavy imports wait until a verb needs them."""

from __future__ import annotations

import argparse
import errno
import os
import signal
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from semifine.errors import NO_MEMORY, UserError, exhausted_memory
from semifine.version import __version__

STARTED = time.perf_counter()

# Threads of torch's CPU code wait for each other by spinning. Where another program wants the same cores, a step
# then takes up to twenty times as long; a short spin costs nothing where cores are free.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

VERBS = {
    "demo": "train on the embedded data set and write a result page",
    "prepare": "decode a data set once and report what is in it",
    "train": "train a classifier from a few labeled and many unlabeled images",
    "ray": "train in the workers of a Ray cluster",
    "experiment": "train by a published recipe of one or several stages",
    "reproduce": "run the paper's comparison and print its tables",
    "studio": "label what a run is unsure of, on a page in the browser",
    "evaluate": "measure a trained classifier on its test or validation images",
    "predict": "say what is in images, how sure that is, and what else they could be",
    "export": "write a trained classifier as one file for other programs",
    "report": "write a page about finished runs, and the figures of the paper",
    "doctor": "say what is installed, what devices there are, and what would go wrong",
    "list": "show methods, datasets, backbones, presets or experiments",
}

# 128 + signal number is what shells expect of an interrupted program
INTERRUPTED = 128


class Parser(argparse.ArgumentParser):
    """argparse whose mistakes are one sentence, like every other mistake of a user."""

    def error(self, message: str) -> NoReturn:
        sentence = message[0].upper() + message[1:]
        raise UserError(f"{sentence}. '{self.prog} --help' shows the options.")


def add_device(parser: argparse.ArgumentParser, doing: str) -> None:
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda"),
        default="auto",
        help=f"where to {doing}; auto: on a GPU where there is one (default: auto)",
    )


def add_checkpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--checkpoint",
        choices=("last", "best_val"),
        default="last",
        help="weights of the last step, or of the best validation accuracy (default: last)",
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a verb; returns 0, or 2 for a user's mistake, or 128 + n when stopped by signal n."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        if not arguments or arguments[0] in ("-h", "--help"):
            print(help_text(), flush=True)
            return 0
        if arguments[0] in ("-V", "--version"):
            print(f"semifine {__version__}", flush=True)
            return 0
        return _run_verb(arguments[0], arguments[1:])
    except UserError as error:
        print(f"semifine: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:  # before there is anything to save, or for the second time
        print("semifine: stopped at once", file=sys.stderr)
        return INTERRUPTED + signal.SIGINT
    except BrokenPipeError:  # the reader of our output, say `head`, has gone
        sys.stderr.close()
        return 0
    except OSError as error:
        if error.filename is None and error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        print(f"semifine: {_file_problem(error)}", file=sys.stderr)
        return 2
    except (RuntimeError, MemoryError) as error:
        if not (whose := exhausted_memory(error)):
            raise
        print(f"semifine: The memory of {whose} {NO_MEMORY}: give it less at a time.", file=sys.stderr)
        return 2


def _run_verb(verb: str, arguments: list[str]) -> int:
    if verb not in VERBS:
        raise UserError(f"Unknown command '{verb}'. Valid ones: {', '.join(VERBS)}.")
    module = import_module(f"semifine.cli.{verb}")
    return int(module.run(arguments) or 0)


def _file_problem(error: OSError) -> str:
    """What the system refuses about a file is the user's to mend, whichever file it is."""
    file = os.fsdecode(error.filename2 or error.filename or "A file")
    advice = {
        errno.ENOSPC: "make room on that disk",
        errno.EDQUOT: "make room in your quota",
        errno.EACCES: "look at the permissions of it and of the folders above",
    }.get(error.errno or 0, "look at what is there")
    return f"{file} cannot be used: {error.strerror}; {advice}."


def help_text() -> str:
    width = max(map(len, VERBS))
    lines = [f"  {verb:<{width}}  {text}" for verb, text in VERBS.items()]
    return "\n".join(
        [
            "semifine: tell very similar classes apart, from a few labeled photos and many unlabeled ones",
            "",
            "Usage: semifine COMMAND [OPTIONS]      (semifine COMMAND --help shows the options)",
            "",
            *lines,
            "",
            "Try: semifine demo",
            f"Version {__version__}",
        ]
    )
