"""Answers: compressed where the client can read that, and files that are read once, at the start."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

SMALL: Final = 1_000
"""Bytes that are not worth the work."""

_TYPES: Final = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def answer(
    request: Request,
    body: str | bytes,
    media_type: str,
    headers: Mapping[str, str] | None = None,
    status: int = 200,
) -> Response:
    """The body, compressed where the client says that it can read that."""
    content = body.encode("utf-8", "backslashreplace") if isinstance(body, str) else body
    given = {"Vary": "Accept-Encoding", **(headers or {})}
    if len(content) > SMALL and takes_gzip(request.headers.get("accept-encoding", "")):
        content = gzip.compress(content, compresslevel=4, mtime=0)
        given["Content-Encoding"] = "gzip"
    return Response(content, status, media_type=media_type, headers=given)


def packed_answer(
    request: Request, packed: bytes, media_type: str, headers: Mapping[str, str] | None = None
) -> Response:
    """A body that is kept compressed: as it is where the client can read that."""
    given = {"Vary": "Accept-Encoding", **(headers or {})}
    if not takes_gzip(request.headers.get("accept-encoding", "")):
        return Response(gzip.decompress(packed), media_type=media_type, headers=given)
    given["Content-Encoding"] = "gzip"
    return Response(packed, media_type=media_type, headers=given)


def takes_gzip(accepted: str) -> bool:
    """Whether this Accept-Encoding names gzip, and not as what it refuses."""
    return any(
        re.fullmatch(r"gzip(;q=(1(\.0*)?|0\.\d*[1-9]\d*))?", one.replace(" ", "").lower())
        for one in accepted.split(",")
    )


def not_found(what: str) -> Response:
    """There is nothing of this name."""
    return PlainTextResponse(f"There is no {what} here.\n", 404)


class Files:
    """The style, the script and the icon of the pages, held in memory under fixed names."""

    def __init__(self) -> None:
        folder = files("accumaudit.service.web") / "static"
        self._contents = {name: (folder / name).read_bytes() for name in _TYPES}

    @property
    def addresses(self) -> dict[str, str]:
        """Where each is found; another content has another address."""
        return {
            name: f"/static/{name}?v={hashlib.sha256(content).hexdigest()[:12]}"
            for name, content in self._contents.items()
        }

    def answer(self, request: Request) -> Response:
        """One of them."""
        content = self._contents.get(request.path_params["name"])
        if content is None:
            return not_found("such file")
        kept = {"Cache-Control": "max-age=86400"}
        return answer(request, content, _TYPES[request.path_params["name"]], kept)
