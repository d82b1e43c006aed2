"""The web server of the studio."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress

import uvicorn

from semifine.errors import UserError
from semifine.studio.app import Studio, create_app

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 3
"""Time for open connections to close when the studio stops."""


def listen(port: int) -> socket.socket:
    """Binds a socket that only this machine can reach. Port 0 selects a free port."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UserError(f"Port {port} cannot be used ({error}); omit --port to use a free port.") from error
    return listening


def serve(studio: Studio, listening: socket.socket, ready: Callable[[str], None]) -> None:
    """Serves until Ctrl-C or termination. Calls ``ready`` with the URL as soon as a browser may open it."""
    port = listening.getsockname()[1]
    token = secrets.token_urlsafe(24)
    config = uvicorn.Config(
        create_app(studio, token, port),
        log_level="warning",
        access_log=False,  # it would contain the token
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=SHUTDOWN_SECONDS,
    )
    listening.listen()  # connections wait from here on
    ready(f"http://{HOST}:{port}/{token}/")
    with suppress(KeyboardInterrupt):  # uvicorn raises it after the shutdown
        uvicorn.Server(config).run(sockets=[listening])
