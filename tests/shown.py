"""What the tests of the service's pages show, and a client that sends what it is told to, right or wrong."""

from __future__ import annotations

import http.client
import socket
import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.service.board import Board
from accumaudit.service.judging.setup import Asked
from accumaudit.service.snapshot import RunView, Snapshot
from accumaudit.service.web.app import create_app
from accumaudit.service.web.options import Options
from accumaudit.service.web.reports import Reports
from accumaudit.service.web.server import Server
from accumaudit.service.whole import snapshot_of
from tests.records import START, write_run

NOW: Final = START + 60.0
HOSTILE: Final = (
    *("../..", "..", ".", "", "/etc/passwd", "//example.org", "a/b#2", "a/../b", "a//b", "x/"),
    *("<script>alert(1)</script>", "<img src=x onerror=alert(1)>", '"><svg/onload=alert(1)>', "{{ 7 * 7 }}"),
    *(
        "two\nlines",
        "tab\t\r\0",
        "100%41?page=2&run=x",
        "+ +",
        "läuft/тест/走",
        "\udcff bytes",
        "\u202eright",
    ),
    *("javascript:alert(1)", "\\..\\..", "n" * 4000),
)
"""Names of runs."""


@dataclass(frozen=True)
class Answer:
    """What a server answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()


def faulty_run(folder: Path) -> RunView:
    """A run whose last window is short and weighs half, as `check` sees it."""
    short = {"microbatches": 2, "total_weight": 0.5}
    return runs_of(write_run(folder / "faulty", [{}, {}, {}, short, {}, {}, {}, short], ranks=2))[0]


def runs_of(folder: Path) -> tuple[RunView, ...]:
    """The runs in a folder, as `check` sees them."""
    with read_ledger([folder]) as ledger:
        return snapshot_of(ledger, audit(ledger, load_rules()), NOW).runs


def named(run: RunView, name: str, **fields: Any) -> RunView:
    """The same run under another name."""
    return replace(run, report=replace(run.report, run_id=name), **fields)


def board_of(*runs: RunView, **fields: Any) -> Board:
    """A board with these runs."""
    return Board(Snapshot(time=NOW, runs=runs, **fields))


@contextmanager
def serving(board: Board, **options: Any) -> Iterator[Server]:
    """A server on a free port."""
    given = Options(**{"listen": "127.0.0.1:0", **options})
    reports = Reports(Asked())
    server = Server(create_app(board, given, reports), given)
    server.start()
    try:
        yield server
    finally:
        server.stop()
        reports.close()


def ask(
    server: Server,
    target: str,
    headers: Mapping[str, str] | None = None,
    *,
    method: str = "GET",
    body: bytes | None = None,
    trusted: Path | None = None,
) -> Answer:
    """Send a request as it is: neither the path nor the host is made right."""
    where = urlsplit(server.url)
    assert where.hostname is not None
    connection = http.client.HTTPConnection(where.hostname, where.port, timeout=60)
    if where.scheme == "https":
        context = ssl.create_default_context(cafile=trusted)
        connection = http.client.HTTPSConnection(where.hostname, where.port, timeout=60, context=context)
    try:
        connection.request(method, target, body=body, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Answer(answer.status, answer.msg, answer.read())
    finally:
        connection.close()


def connected(server: Server) -> socket.socket:
    """A connection on which nothing was sent."""
    where = urlsplit(server.url)
    return socket.create_connection((where.hostname, where.port), timeout=60)


@contextmanager
def news(server: Server, query: str = "") -> Iterator[Iterator[str]]:
    """What a browser is told, as it comes."""
    with connected(server) as client, client.makefile("rb") as lines:
        client.sendall(f"GET /events{query} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        assert lines.readline() == b"HTTP/1.1 200 OK\r\n"
        yield (line.decode().removeprefix("data: ").strip() for line in lines if line.startswith(b"data: "))
