"""Limits of the studio's connections: their number, and the time for a request to arrive."""

from __future__ import annotations

import asyncio
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_CONNECTIONS = 256
"""Open connections, enough for forty browser windows, which open at most six each."""
REQUEST_SECONDS = 10
"""Time from the first moment in which the server waits for a request until its headers and its body are complete."""
TOO_MANY = b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"


class LimitedProtocol(H11Protocol):
    """uvicorn's HTTP protocol, which closes connections above a limit and connections with a slow request.

    uvicorn's own ``limit_concurrency`` counts connections without a request, but leaves them open, so a program that
    sends nothing could lock out the page.
    """

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        if len(self.connections) > MAX_CONNECTIONS:
            transport.write(TOO_MANY)
            transport.close()
        else:
            self._watch_request()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def _watch_request(self) -> None:
        """Starts the timer if the request is incomplete, and stops it if not; more bytes do not restart it."""
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):
            self._stop_timer()
        elif self._timer is None:
            self._timer = self.loop.call_later(REQUEST_SECONDS, self.transport.close)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
