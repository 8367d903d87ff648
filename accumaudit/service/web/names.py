"""Names of runs in addresses: a folder may be called anything, bytes that are no text too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qs, quote, unquote_to_bytes

if TYPE_CHECKING:
    from starlette.requests import Request

    from accumaudit.service.snapshot import RunView, Snapshot


POST_MORTEM: Final = "/postmortem"
"""Behind the address of a run."""


def quoted(run_id: str) -> str:
    """The name as one part of a path that no browser and no proxy resolves.

    A browser drops "." and "..", quoted or not, where they are a whole part: a slash keeps them.
    """
    return quote(run_id + "/" * (run_id in ("", ".", "..")), safe="", errors="surrogateescape")


def name_in_path(request: Request, prefix: str, suffix: str = "") -> str:
    """What stands between the prefix and the suffix of the path, as it was before it was quoted."""
    path: bytes = request.scope["raw_path"]
    name = path.removeprefix(prefix.encode()).removesuffix(suffix.encode())
    return unquote_to_bytes(name).decode("utf-8", "surrogateescape")


def is_post_mortem(request: Request) -> bool:
    """Whether the path of a run asks for its post-mortem: in the name itself the slash would be quoted."""
    path: bytes = request.scope["raw_path"]
    return path.removeprefix(b"/runs/").endswith(POST_MORTEM.encode())


def name_in_query(request: Request) -> str | None:
    """The run that the query names; None where it names none."""
    query: bytes = request.scope["query_string"]
    asked = parse_qs(
        query.decode("latin-1"), keep_blank_values=True, errors="surrogateescape", max_num_fields=8
    )
    return asked["run"][0] if "run" in asked else None


def count_in_query(request: Request, name: str, least: int) -> int | None:
    """A whole number of the query, the least where it is not named; None where it is none."""
    text = request.query_params.get(name, str(least))
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return int(text) if int(text) >= least else None


def named(snapshot: Snapshot, name: str) -> RunView | None:
    """The run of this name, which is looked up among those that are known and leads to no file."""
    found = snapshot.run(name)
    return found or (snapshot.run(name[:-1]) if name.endswith("/") else None)
