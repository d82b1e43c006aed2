"""Serves the studio on this machine until it is stopped."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from semifine.errors import UserError
from semifine.studio.app import Studio, create_app

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
