"""The service's pages in a browser: both show a fault and follow it live, and no text in them runs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Final

import pytest

from accumaudit.outputs.words import printable
from accumaudit.service.snapshot import FindingView, RunView, Snapshot
from accumaudit.service.web.server import Server
from tests.pages import CONTRAST, UNNAMED, Page
from tests.shown import HOSTILE, NOW, board_of, faulty_run, named, serving

pytestmark = pytest.mark.slow  # a browser

HTML: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunView:
    return faulty_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def server(run: RunView) -> Iterator[Server]:
    """A server that shows a run, the same with HTML in all its texts, and others with odd names."""
    hostile = named(_with_html(run), HTML)
    with serving(board_of(run, hostile, *(named(run, name) for name in HOSTILE))) as started:
        yield started


def _with_html(run: RunView) -> RunView:
    """The same run, with HTML wherever a record or somebody's rule may say anything."""
    (found,) = run.findings
    verdict, finding = found.verdict, found.verdict.finding
    assert finding is not None
    texts = replace(
        verdict,
        name=HTML,
        summary=HTML,
        fix=f"{HTML}\n\n{HTML}: {HTML}",
        finding=replace(
            finding,
            message=HTML,
            examples=tuple(replace(one, file=HTML, message=HTML) for one in finding.examples),
        ),
    )
    others = tuple(
        replace(one, name=HTML, summary=HTML, reason=HTML)
        for one in run.report.verdicts
        if one.code != verdict.code
    )
    report = replace(run.report, runtime=HTML, verdicts=(texts, *others), remarks=(HTML,), holes=(HTML,))
    optimizers = tuple(replace(one, name=HTML) for one in run.optimizers)
    return replace(
        run,
        report=report,
        wrapper=HTML,
        findings=(replace(found, verdict=texts),),
        optimizers=optimizers,
    )


@pytest.mark.parametrize("path", ["/", "/runs/faulty"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_a_fault_can_be_read_on_any_screen(
    server: Server, browser: Page, path: str, dark: bool, width: int
) -> None:
    browser.resize(width, 740, dark=dark)
    browser.open(server.url + path)
    browser.until("document.getElementById('live').textContent === 'live'")
    assert "ACC101" in browser.evaluate("document.body.innerText")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CONTRAST) >= 4.5
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert is_dark is dark
    assert browser.evaluate(UNNAMED) == 0


def test_every_run_is_reached_by_its_link_and_its_name_is_text(server: Server, browser: Page) -> None:
    browser.allow_scripts(False)  # the link alone
    browser.open(f"{server.url}/")
    links = browser.evaluate(
        "[...document.querySelectorAll('.runs a')].map((one) => [one.textContent, one.href])"
    )
    names = {printable(name) or "(no name)" for name in ("faulty", HTML, *HOSTILE)}
    assert {name for name, _ in links} == names
    for name, address in links:
        browser.open(address)
        assert browser.evaluate("document.querySelector('h1').textContent") == name
        assert browser.evaluate("document.querySelectorAll('script, img').length") == 1


def test_nothing_that_a_record_says_runs(server: Server, browser: Page) -> None:
    browser.open(f"{server.url}/")
    browser.evaluate(
        "[...document.querySelectorAll('.runs a')].find((one) => one.text.includes('<script>')).click()"
    )
    browser.until(
        "document.querySelector('.finding') && document.getElementById('live').textContent === 'live'"
    )
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    text = browser.evaluate("document.body.innerText")
    assert text.count(HTML) > 10
    assert browser.evaluate("document.querySelectorAll('main script, img').length") == 0


def test_the_policy_refuses_scripts_and_styles_that_are_not_the_services_own(
    server: Server, browser: Page
) -> None:
    browser.open(f"{server.url}/")
    browser.evaluate(
        """
        for (const put of [
          () => document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hacked = 1'>"),
          () => {
            const one = document.createElement("script");
            one.text = "window.hacked = 1";
            document.body.append(one);
          },
          () => { document.body.setAttribute("style", "color: red"); },
          () => { const one = new Image(); one.src = "http://example.invalid/"; },
        ]) try { put(); } catch (error) { window.refused = (window.refused || 0) + 1; }
        """
    )
    assert browser.evaluate("[window.hacked, window.refused, document.body.style.color]") == [None, 2, ""]
    refused = " ".join(browser.complaints)
    for what in ("TrustedHTML", "TrustedScript", "style-src", "img-src"):
        assert what in refused
    browser.complaints.clear()


def test_the_facts_need_no_script(server: Server, browser: Page) -> None:
    browser.allow_scripts(False)
    browser.open(f"{server.url}/runs/faulty")
    assert browser.evaluate("document.getElementById('live').textContent") == ""
    text = browser.evaluate("document.body.innerText")
    for fact in (
        "1 fault",
        "ACC101 fixed-divisor-tail",
        "What to do.",
        "finished",
        "8 updates, 2 ranks",
        "As of",
    ):
        assert fact in text
    assert browser.evaluate("document.querySelectorAll('.plot path.line-1').length") >= 5


def test_a_finding_appears_while_the_page_is_open(run: RunView, browser: Page) -> None:
    before = replace(run, findings=(), state="running", version=1)
    board = board_of(before)
    with serving(board) as server:
        browser.open(f"{server.url}/runs/faulty")
        browser.until("document.getElementById('live').textContent === 'live'")
        browser.evaluate(
            "document.querySelector('#passed').open = true; document.querySelector('#passed summary').focus()"
        )
        assert browser.evaluate("document.querySelectorAll('.finding').length") == 0
        browser.evaluate("getSelection().selectAllChildren(document.querySelector('h1'))")
        board.publish(Snapshot(time=NOW, runs=(replace(run, version=2),)))
        with pytest.raises(AssertionError, match="not in 1 seconds"):  # what is marked to be copied stays
            browser.until("document.querySelectorAll('.finding').length === 1", seconds=1)
        browser.evaluate("getSelection().removeAllRanges()")
        browser.until("document.querySelectorAll('.finding').length === 1")
        assert browser.evaluate("document.querySelector('#passed').open") is True
        assert browser.evaluate("document.activeElement.parentElement.id") == "passed"
        assert "finished" in browser.evaluate("document.querySelector('.lead').innerText")
        assert browser.complaints == []
        server.stop()
        browser.until("document.getElementById('live').textContent === 'not connected'")
    browser.complaints.clear()  # of the connection that is gone


def test_a_run_that_begins_appears_among_the_others(run: RunView, browser: Page) -> None:
    board = board_of()
    with serving(board, token="a-token-for-the-tests") as server:
        browser.send_headers({"Authorization": "Bearer a-token-for-the-tests"})
        browser.open(f"{server.url}/")
        assert "No run has written anything yet" in browser.evaluate("document.body.innerText")
        board.publish(Snapshot(time=NOW, runs=(_noted(run),)))
        browser.until("document.querySelectorAll('.runs a').length === 1")
        assert "1 note" in browser.evaluate("document.querySelector('.runs').innerText")
        browser.open("about:blank")


def _noted(run: RunView) -> RunView:
    (found,) = run.findings
    note: FindingView = replace(found, verdict=replace(found.verdict, severity="note"))
    return replace(run, findings=(note, replace(note, withdrawn=True)))
