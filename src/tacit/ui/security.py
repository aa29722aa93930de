"""Who may see the page, and what a page may do.

The first part of every path is a secret token, made at each start. No cookie is used: other servers of this
machine would get it, whatever their port. A request without the token learns nothing, not even whether a run
exists; one with another Host (DNS rebinding) is refused before the token is compared. Pages load nothing but
the two files of this server, run no inline script, and may not be framed. A change needs the token, the
page's own Origin, and --control.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
HEADERS = (
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    # the address contains the token; forms need their Origin, which `no-referrer` would make null
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
REFUSED = (
    b"403: open the address that `tacit ui` printed; it contains a token, which changes at every start.\n"
)
MOST_BODY = 1 << 16  # bytes of a form

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


def new_token() -> str:
    return secrets.token_urlsafe(24)  # 192 bits


class Guarded:
    """An ASGI application that only answers under its token, at its own address."""

    def __init__(self, app: Callable[[Scope, Receive, Send], Awaitable[None]], token: str, hosts: set[str]):
        self.app, self.token, self.hosts = app, token, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}
            await send(message)

        headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in scope["headers"]}
        given, _, rest = scope["path"].removeprefix("/").partition("/")
        right = hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self.token.encode())
        if headers.get("host", "") not in self.hosts or not right or not self._is_own(scope, headers):
            await send_with_headers(
                {
                    "type": "http.response.start",
                    "status": 403,
                    "headers": [(b"content-type", b"text/plain; charset=utf-8")],
                }
            )
            await send_with_headers({"type": "http.response.body", "body": REFUSED})
            return
        root = f"/{self.token}"
        inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode(), "root_path": ""}
        inner["tacit_root"] = root
        await self.app(inner, receive, send_with_headers)

    def _is_own(self, scope: Scope, headers: dict[str, str]) -> bool:
        """Whether a request that changes something comes from a page of this server."""
        if scope["method"] in ("GET", "HEAD"):
            return True
        length = headers.get("content-length", "")
        if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY:
            return False
        return headers.get("origin", "").removeprefix("http://").removeprefix("https://") == headers["host"]
