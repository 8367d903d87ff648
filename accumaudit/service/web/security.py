"""Stands before every answer: who may ask, how much, and what a browser may do with it."""

from __future__ import annotations

import base64
import binascii
import hmac
import socket
from typing import TYPE_CHECKING, Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse

from accumaudit.service.web.options import Options, address, is_address

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN: Final = "/healthz"
"""Says nothing of any run, and needs no token."""

LONGEST_TARGET: Final = 16_384
"""Bytes of a path and its query: a folder's path has 4,096, each written with three characters in a URL."""

LARGEST_HEAD: Final = 32_768
"""Bytes of a request's headers."""

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Cache-Control": "no-store",
}
"""Of every answer, where it says nothing else itself."""
_LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")


class Guard:
    """Refuses what no honest client sends, and gives every answer the headers that keep browsers strict."""

    def __init__(self, app: ASGIApp, options: Options) -> None:
        self._app = app
        self._token = options.token and options.token.encode()
        self._any_address = not options.on_loopback
        names = (*_LOOPBACK_NAMES, address(options.listen)[0], *options.allowed_hosts)
        if not options.on_loopback:
            names += (socket.gethostname(), socket.getfqdn())
        self._names = {name.strip("[]").rstrip(".").lower() for name in names}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_strict(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_strict)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST_TARGET:
            return _refused(414, "The address is too long.")
        if sum(len(name) + len(value) for name, value in headers.raw) > LARGEST_HEAD:
            return _refused(431, "The headers are too long.")
        if not self._knows(headers.getlist("host")):
            return _refused(421, "This service does not go by this name: --allowed-host NAME adds one.")
        if scope["method"] not in ("GET", "HEAD"):
            return _refused(405, "There is nothing to change here.", {"Allow": "GET, HEAD"})
        if headers.get("content-length", "0") != "0" or "transfer-encoding" in headers:
            return _refused(413, "A request has no body here.", {"Connection": "close"})
        if _is_of_another_site(headers):
            return _refused(403, "Pages of other sites cannot read this.")
        if self._token and scope["path"] != OPEN and not self._is_allowed(headers.get("authorization", "")):
            realm = {"WWW-Authenticate": 'Bearer, Basic realm="accumaudit", charset="UTF-8"'}
            return _refused(401, "This needs the token: as a bearer token, or as a password.", realm)
        return None

    def _knows(self, hosts: list[str]) -> bool:
        """Whether a request names this service: a stranger's name means a deceived browser."""
        if len(hosts) != 1:
            return False
        try:
            host = address(hosts[0] if hosts[0].rpartition("]")[2].count(":") else f"{hosts[0]}:0")[0]
        except ValueError:
            return False
        host = host.rstrip(".").lower()
        return host in self._names or (self._any_address and is_address(host))

    def _is_allowed(self, authorization: str) -> bool:
        scheme, _, value = authorization.partition(" ")
        given = value.strip().encode("latin-1", "replace")
        if scheme.lower() == "basic":  # what a browser asks its user for; any name goes with the token
            try:
                given = base64.b64decode(given, validate=True).partition(b":")[2]
            except binascii.Error:
                return False
        elif scheme.lower() != "bearer":
            return False
        return hmac.compare_digest(given, self._token or b"")


def _is_of_another_site(headers: Headers) -> bool:
    """Whether a page of another site asks; that a link there leads here is right."""
    site, mode = headers.get("sec-fetch-site", "none"), headers.get("sec-fetch-mode", "navigate")
    return site not in ("none", "same-origin") and mode != "navigate"


def _refused(status: int, why: str, headers: dict[str, str] | None = None) -> PlainTextResponse:
    return PlainTextResponse(why + "\n", status, headers)
