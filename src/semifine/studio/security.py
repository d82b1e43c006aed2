"""Middleware that accepts requests only from the studio's page, opened with a secret token."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from semifine.studio.sharing import Access, Address

MAX_BODY_BYTES = 64 * 1024

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",  # the URL contains the token
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}


VISITOR = "semifine.visitor"
"""Key of the ``Visitor`` in the ASGI scope."""
LARGE_BODIES = {"import": 64 * 1024 * 1024}
"""Largest bodies of routes of the API that accept more than ``MAX_BODY_BYTES``."""


class SecurityMiddleware:
    """ASGI middleware that rejects foreign hosts, foreign origins, missing tokens and large bodies.

    It prevents cross-site requests and DNS rebinding: another web page could otherwise make a browser on this machine
    send requests to the studio.

    Args:
        app: The application to protect. It finds the owner of the token in the scope, under ``VISITOR``.
        access: The tokens. The first part of every valid path is one of them.
        address: The address of the studio.
    """

    def __init__(self, app: ASGIApp, access: Access, address: Address) -> None:
        self._app = app
        self._access = access
        self._hosts = set(address.hosts())
        self._scheme = address.scheme

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            raise RuntimeError("the studio has no websockets")
        rejection = self._rejection(scope) if scope["type"] == "http" else None
        app = self._app if rejection is None else rejection

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        await app(scope, receive, send_with_headers)

    def _rejection(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").lower()
        if host not in self._hosts:
            return PlainTextResponse("Unknown host name.", 421)
        origin = headers.get("origin")
        if origin is not None and origin.lower() != f"{self._scheme}://{host}":
            return PlainTextResponse("Requests from other pages are not allowed.", 403)
        foreign = headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
        if foreign and headers.get("sec-fetch-mode") != "navigate":  # following a link is allowed
            return PlainTextResponse("Requests from other pages are not allowed.", 403)
        if scope["method"] not in ("GET", "HEAD"):
            if scope["method"] != "POST" or origin is None:
                return PlainTextResponse("Only the studio's own page may send changes.", 403)
            length = headers.get("content-length", "")
            limit = LARGE_BODIES.get(scope["path"].rpartition("/api/")[2], MAX_BODY_BYTES)
            if not length.isdigit() or len(length) > 15 or int(length) > limit:
                return PlainTextResponse("The request is too large.", 413)
            if headers.get("content-type", "").partition(";")[0].strip() != "application/json":
                return PlainTextResponse("The request must be JSON.", 415)
        token = scope["path"].encode().split(b"/", 2)[1:2]
        visitor = self._access.find(token[0]) if token else None
        if visitor is None:
            return PlainTextResponse("The URL lacks the studio's token; copy the URL from the terminal.", 403)
        scope[VISITOR] = visitor
        return None
