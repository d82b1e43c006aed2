"""semifine ray"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from semifine.cli.main import Parser
from semifine.errors import UserError


def run(arguments: Sequence[str]) -> int:
    parser = Parser(
        prog="semifine ray",
        description="Run 'semifine train' in the workers of a Ray cluster, or of this machine where there is none. All "
        "machines must see the same files under the same names.",
        usage="semifine ray [--workers INT] [--gpus] train [DATA] --out RUN [OPTIONS OF TRAIN]",
        allow_abbrev=False,
    )
    parser.add_argument("--workers", type=int, default=2, metavar="INT", help="processes of the run (default: 2)")
    parser.add_argument("--gpus", action="store_true", help="give each process a GPU (default: CPUs)")
    ours, command = _split(arguments)
    options = parser.parse_args(ours)
    if not command:
        raise UserError("'semifine ray' needs the command to run: semifine ray --workers 4 train DATA --out RUN.")
    if options.workers < 1:
        raise UserError(f"--workers must be at least 1, not {options.workers}.")
    try:
        from ray.train import ScalingConfig
        from ray.train.torch import TorchTrainer
    except ImportError as error:
        raise UserError("'semifine ray' needs Ray: pip install 'semifine[ray]'.") from error

    trainer = TorchTrainer(
        _work,
        train_loop_config={"arguments": command, "folder": os.getcwd()},
        scaling_config=ScalingConfig(num_workers=options.workers, use_gpu=options.gpus),
    )
    try:
        trainer.fit()
    except Exception as error:  # whatever failed in a worker, Ray wraps it, each version in another kind
        raise UserError(
            f"The run in the Ray workers failed ({_first_cause(error)}); what they printed above says why."
        ) from error
    return 0


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """What is ours, and the command from the word 'train' on."""
    start = list(arguments).index("train") if "train" in arguments else len(arguments)
    return list(arguments[:start]), list(arguments[start:])


def _work(config: dict[str, Any]) -> None:
    """In a worker: Ray has set the names that torchrun would, and connected the processes."""
    from semifine.cli.main import main

    os.chdir(config["folder"])
    os.environ["TORCHELASTIC_RUN_ID"] = "ray"  # by this Fabric knows that the processes are started already
    os.environ["GROUP_RANK"] = os.environ.get("NODE_RANK", "0")
    code = main(config["arguments"])
    if code and code < 128:
        raise RuntimeError(f"semifine train ended with exit code {code}")


def _first_cause(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip().splitlines() or [type(error).__name__])[-1]
