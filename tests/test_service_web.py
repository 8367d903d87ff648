"""The service's answers over HTTP: what is said of each run, whatever it is called."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from accumaudit.engine.findings import AuditReport
from accumaudit.outputs.json_report import rendered
from accumaudit.outputs.results import Options as ReportOptions
from accumaudit.service.board import Board
from accumaudit.service.snapshot import Intake, RunView, Snapshot
from accumaudit.service.web.names import name_in_path, quoted
from accumaudit.service.web.server import Server
from tests.shown import HOSTILE, NOW, ask, board_of, faulty_run, named, news, serving

TOKEN = "a-token-for-the-tests"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return faulty_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def server(run: RunView) -> Iterator[Server]:
    """A server that shows one run, and others with names that nobody would choose."""
    with serving(board_of(run, *(named(run, name) for name in HOSTILE))) as started:
        yield started


def test_the_overview_tells_each_run_with_its_faults_and_its_state(server: Server) -> None:
    answer = ask(server, "/")
    assert answer.status == 200
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert '<a href="/runs/faulty">faulty</a>' in answer.text
    assert "1 fault" in answer.text
    assert "ACC101" in answer.text
    assert "finished" in answer.text
    assert f"{1 + len(HOSTILE)} runs" in answer.text


def test_the_page_of_a_run_tells_what_was_seen_and_what_to_do(server: Server, run: RunView) -> None:
    text = ask(server, "/runs/faulty").text
    (found,) = run.active
    assert found.verdict.finding is not None
    assert "ACC101 fixed-divisor-tail" in text
    assert found.verdict.finding.message in text
    assert found.verdict.advice in text
    assert "<dt>Accelerate</dt><dd>backward() always divides by gradient_accumulation_steps." in text
    assert 'aria-label="Total weight by attempt, between 0.5 and 1"' in text
    assert "<b>DDP.</b> Count over all data ranks" in text
    assert f"{len(run.report.with_status('passed'))} passed" in text
    assert "As of" in text


@pytest.mark.parametrize("name", HOSTILE, ids=lambda name: ascii(name)[:30])
def test_a_run_of_any_name_is_found_by_its_address_and_shown_as_text(server: Server, name: str) -> None:
    answer = ask(server, f"/runs/{quoted(name)}")
    assert answer.status == 200
    assert not re.search(r"<script>|<img|onload=alert\(1\)>|[\0\r\u202e]", answer.text)
    api = json.loads(ask(server, f"/api/runs/{quoted(name)}").body)
    assert [one["run_id"] for one in api["runs"]] == [name]


def test_the_overview_links_to_every_run_by_one_part_of_a_path(server: Server) -> None:
    text = ask(server, "/").text
    links = re.findall(r'<a href="/runs/([^"]*)">', text)
    assert sorted(links) == sorted(quoted(name) for name in ("faulty", *HOSTILE))
    assert not any("/" in link or link in (".", "..", "") for link in links)
    assert not re.search(r"<script>|<img|<svg/", text)


@pytest.mark.parametrize(
    "target",
    [
        *("/static/../app.py", "/static/..%2fapp.py", "/static/%2e%2e/app.py", "/static//etc/passwd"),
        *("/../../etc/passwd", "/runs/..%2f..%2fetc%2fpasswd", "/runs/%2fetc%2fshadow", "/api/runs/..%2fx"),
        *("/static/", "/static/style.css/", "/templates/run.html", "//example.org/", "/runs"),
    ],
)
def test_no_path_leads_to_a_file_or_elsewhere(server: Server, target: str) -> None:
    answer = ask(server, target)
    assert answer.status == 404
    assert "location" not in answer.headers
    assert len(answer.body) < 100


def test_runs_as_json_are_those_of_check_with_what_is_known_while_they_run(run: RunView) -> None:
    live = replace(run, late_ranks=(3,))
    with serving(board_of(live, troubles=("the disk is full",))) as server:
        given = json.loads(ask(server, "/api/runs/faulty").body)
        assert json.loads(ask(server, "/api/runs").body) == given
    said = given["runs"][0].pop("live")
    service = given.pop("service")
    assert given == json.loads(rendered(AuditReport(runs=(run.report,)), ReportOptions()))
    assert said["state"] == "finished"
    assert said["late_ranks"] == [3]
    assert said["findings"] == [
        {"code": "ACC101", "first_seen": NOW, "last_seen": NOW, "withdrawn": False},
    ]
    assert service == {
        "time": NOW,
        "ready": True,
        "troubles": ["the disk is full"],
        "runs": 1,
        "first": 0,
    }


def test_many_runs_come_in_portions(run: RunView) -> None:
    with serving(board_of(*(named(run, f"run-{index:03}") for index in range(250)))) as server:
        first = json.loads(ask(server, "/api/runs").body)
        last = json.loads(ask(server, "/api/runs?first=200").body)
        assert [one["run_id"] for one in last["runs"]] == [f"run-{index}" for index in range(200, 250)]
        assert (len(first["runs"]), first["service"]["runs"], last["service"]["first"]) == (100, 250, 200)
        assert "Page 1 of 2" in ask(server, "/").text
        assert ask(server, "/?page=2").text.count('scope="row"') == 50
        assert "There is no page 9" in ask(server, "/?page=9").text
        for wrong in ("/?page=0", "/?page=x", "/?page=" + "9" * 5000, "/api/runs?first=-1"):
            assert ask(server, wrong).status == 400


def test_a_run_without_anything_and_numbers_that_are_none_make_pages_too(run: RunView) -> None:
    nan, inf, optimizer = float("nan"), float("inf"), run.optimizers[0]
    history = tuple(
        replace(point, loss=nan, learning_rate=-inf, total_weight=None, update_id=None, applied=applied)
        for point, applied in zip(optimizer.history, (True, False, None, True) * 2, strict=True)
    )
    odd = replace(optimizer, history=history, last=history[-1])
    empty = replace(run, optimizers=(), ranks=(), findings=(), started_at=1e300, last_record_time=nan)
    one = replace(optimizer, history=history[:1])
    with serving(
        board_of(
            named(empty, "empty"),
            named(run, "odd", optimizers=(odd,), ranks=tuple(replace(rank, time=nan) for rank in run.ranks)),
            named(run, "one", optimizers=(one,)),
        )
    ) as server:
        assert ask(server, "/runs/empty").status == 200
        assert ask(server, "/runs/one").status == 200
        text = ask(server, "/runs/odd").text
    assert "8 values not finite" in text
    assert "2 attempts skipped" in text
    assert not re.search(r"(d|x|width)=\"[^\"]*(nan|inf)", text)


@pytest.mark.parametrize(
    ("runtime", "wrapper", "framework"),
    [
        *(
            ("torch", "none", "Hand-written loop"),
            ("torch", "fsdp2", "FSDP"),
            (None, None, "Hand-written loop"),
        ),
        *(("torch", "deepspeed-zero2", "DeepSpeed"), ("transformers", "ddp", "Trainer")),
    ],
)
def test_what_to_do_is_told_for_the_runs_own_framework(
    run: RunView, runtime: str | None, wrapper: str | None, framework: str
) -> None:
    with serving(
        board_of(replace(run, report=replace(run.report, runtime=runtime), wrapper=wrapper))
    ) as server:
        text = ask(server, "/runs/faulty").text
    assert re.findall(r'<p class="advice"><b>([^<]+)\.</b>', text) == ["What to do", framework]


@given(
    st.text(
        st.characters(exclude_categories=["Cs"]) | st.characters(min_codepoint=0xDC80, max_codepoint=0xDCFF)
    )
)
def test_the_address_of_any_name_leads_back_to_it(name: str) -> None:
    written = quoted(name)
    assert re.fullmatch(r"[\w.~%-]+", written, re.ASCII)
    assert written not in (".", "..")
    read = name_in_path(Request({"type": "http", "raw_path": f"/runs/{written}".encode()}), "/runs/")
    assert read in (name, name + "/")


def test_a_board_without_runs_says_so(server: Server) -> None:
    with serving(Board(Snapshot(time=NOW, ready=False, intake=Intake(read_errors=7)))) as empty:
        text = ask(empty, "/").text
        assert "No run has written anything yet" in text
        assert "still being read" in text
        assert "<dt>Files that could not be read</dt><dd>7</dd>" in text
        assert ask(empty, "/readyz").status == 503
        assert ask(empty, "/healthz").text == "ok\n"
    assert ask(server, "/readyz").status == 200


def test_metrics_are_given_at_the_very_path_that_is_asked(server: Server) -> None:
    answer = ask(server, "/metrics")
    assert answer.status == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert 'accumaudit_run_info{run="faulty"' in answer.text.replace("run_id=", "run=")
    openmetrics = ask(server, "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
    assert openmetrics.text.endswith("# EOF\n")
    ranks = ask(server, "/metrics/ranks?run=a%2Fb%232").text
    assert 'run="a/b#2"' in ranks
    assert 'rank="1"' in ranks
    assert ask(server, "/metrics/ranks").status == 400
    assert ask(server, "/metrics/ranks?run=other").status == 404
    assert ask(server, "/metrics/").status == 404


def test_answers_are_compressed_for_those_who_can_read_it(server: Server) -> None:
    plain = ask(server, "/metrics")
    packed = ask(server, "/metrics", {"Accept-Encoding": "br, gzip;q=0.8"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert ask(server, "/metrics", {"Accept-Encoding": "gzip;q=0, identity"}).body == plain.body


def test_the_news_tell_when_a_run_or_any_run_has_changed(run: RunView) -> None:
    other = named(run, "other/é")
    board = board_of(run, other)
    with serving(board) as server, news(server, "?run=other%2F%C3%A9") as of_run, news(server) as of_all:
        assert next(of_run) == "0.finished"
        first = next(of_all)
        board.publish(Snapshot(time=NOW, runs=(replace(run, version=1), other)))
        second = next(of_all)
        board.publish(Snapshot(time=NOW + 1, runs=(replace(run, version=1), replace(other, version=7))))
        assert next(of_run) == "7.finished"
        assert len({first, second, next(of_all)}) == 3
