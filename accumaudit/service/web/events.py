"""Server-sent events: tell a browser that what it shows has changed, for it to ask again."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import anyio
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from accumaudit.service.web.names import name_in_query, named

if TYPE_CHECKING:
    from starlette.requests import Request

    from accumaudit.service.board import Board
    from accumaudit.service.snapshot import RunView, Snapshot

BEAT: Final = 0.5
"""Seconds between two looks at the board: a look costs nothing, and a waiting thread each would."""
QUIET: Final = 15.0
"""Seconds without news after which a comment shows that the connection stands."""
RETRY: Final = 5_000
"""Milliseconds after which a browser comes back."""


def mark_of_run(run: RunView) -> str:
    """Differs where the page of the run does."""
    return f"{run.version}.{run.state.replace(' ', '-')}"


def mark_of_all(snapshot: Snapshot) -> str:
    """Differs where the page of all runs does."""
    shown = [(run.run_id, run.version, run.state) for run in snapshot.runs]
    return hashlib.sha256(repr((shown, snapshot.troubles)).encode()).hexdigest()[:16]


class Streams:
    """The browsers that wait for news, a bounded number: each holds a connection for as long as it likes."""

    def __init__(self, board: Board, most: int) -> None:
        self._board = board
        self._most = most
        self._open = 0
        self._marked: tuple[int, str] = (-1, "")

    async def answer(self, request: Request) -> Response:
        """A stream of marks: of the run that the query names, or of all."""
        if self._open >= self._most:
            busy = {"Retry-After": str(RETRY // 1000)}
            return PlainTextResponse("Too many pages wait for news already.\n", 503, busy)
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return StreamingResponse(self._news(request), media_type="text/event-stream")

    async def _news(self, request: Request) -> AsyncIterator[str]:
        run_id = name_in_query(request)
        stopping = request.app.state.stopping
        last, quiet = None, 0.0
        if self._open >= self._most:  # as many came at once
            return
        self._open += 1
        try:
            yield f"retry: {RETRY}\n\n"
            while not stopping.is_set():
                mark = self._mark(run_id)
                if mark != last:
                    yield f"data: {mark}\n\n"
                    last, quiet = mark, 0.0
                elif quiet >= QUIET:
                    yield ":\n\n"
                    quiet = 0.0
                await anyio.sleep(BEAT)
                quiet += BEAT
        finally:
            self._open -= 1

    def _mark(self, run_id: str | None) -> str:
        """Of all runs once for each snapshot, whoever asks."""
        version, snapshot = self._board.version, self._board.snapshot
        if run_id is not None:
            run = named(snapshot, run_id)
            return mark_of_run(run) if run else "gone"
        if self._marked[0] != version:
            self._marked = (version, mark_of_all(snapshot))
        return self._marked[1]
