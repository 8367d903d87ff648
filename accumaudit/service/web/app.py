"""The addresses that the service answers; none of them leads to the file system."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.middleware import Middleware
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from accumaudit.service.metrics import Exposition
from accumaudit.service.rank_metrics import CONTENT_TYPE, RankExposition
from accumaudit.service.web import api
from accumaudit.service.web.answers import Files, answer, not_found
from accumaudit.service.web.events import Streams
from accumaudit.service.web.names import count_in_query, name_in_path, name_in_query, named
from accumaudit.service.web.pages import Pages
from accumaudit.service.web.security import OPEN, Guard

if TYPE_CHECKING:
    from starlette.requests import Request

    from accumaudit.service.board import Board
    from accumaudit.service.web.options import Options
    from accumaudit.service.web.reports import Reports

JSON: Final = "application/json"


class _AnyName(PathConvertor):
    """What follows in a path, line ends too."""

    regex = r"(?s:.*)"


register_url_convertor("any_name", _AnyName())


def create_app(board: Board, options: Options, reports: Reports) -> Starlette:
    """The application that shows what hangs on the board."""
    answers, files = _Answers(board), Files()
    pages = Pages(board, reports, files.addresses)
    app = Starlette(
        routes=[
            Route("/", pages.overview),
            Route("/runs/{name:any_name}", pages.run),
            Route("/events", Streams(board, options.streams).answer),
            Route("/metrics", answers.metrics),
            Route("/metrics/ranks", answers.rank_metrics),
            Route("/api/runs", answers.runs),
            Route("/api/runs/{name:any_name}", answers.run),
            Route(OPEN, answers.alive),
            Route("/readyz", answers.ready),
            Route("/static/{name}", files.answer),
        ],
        middleware=[Middleware(Guard, options=options)],
    )
    app.router.redirect_slashes = False
    app.state.stopping = threading.Event()
    return app


class _Answers:
    """The answers for other programs."""

    def __init__(self, board: Board) -> None:
        self._board = board
        self._metrics = Exposition(board)
        self._ranks = RankExposition(board)

    async def alive(self, _request: Request) -> Response:
        """The service answers."""
        return PlainTextResponse("ok\n")

    async def ready(self, _request: Request) -> Response:
        """Whether everything that was there at the start has been read."""
        if self._board.snapshot.ready:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("reading what was written before the service was started\n", 503)

    def runs(self, request: Request) -> Response:
        """Runs as `check` reports them, a bounded number from the one that `first` says."""
        snapshot = self._board.snapshot
        first = count_in_query(request, "first", 0)
        if first is None:
            return PlainTextResponse("first is the number of a run, from 0.\n", 400)
        chosen = snapshot.runs[first : first + api.MOST]
        return answer(request, api.rendered(snapshot, chosen, first), JSON)

    def run(self, request: Request) -> Response:
        """One run as `check` reports it."""
        snapshot = self._board.snapshot
        run = named(snapshot, name_in_path(request, "/api/runs/"))
        return answer(request, api.rendered(snapshot, [run]), JSON) if run else not_found("run of this name")

    def metrics(self, request: Request) -> Response:
        """All runs for Prometheus."""
        body, media_type = self._metrics.render(request.headers.get("accept", ""))
        return answer(request, body, media_type)

    def rank_metrics(self, request: Request) -> Response:
        """The last record of every rank of the run that the query names, for Prometheus."""
        name = name_in_query(request)
        if name is None:
            return PlainTextResponse("Name a run: /metrics/ranks?run=NAME\n", 400)
        body = self._ranks.render(name)
        return answer(request, body, CONTENT_TYPE) if body is not None else not_found("run of this name")
