"""Post-mortems in the service: made one at a time, and kept; where there is none, the page says why."""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import pytest

from accumaudit.service.board import Board
from accumaudit.service.judging.setup import Asked
from accumaudit.service.snapshot import RUNNING, RunView, Snapshot
from accumaudit.service.web import reports
from accumaudit.service.web.names import quoted
from accumaudit.service.web.reports import HOLDS, KEPT, Report, Reports
from accumaudit.service.web.server import Server
from tests.servers import until
from tests.shown import HOSTILE, NOW, Answer, ask, board_of, faulty_run, named, serving

POLICY: Final = "default-src 'none'; script-src 'sha256-abc='; style-src 'unsafe-inline'"
PAGE: Final = (
    '<!DOCTYPE html>\n<meta http-equiv="Content-Security-Policy" content="' + POLICY + '">\n' + "told " * 400
)


@dataclass
class Maker:
    """Stands in for the processes that make post-mortems."""

    answers: dict[str, dict[str, Any]] = field(default_factory=dict)
    """What is answered for a run; the page, where nothing is said here."""
    asked: list[Mapping[str, Any]] = field(default_factory=list)
    closed: int = 0
    waits: bool = False

    def __call__(self, _spool: Path, _clock: Callable[[], float]) -> Maker:
        return self

    def ask(self, request: Mapping[str, Any], _seconds: float) -> None:
        self.asked.append(request)

    def answer(self) -> dict[str, Any] | None:
        made = self.answers.get(self.asked[-1]["post_mortem"], {"page": PAGE})
        return None if self.waits else {**made, "seconds": 1.0}

    def close(self) -> None:
        self.closed += 1


