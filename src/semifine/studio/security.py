"""Who may talk to the studio: only pages that it served itself, to somebody who knows its address."""

from __future__ import annotations

import secrets
from collections.abc import Iterable

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LARGEST_BODY = 64 * 1024

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the address holds the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


class Guard:
    """Refuses requests under a foreign name, from foreign pages, without the token, or too large.

    A page elsewhere could otherwise make a browser on this machine send requests here (cross-site requests, or a
    foreign name that is made to point to 127.0.0.1).
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str]) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = set(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            raise RuntimeError("the studio speaks http alone")
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        app = self._app if refusal is None else refusal

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        if host not in self._hosts:
            return PlainTextResponse("This name is not the studio's.", 421)
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host}":
            return PlainTextResponse("Requests of other pages are refused.", 403)
        foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if foreign and headers.get("sec-fetch-mode") != "navigate":  # somebody may follow a link to the studio
            return PlainTextResponse("Requests of other pages are refused.", 403)
        if scope["method"] not in ("GET", "HEAD"):
            if scope["method"] != "POST" or origin is None:
                return PlainTextResponse("Only the studio's own page may change anything.", 403)
            length = headers.get("content-length", "")
            if not length.isdigit() or int(length) > LARGEST_BODY:
                return PlainTextResponse("The request is too large.", 413)
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("The request must be JSON.", 415)
        token = scope["path"].encode().split(b"/", 2)[1:2]
        if not token or not secrets.compare_digest(token[0], self._token):
            return PlainTextResponse("The address lacks the studio's token; copy it from the terminal.", 403)
        return None
