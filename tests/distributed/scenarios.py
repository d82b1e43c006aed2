"""Runs of one, two and four processes, all in one folder for the tests to look at: python scenarios.py FOLDER.

Processes are forked when all code is loaded, and find what torchrun would tell them; that torchrun and the command
start theirs is tested with the real ones.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from semifine.errors import Interrupted, UserError
from semifine.methods.soc import SoC
from semifine.training.fit import fit
from semifine.training.progress import Display
from tests.conftest import tiny_settings, tiny_teacher, trained_methods

STEPS = 50
STOP = 20
"""Step after which runs are stopped, fail or are killed."""
SECONDS_TO_END = 60
"""Seconds within which all processes end when one fails, as documented in docs/how-to/several_gpus.md."""
# Without batch norm and with small steps: what is left are rounding errors. The test images
# fill no whole number of batches, and cannot be dealt out evenly.
NETWORK = {
    "backbone": "test_convnext",
    "image_size": 32,
    "iterations": STEPS,
    "lr": 0.01,
    "log_every": 5,
    "save_every": 10,
}
NETWORK |= {"evaluate_every": 25, "data__test_per_class": 5}
NETWORK["supervised_warmup"] = 0.1  # steps that do not use the heads of the method


class Silent(Display):
    def __init__(self) -> None:
        super().__init__(quiet=True)


class Stopping(Silent):
    """Sends the signal that stops a run."""

    def log_metrics(self, step: int, *_: Any) -> None:
        if step == STOP:
            os.kill(os.getpid(), signal.SIGTERM)


def train_method(name: str, out: Path, display: Display | None = None) -> None:
    supervised = str(out.parents[1] / "one" / "supervised")
    own = {"self_training": {"method__teacher": supervised}, "vote": {"method__voters": (supervised,)}}
    fit(tiny_settings(name, **NETWORK, **own.get(name, {})), out, resume=True, display=display or Silent())


def in_processes(count: int, work: Callable[[int], None]) -> dict[str, Any]:
    """Runs ``work(rank)`` in ``count`` processes and returns their exit codes and error messages.

    Processes that are still running a minute after the first failure are killed, which their exit codes show.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    reader, writer = os.pipe()
    children = {os.fork() or _be_process(rank, count, port, work, writer): rank for rank in range(count)}
    os.close(writer)
    codes, deadline = [0] * count, float("inf")
    while children:
        child, status = os.waitpid(-1, os.WNOHANG)
        if child:
            code = codes[children.pop(child)] = os.waitstatus_to_exitcode(status)
            deadline = min(deadline, time.monotonic() + SECONDS_TO_END) if code else deadline
        elif time.monotonic() > deadline:
            for late in children:
                os.kill(late, signal.SIGKILL)
        time.sleep(0.01)
    with os.fdopen(reader, encoding="utf-8") as said:
        return {"codes": codes, "said": said.read()}


def _be_process(rank: int, count: int, port: int, work: Callable[[int], None], writer: int) -> int:
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "scenario"}
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "GROUP_RANK": 0}
    if count > 1:
        os.environ.update(address | {name: str(value) for name, value in numbers.items()})
    code = 1
    try:
        work(rank)
        code = 0
    except UserError as error:
        os.write(writer, f"{rank}: {error}\n".encode())
        code = 2
    except Interrupted as stop:
        code = 128 + stop.signal_number
    except BaseException:
        os.write(writer, f"{rank}: {traceback.format_exc()}".encode())
    os._exit(code)


def failing(rank: int, out: Path, fail: Callable[[], None]) -> None:
    """Process 1 fails in the middle of a step."""
    forward = SoC.forward

    def fail_once(self: SoC, networks: Any, batch: Any, progress: Any) -> Any:
        if rank == 1 and progress.step == STOP + 3:
            fail()
        return forward(self, networks, batch, progress)

    SoC.forward = fail_once  # type: ignore[method-assign]
    train_method("soc", out)


def raise_user_error() -> None:
    raise UserError("The cable was cut.")


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    tiny_teacher()  # before two processes write it at the same time
    names = sorted(trained_methods(), key=lambda name: name in ("self_training", "vote"))  # after supervised
    outcomes = {
        where: in_processes(count, lambda _, where=where: [train_method(name, folder / where / name) for name in names])
        for where, count in (("one", 1), ("two", 2))
    }

    def run(name: str, begun_as: str | None, count: int, work: Callable[[int, Path], None]) -> None:
        out = folder / name
        if begun_as:
            shutil.copytree(folder / begun_as, out, symlinks=True)
        outcomes[name] = in_processes(count, lambda rank: work(rank, out))

    run("stopped", None, 2, lambda rank, out: train_method("soc", out, Silent() if rank else Stopping()))
    run("resumed-by-1", "stopped", 1, lambda _, out: train_method("soc", out))
    run("resumed-by-4", "stopped", 4, lambda _, out: train_method("soc", out))
    run("failed", "stopped", 2, lambda rank, out: failing(rank, out, raise_user_error))
    run("killed", "stopped", 2, lambda rank, out: failing(rank, out, lambda: os.kill(os.getpid(), signal.SIGKILL)))
    run("failed-and-resumed", "failed", 2, lambda _, out: train_method("soc", out))
    run("killed-and-resumed", "killed", 2, lambda _, out: train_method("soc", out))
    (folder / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