class Clock:
    """Goes when it is told to."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return faulty_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def maker(monkeypatch: pytest.MonkeyPatch) -> Maker:
    made = Maker()
    monkeypatch.setattr(reports, "Worker", made)
    return made


@pytest.fixture
def server(run: RunView, maker: Maker) -> Iterator[Server]:
    """A server that shows two runs, and others with names that nobody would choose."""
    with serving(board_of(run, named(run, "other"), *(named(run, name) for name in HOSTILE))) as started:
        yield started


def made(server: Server, name: str, headers: Mapping[str, str] | None = None) -> Answer:
    """The answer when nothing is being made any more."""
    address = f"/runs/{quoted(name)}/postmortem"
    until(lambda: ask(server, address).status != 202, "post-mortem")
    return ask(server, address, headers)


def test_whoever_asks_is_told_to_come_back_and_finds_the_page(server: Server, maker: Maker) -> None:
    maker.waits = True
    first = ask(server, "/runs/faulty/postmortem")
    assert first.status == 202
    assert first.headers["refresh"] == "2"
    assert "It is being made from the record as it is now." in first.text
    assert '<a href="/runs/faulty">faulty</a>' in first.text
    assert "<script" not in first.text
    assert "default-src 'none'" in first.headers["content-security-policy"]
    maker.waits = False
    answer = made(server, "faulty")
    assert answer.status == 200
    assert answer.text == PAGE
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert len(maker.asked) == 1
    assert maker.closed == 1


def test_the_page_keeps_its_own_policy_and_the_service_its_other_headers(
    server: Server, maker: Maker
) -> None:
    headers = made(server, "faulty").headers
    assert headers.get_all("content-security-policy") == [f"{POLICY}; frame-ancestors 'none'"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["x-frame-options"] == "DENY"
    assert headers["cache-control"] == "no-store"
    maker.answers["other"] = {"page": "<p>without a policy</p>"}
    policy = made(server, "other").headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe" not in policy


def test_the_page_comes_compressed_to_those_who_can_read_that(server: Server) -> None:
    packed = made(server, "faulty", {"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body).decode() == PAGE
    assert packed.headers["vary"] == "Accept-Encoding"


def test_one_is_made_at_a_time_and_the_next_when_its_reader_comes_back(server: Server, maker: Maker) -> None:
    maker.waits = True
    ask(server, "/runs/faulty/postmortem")
    second = ask(server, "/runs/other/postmortem")
    assert second.status == 202
    assert "That of another run is being made; this one is next." in second.text
    until(lambda: maker.asked, "request")
    assert [one["post_mortem"] for one in maker.asked] == ["faulty"]
    maker.waits = False
    assert made(server, "other").status == 200
    assert [one["post_mortem"] for one in maker.asked] == ["faulty", "other"]


def test_why_there_is_none_is_told_as_text_with_a_way_on(server: Server, maker: Maker, run: RunView) -> None:
    maker.answers["faulty"] = {"error": "no <b>room</b>"}
    answer = made(server, "faulty")
    assert answer.status == 503
    assert "It could not be made: no &lt;b&gt;room&lt;/b&gt;" in answer.text
    assert f"<code>accumaudit postmortem {run.report.path}</code>" in answer.text
    assert "refresh" not in answer.headers


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:30])
def test_no_name_of_a_run_leads_to_a_folder(server: Server, maker: Maker, run: RunView, name: str) -> None:
    answer = ask(server, f"/runs/{quoted(name)}/postmortem")
    assert answer.status == 202
    assert not re.search(r"<script>|<img|onload=alert\(1\)>|[\0\r\u202e]", answer.text)
    (asked,) = until(lambda: maker.asked, "request")
    assert asked["post_mortem"] == name
    assert asked["places"] == [run.report.path]


@pytest.mark.parametrize(
    "target", ["/runs/nobody/postmortem", "/runs/faulty/../x/postmortem", "/runs/%2fetc/postmortem"]
)
def test_a_run_that_is_not_known_has_none(server: Server, maker: Maker, target: str) -> None:
    assert ask(server, target).status == 404
    assert maker.asked == []


def test_a_name_that_ends_like_the_address_is_still_the_runs(run: RunView, maker: Maker) -> None:
    with serving(board_of(named(run, "postmortem"), named(run, "postmortem/postmortem"))) as server:
        for name in ("postmortem", "postmortem/postmortem"):
            page = ask(server, f"/runs/{quoted(name)}")
            assert page.status == 200
            assert f'<h1 class="name">{name}</h1>' in page.text
            assert f'<a href="/runs/{quoted(name)}/postmortem">Post-mortem</a>' in page.text
            assert made(server, name).status == 200
    assert [one["post_mortem"] for one in maker.asked] == ["postmortem", "postmortem/postmortem"]


def test_strangers_start_nothing(run: RunView, maker: Maker) -> None:
    with serving(board_of(run), token="a-token-for-the-tests") as server:
        assert ask(server, "/runs/faulty/postmortem").status == 401
        assert ask(server, "/runs/faulty/postmortem", {"Host": "evil.example"}).status == 421
    assert maker.asked == []


class TestKeeping:
    """What is kept, and for how long."""

    @pytest.fixture
    def clock(self) -> Clock:
        return Clock()

    @pytest.fixture
    def kept(self, maker: Maker, clock: Clock) -> Iterator[Reports]:  # noqa: ARG002 - for its effect
        made = Reports(Asked(), clock=clock)
        yield made
        made.close()

    @staticmethod
    def report(kept: Reports, run: RunView) -> Report:
        """What is given in the end."""
        return until(lambda: kept.report(run, Snapshot(time=NOW, runs=(run,))), "report")

    @staticmethod
    def of_attempts(run: RunView, attempts: int, **fields: Any) -> RunView:
        return replace(run, report=replace(run.report, attempts=attempts), **fields)

    def test_a_run_that_grows_by_less_than_a_tenth_keeps_its_own(
        self, kept: Reports, maker: Maker, clock: Clock, run: RunView
    ) -> None:
        live = self.of_attempts(run, 100, state=RUNNING)
        first = self.report(kept, live)
        clock.now += HOLDS + 1
        assert self.report(kept, self.of_attempts(live, 110)) is first
        assert len(maker.asked) == 1
        assert self.report(kept, self.of_attempts(live, 111)) is not first
        assert len(maker.asked) == 2

    def test_one_that_ends_launches_again_or_has_another_finding_gets_another(
        self, kept: Reports, maker: Maker, clock: Clock, run: RunView
    ) -> None:
        clean = self.of_attempts(run, 100, state=RUNNING, findings=())
        changes = [
            clean,
            replace(clean, findings=run.findings),
            replace(clean, findings=run.findings, launches=2),
            replace(clean, findings=run.findings, launches=2, state="finished"),
            self.of_attempts(run, 101, launches=2, state="finished"),
        ]
        for count, change in enumerate(changes, 1):
            self.report(kept, change)
            assert len(maker.asked) == count
            clock.now += HOLDS + 1
            self.report(kept, change)
            assert len(maker.asked) == count

    def test_one_that_grows_fast_is_shown_all_the_same(self, kept: Reports, run: RunView) -> None:
        live = self.of_attempts(run, 10, state=RUNNING)
        first = self.report(kept, live)
        assert self.report(kept, self.of_attempts(live, 1_000)) is first

    def test_what_failed_is_tried_again_later(
        self, kept: Reports, maker: Maker, clock: Clock, run: RunView
    ) -> None:
        maker.answers["faulty"] = {"error": "no room"}
        assert self.report(kept, run).trouble == "no room"
        assert self.report(kept, run).trouble == "no room"
        assert len(maker.asked) == 1
        maker.answers.clear()
        clock.now += HOLDS + 1
        assert self.report(kept, run).trouble is None
        assert len(maker.asked) == 2

    def test_only_the_newest_are_kept(self, kept: Reports, maker: Maker, run: RunView) -> None:
        runs = [named(run, f"run-{index}") for index in range(KEPT + 1)]
        for one in runs[:KEPT]:
            self.report(kept, one)
        self.report(kept, runs[0])  # asked for again, so another one goes
        self.report(kept, runs[KEPT])
        self.report(kept, runs[0])
        assert len(maker.asked) == KEPT + 1
        self.report(kept, runs[1])
        assert len(maker.asked) == KEPT + 2

    def test_nothing_is_made_after_the_end(self, kept: Reports, maker: Maker, run: RunView) -> None:
        maker.waits = True
        board = Board(Snapshot(time=NOW, runs=(run,)))
        assert kept.report(run, board.snapshot) is None
        kept.close()
        assert maker.closed == 1
        assert kept.making is None
        assert kept.report(run, board.snapshot) is None
        assert len(maker.asked) == 1
