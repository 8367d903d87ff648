"""The page of a post-mortem in a browser, from a file: it tells all, draws all, and lets nothing else run."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest

from accumaudit.comparison import Comparison
from accumaudit.comparison.comparing import compare
from accumaudit.demo.launching import launch, scenario
from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.outputs.postmortem.html import comparison_page, rendered
from accumaudit.outputs.postmortem.views import cards
from accumaudit.postmortem import PostMortem, post_mortems
from accumaudit.testing.records import write_run
from tests.pages import CONTRAST, UNNAMED, Page
from tests.told import empty_of, history_of, telling_of

pytestmark = pytest.mark.slow  # a browser, and a training

HTML: Final = "<script>alert(1)</script><img src=x onerror=alert(2)>"

DRAWN: Final = "document.body.dataset.drawn === 'true'"
RANGES: Final = """
[...document.querySelectorAll(".chart")].map((one) => one._fullLayout.xaxis.range.map(Math.round).join())
"""
INK: Final = "document.querySelector('.chart .js-line').style.stroke"


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[PostMortem], Comparison]:
    """A training with a fault, a run that diverges soon after one, and both side by side."""
    folder = tmp_path_factory.mktemp("runs")
    training = scenario("ACC101")
    launch(training, folder / "trained", 1)
    losses = [4.0 - 0.015 * update for update in range(120)] + [3.9 + 0.01 * (at % 3) for at in range(40)]
    attempts: list[dict[str, Any]] = [{"loss": [loss] * 4, "microbatches": 4} for loss in losses]
    attempts[117]["total_weight"] = attempts[118]["total_weight"] = 0.5
    checkpoint = {"kind": "checkpoint", "name": "step-100.pt", "rank": 0, "attempt_id": 100}
    write_run(folder / "diverged", attempts, marks=[checkpoint])
    with read_ledger([folder / "trained", folder / "diverged"]) as ledger:
        tellings = post_mortems(ledger, audit(ledger, load_rules()))
        return tellings, compare(ledger, "trained", "diverged", charts=True)


@pytest.fixture(scope="module")
def tellings(told: tuple[list[PostMortem], Comparison]) -> list[PostMortem]:
    return told[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def real(folder: Path, tellings: list[PostMortem]) -> str:
    return _saved(folder / "real.html", tellings)


@pytest.fixture(scope="module")
def made(folder: Path) -> str:
    """A page with something in every part of it."""
    long = replace(history_of(), title="Optimizer 0: " + 300 * "w")
    return _saved(folder / "made.html", [telling_of(histories=(long,))])


def _saved(file: Path, tellings: list[PostMortem]) -> str:
    file.write_text(rendered(tellings), encoding="utf-8")
    return file.as_uri()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_it_can_be_read_on_any_screen(made: str, browser: Page, dark: bool, width: int) -> None:
    browser.resize(width, 740, dark=dark)
    browser.open(made)
    browser.until(DRAWN)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(CONTRAST) >= 4.5
    assert browser.evaluate(UNNAMED) == 0
    is_dark = browser.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    assert is_dark is dark
    assert browser.evaluate("document.querySelectorAll('.chart .js-line').length") == 7


def test_real_runs_are_told_from_the_first_wrong_update_on(real: str, browser: Page) -> None:
    browser.open(real)
    browser.until(DRAWN)
    links = browser.evaluate(
        "[...document.querySelectorAll('.runs a')].map((one) => document.querySelector(one.hash).innerText)"
    )
    by_name = {text.partition("\n")[0]: text for text in links}
    assert sorted(by_name) == ["diverged", "trained"]
    diverged = by_name["diverged"]
    assert "Went wrong" in diverged
    assert diverged.index("ACC104") < diverged.index("Symptoms") < diverged.index("step-100.pt")
    assert "Faulty updates" in by_name["trained"]
    assert "ACC101 fixed-divisor-tail" in by_name["trained"]
    assert browser.evaluate("document.querySelectorAll('#run-1 .chart, #run-2 .chart').length") >= 8


def test_two_runs_are_shown_side_by_side(
    told: tuple[list[PostMortem], Comparison], folder: Path, browser: Page
) -> None:
    tellings, comparison = told
    alone, beside = folder / "comparison.html", folder / "beside.html"
    alone.write_text(comparison_page(comparison), encoding="utf-8")
    _saved(beside, [replace(tellings[0], comparison=comparison)])
    for file in (alone, beside):
        browser.open(file.as_uri())
        browser.until(DRAWN)
        text = browser.evaluate("document.body.innerText")
        for sentence in (*comparison.verdict, comparison.data):
            assert sentence in text
        for label in ("What differs first in each field", "What was compared"):
            assert label in text
        assert browser.evaluate("document.querySelectorAll('[id*=charts] .key .line-2').length") >= 2
        assert browser.evaluate(UNNAMED) == 0


def test_a_fix_that_is_the_same_as_by_hand_is_told_in_full() -> None:
    told = telling_of()
    fix = "Load it.\n\nHand-written loop: Load the state first.\nDDP: The same on every rank."
    suspect = replace(told.suspects[0], verdict=replace(told.suspects[0].verdict, fix=fix))
    own = replace(suspect, own_fix=("DDP", "The same on every rank."))
    (card,) = cards([own], told.run)
    assert card.own_fix == ("DDP", "The same on every rank. By hand: Load the state first.")
    assert card.fixes == (("Hand-written loop", "Load the state first."),)


def test_the_facts_need_no_script(made: str, browser: Page) -> None:
    browser.allow_scripts(False)
    browser.open(made)
    assert browser.evaluate("document.querySelectorAll('.chart svg').length") == 0
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    text = browser.evaluate("document.body.innerText")
    for fact in (
        "Went wrong",
        "110 updates before the first symptom",
        "rank-00/00003.bbbb.jsonl:311",
        "scheduler.load_state_dict(state)",
        "Trainer",
        "ACC302, ACC305",
        "then resume from step-1300.pt",
        "another rate; named by ACC306",
        "8 ranks wrote; 6 ranks never stand out.",
        "Loss: loss",
        "is recorded where accumaudit is attached",
        "rank 7 ends 12 attempts before the others",
        "bf16",
    ):
        assert fact in text
    assert browser.evaluate("getComputedStyle(document.querySelector('.views')).display") == "none"


def test_nothing_that_a_record_says_runs(folder: Path, browser: Page) -> None:
    told = telling_of(HTML)
    suspect = told.suspects[0]
    finding = suspect.verdict.finding
    assert finding is not None
    texts = replace(
        suspect.verdict,
        name=HTML,
        summary=HTML,
        fix=f"{HTML}\n\n{HTML}: {HTML}",
        finding=replace(
            finding,
            message=HTML,
            examples=tuple(replace(one, file=HTML, message=HTML) for one in finding.examples),
        ),
    )
    hostile = replace(suspect, verdict=texts, own_fix=(HTML, HTML), follows=(HTML,))
    history = replace(
        told.histories[0],
        title=HTML,
        launches=((1_001.0, HTML),),
        checkpoints=((500.0, f"</script>{HTML}"),),
    )
    told = replace(
        told,
        verdict=(HTML, HTML),
        first_wrong=hostile,
        suspects=(hostile,),
        advice=HTML,
        facts=((HTML, HTML),),
        quality=(HTML,),
        histories=(history,),
        unchecked=tuple(replace(one, reason=HTML, remedy=HTML) for one in told.unchecked),
    )
    browser.open(_saved(folder / "hostile.html", [told]))
    browser.until(DRAWN)
    assert browser.evaluate("document.title") == f"Post-mortem of {HTML}"
    assert browser.evaluate("document.querySelector('h1').textContent") == HTML
    assert browser.evaluate("document.querySelectorAll('img').length") == 0
    browser.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert browser.evaluate("document.body.innerText").count(HTML) > 15


def test_the_policy_refuses_all_scripts_but_its_own(made: str, browser: Page) -> None:
    browser.open(made)
    browser.until(DRAWN)
    browser.evaluate(
        """
        document.body.insertAdjacentHTML("beforeend", "<img src=x onerror='window.hacked = 1'>");
        const one = document.createElement("script");
        one.text = "window.hacked = 1";
        document.body.append(one);
        new Image().src = "http://example.invalid/";
        fetch("http://example.invalid/").catch(() => { window.refused = true; });
        """
    )
    browser.until("window.refused === true")
    assert browser.evaluate("window.hacked") is None
    refused = " ".join(browser.complaints)
    for what in ("script-src", "img-src", "connect-src"):
        assert what in refused
    browser.complaints.clear()


def test_the_charts_of_a_run_look_at_the_same_updates(made: str, browser: Page) -> None:
    browser.open(made)
    browser.until(DRAWN)
    whole = set(browser.evaluate(RANGES))
    assert len(whole) == 1
    assert [
        button.partition(" the ")[2]
        for button in browser.evaluate(
            "[...document.querySelectorAll('.views button')].map((one) => one.textContent)"
        )
    ] == ["", "first fault", "first symptom"]
    browser.evaluate("document.querySelectorAll('.views button')[1].click()")
    browser.until("document.querySelectorAll('.views button')[1].getAttribute('aria-pressed') === 'true'")
    assert set(browser.evaluate(RANGES)) == {"1210,1510"}
    loss = "[...document.querySelectorAll('.chart')][1]._fullLayout.yaxis.range[1]"
    assert browser.evaluate(loss) < 2, "the axis shows powers of ten up to the highest loss in view"
    browser.evaluate("document.querySelectorAll('.views button')[0].click()")
    browser.until("document.querySelectorAll('.views button')[0].getAttribute('aria-pressed') === 'true'")
    assert set(browser.evaluate(RANGES)) == whole
    assert browser.evaluate(loss) > 4


def test_what_is_pointed_at_is_told_of_every_chart(made: str, browser: Page) -> None:
    browser.open(made)
    browser.until(DRAWN)
    left, top, width, height = browser.evaluate(
        """
        (() => {
          const one = document.querySelectorAll(".chart")[1];
          one.scrollIntoView({ block: "center" });
          const at = one.getBoundingClientRect();
          return [at.x, at.y, at.width, at.height];
        })()
        """
    )
    for share in (0.6, 0.61):  # a pointer that comes, and moves
        place = {"x": left + share * width, "y": top + height / 2}
        browser.ask("Input.dispatchMouseEvent", type="mouseMoved", **place)
    told = "[...document.querySelectorAll('.chart')].map((one) => one.querySelectorAll('.hovertext').length)"
    browser.until(f"{told}.slice(1).join() === '1,2,2,1,1'")


def test_the_charts_follow_the_colours_of_the_reader(made: str, browser: Page) -> None:
    browser.open(made)
    browser.until(DRAWN)
    light = browser.evaluate(INK)
    browser.resize(1280, 900, dark=True)
    browser.until(f"{INK} !== {light!r}")
    browser.resize(1280, 900)
    browser.until(f"{INK} === {light!r}")


def test_it_prints_in_light_colours_with_all_that_is_folded(made: str, browser: Page) -> None:
    browser.resize(1280, 900, dark=True)
    browser.open(made)
    browser.until(DRAWN)
    dark = browser.evaluate(INK)
    browser.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.evaluate(INK) != dark
    assert browser.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    widths = browser.evaluate("[...document.querySelectorAll('.chart')].map((one) => one._fullLayout.width)")
    assert set(widths) == {680}
    browser.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert browser.evaluate(INK) == dark
    assert browser.evaluate("document.querySelectorAll('details[open]').length") == 0
    pdf = base64.b64decode(browser.ask("Page.printToPDF")["data"])
    assert 3 <= len(re.findall(rb"/Type /Page\b", pdf)) <= 12


def test_many_optimizers_stay_below_8_megabytes_with_every_spike() -> None:
    history = history_of(3_000)
    loss = history.curves[0]
    spiked = replace(loss, y=(*loss.y[:1_234], -5.0, *loss.y[1_235:]))
    history = replace(history, curves=(spiked, *history.curves[1:]))
    several = tuple(replace(history, optimizer=at, title=f"optimizer {at}") for at in range(8))
    told = rendered([telling_of(f"run {at}", histories=several) for at in range(4)])
    assert len(told.encode()) < 8e6
    assert told.count("Loss: loss") == 24
    assert "lowest -5, " in told
    assert told.count(",-5.0,") == 24
    assert "8 more optimizers not drawn on this page." in told


def test_a_run_of_which_nothing_is_known_needs_no_charts(
    monkeypatch: pytest.MonkeyPatch, folder: Path, browser: Page
) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    browser.open(_saved(folder / "empty.html", [empty_of(telling_of("empty").run)]))
    browser.until(DRAWN)
    assert "No error and no warning" in browser.evaluate("document.body.innerText")
    with pytest.raises(ModuleNotFoundError) as refused:
        rendered([telling_of()])
    assert refused.value.name == "plotly"


def test_it_is_the_same_byte_for_byte(tellings: list[PostMortem], real: str) -> None:
    assert rendered(tellings) == Path(real.removeprefix("file://")).read_text(encoding="utf-8")
