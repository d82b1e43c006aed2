"""Serves the studio on this machine, and finds the label log of a run."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import uvicorn

from semifine.config import read_train_settings
from semifine.data.extra_labels import labels_as_csv, read_labels
from semifine.data.label_log import is_sqlite
from semifine.errors import UserError
from semifine.files import write_atomically
from semifine.runs.folder import RunFolder
from semifine.studio.app import Studio, create_app


def log_of_run(run: Path) -> Path:
    """The log that the run learned from, to go on with it; else a file beside the run, which no training overwrites."""
    labels = read_train_settings(RunFolder(run).settings).labels
    if labels and Path(labels).is_file() and is_sqlite(Path(labels)):
        return Path(labels)
    return run.with_name(run.name + ".studio.db")


def export_labels(log: Path, file: Path) -> int:
    """Writes path and label of every undisputed image, and returns how many; an existing file is left alone."""
    if file.exists():
        raise UserError(f"{file} exists already: choose another name, or move it away.")
    if not log.exists():
        raise UserError(f"There are no labels yet: {log} does not exist.")
    pairs = read_labels(log).pairs
    write_atomically(file, labels_as_csv(pairs))
    return len(pairs)


HERE = "127.0.0.1"
PATIENCE = 3
"""Seconds that an open page may take to let go when the studio is stopped."""


def listen(port: int) -> socket.socket:
    """A socket that only programs on this machine can reach; port 0 takes any free one."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HERE, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(f"Port {port} cannot be used ({error}); leave --port out to take any free one.") from error
    return listening


def serve(studio: Studio, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Blocks until Ctrl-C or termination; ``ready`` gets the address when it can be opened."""
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    # No access log: every line of it would hold the token.
    config = uvicorn.Config(
        create_app(studio, token, port),
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=PATIENCE,
    )
    listening.listen()  # from here on a browser may come, and waits
    ready(f"http://{HERE}:{port}/{token}/")
    with suppress(KeyboardInterrupt):  # raised again once everything is closed
        uvicorn.Server(config).run(sockets=[listening])
