"""Post-mortems that the service makes: of the right run, good for a browser, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from accumaudit.ledger import loading
from accumaudit.service.judging.child import Desk
from accumaudit.service.judging.setup import Asked
from accumaudit.service.snapshot import RunView, Snapshot
from accumaudit.service.web.reports import Limits, Reports
from accumaudit.service.web.server import Server
from tests.live_load import processes
from tests.pages import page
from tests.records import START, write_run
from tests.servers import until
from tests.serving import Service
from tests.serving import serving as service_over
from tests.shown import NOW, Answer, ask, board_of, runs_of, serving

pytestmark = pytest.mark.slow  # processes that judge, a service and a browser

HALVED = {"microbatches": 2, "total_weight": 0.5}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One with two runs: a training with a fault that was begun anew."""
    folder = tmp_path_factory.mktemp("runs") / "twice"
    write_run(folder, [{}, {}, {}, HALVED, {}, {}], ranks=1)
    return write_run(folder, 8, ranks=1, launch="bbbb", started_at=START + 7200.0)


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[RunView, ...]:
    return runs_of(folder)


@pytest.fixture(scope="module")
def server(runs: tuple[RunView, ...]) -> Iterator[Server]:
    with serving(board_of(*runs)) as started:
        yield started


def made(server: Server, name: str) -> Answer:
    """The answer when it is no longer that it is being made."""
    address = f"/runs/{name}/postmortem"
    until(lambda: ask(server, address).status != 202, "post-mortem")
    return ask(server, address)


def test_of_several_runs_in_a_folder_each_has_its_own(server: Server) -> None:
    first, second = made(server, "twice"), made(server, "twice%232")
    assert first.status == second.status == 200
    assert "<title>Post-mortem of twice</title>" in first.text
    assert "<title>Post-mortem of twice#2</title>" in second.text
    assert "a short window of 2 of 4 micro-steps weighs 0.500" in first.text
    assert "a short window" not in second.text


def test_a_browser_lets_the_page_do_what_it_needs(server: Server) -> None:
    assert made(server, "twice").status == 200
    with page() as browser:
        browser.resize(1280, 900)
        browser.open(f"{server.url}/runs/twice/postmortem")
        browser.until("document.querySelectorAll('.chart svg').length > 0")
        assert "ACC101" in browser.evaluate("document.body.innerText")
        assert browser.complaints == []


def request(folder: Path, name: str, **fields: Any) -> dict[str, Any]:
    """What a process is asked."""
    asked = Asked().request({str(folder): "twice"})
    limits = {"memory": "256MB", "limit": 2**30, "largest": 2**24}
    return {"post_mortem": name, "places": [str(folder)], **limits, **asked, **fields}


def test_why_it_cannot_be_made_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "CONFIG", dict(loading.CONFIG))
    desk = Desk()
    told = {
        "gone": desk.answer(request(folder, "twice#3")),
        "large": desk.answer(request(folder, "twice", limit=1)),
        "long": desk.answer(request(folder, "twice", largest=1)),
        "missing": desk.answer(request(folder / "missing", "twice")),
    }
    monkeypatch.setitem(sys.modules, "plotly", None)
    told["plotly"] = desk.answer(request(folder, "twice"))
    errors = {which: answer["error"] for which, answer in told.items()}
    assert errors["gone"] == "there is no record of twice#3 in its folder, or not yet"
    assert errors["large"] == "0.0 GiB of records are more than is read for a page"
    assert "characters, more than are served" in errors["long"]
    assert "missing: no such file or folder" in errors["missing"]
    assert errors["plotly"] == ("this needs plotly, which is not installed: pip install 'accumaudit[report]'")


def test_one_that_takes_too_long_or_is_not_wanted_any_more_leaves_nothing(
    runs: tuple[RunView, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    snapshot = Snapshot(time=NOW, runs=runs)
    late = Reports(Asked(), Limits(seconds=0.0))
    report = until(lambda: late.report(runs[0], snapshot), "report")
    assert report.trouble == "judging took too long and was ended"
    late.close()
    unwanted = Reports(Asked())
    assert unwanted.report(runs[0], snapshot) is None
    (process,) = until(lambda: making(os.getpid()), "process")
    unwanted.close()
    assert not Path(f"/proc/{process}").exists()
    assert list(tmp_path.iterdir()) == []


def making(parent: int) -> list[int]:
    """The processes that make a post-mortem, of a process and those it has started."""
    return [one for one in processes(parent) if b"accumaudit-postmortem-" in cmdline(one)]


def cmdline(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """One over a run that is being written."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    write_run(tmp_path / "logs" / "deep" / "run", [{}, {}, {}, HALVED, {}, {}], ranks=1, close=False)
    with service_over(tmp_path / "logs", tmp_path / "state") as started:
        until(lambda: (run := started.run("deep/run")) and run["updates"] == 6, "run")
        yield started


def test_a_run_that_is_being_written_has_one_and_a_killed_service_takes_its_work_along(
    service: Service, tmp_path: Path
) -> None:
    address = "/runs/deep%2Frun/postmortem"
    until(lambda: "<title>Post-mortem of deep/run</title>" in service.get(address), "page")
    assert "ACC101 fixed-divisor-tail" in service.get(address)
    assert making(service.process.pid) == []
    write_run(tmp_path / "logs" / "other", [{}] * 3, ranks=1, close=False)
    until(lambda: service.run("other"), "another run")
    assert "It is being made" in service.get("/runs/other/postmortem")
    (process,) = until(lambda: making(service.process.pid), "process")
    os.kill(process, signal.SIGSTOP)
    service.kill()
    os.kill(process, signal.SIGCONT)
    until(lambda: not Path(f"/proc/{process}").exists(), "end of the process")
    left = [one.name for one in (tmp_path / "temporary").iterdir()]
    assert [one for one in left if one.startswith("accumaudit-postmortem-")] == []
