"""Three trainings that went wrong, for real: what the post-mortem tells first is what was done to them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.outputs.postmortem import rendered
from accumaudit.postmortem import PostMortem, post_mortems
from accumaudit.postmortem.model import Suspect
from tests.disasters import DISASTERS, RateScaledAgain
from tests.pages import page
from tests.processes import Processes

pytestmark = pytest.mark.slow  # trains eight models, two of them on three ranks; and a browser

Told = dict[str, PostMortem]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The post-mortem of each training, by its name."""
    root = tmp_path_factory.mktemp("disasters")
    processes = Processes(3)
    try:
        for name, disaster in DISASTERS.items():
            disaster.train(root / name, processes)
    finally:
        processes.close()
    with read_ledger([root]) as ledger:
        return {one.run.run_id: one for one in post_mortems(ledger, audit(ledger, load_rules()))}


def codes(suspects: tuple[Suspect, ...]) -> list[str]:
    return [one.verdict.code for one in suspects]


def place(one: Suspect | None) -> tuple[str, int, int | None]:
    """A suspect's code, and the launch and the update where it lies."""
    assert one is not None
    assert one.first is not None
    return one.verdict.code, one.first.launch, one.first.number


def test_a_rate_that_jumps_at_a_resume_is_told_before_the_divergence_that_comes_later(told: Told) -> None:
    one = told["rate"]
    assert one.outcome == "went wrong"
    assert place(one.first_wrong) == ("ACC306", 2, 11)
    assert codes(one.suspects) == ["ACC306"]
    assert codes(one.symptoms)[0] == "ACC901"
    assert one.onset is not None
    assert one.onset.verdict.code == "ACC901"
    lead = one.suspects[0].lead
    assert lead is not None
    assert lead > 50
    assert one.verdict[0].startswith(
        "The only suspicion lies at update 11: a resumed launch does not go on with"
    )
    assert f"{RateScaledAgain.FACTOR:g} times as much" in one.verdict[0]
    assert one.verdict[1].startswith(
        f"{lead} updates later, at update {11 + lead}, the training went wrong: "
    )
    assert one.verdict[1].endswith(
        "the record only indicates the fault, and does not prove that it led to this."
    )


def test_the_rate_is_suspected_more_than_tails_that_were_wrong_from_the_first_epoch_on(told: Told) -> None:
    one = told["rate and tails"]
    assert place(one.first_wrong) == ("ACC101", 1, 11)
    assert codes(one.suspects) == ["ACC306", "ACC101"]
    assert place(one.suspects[0]) == ("ACC306", 2, 12)
    assert one.verdict[0].startswith("The strongest suspect lies at update 12: a resumed launch")
    assert "ACC101" not in " ".join(one.verdict)
    assert one.advice.startswith(
        "Mend ACC101 fixed-divisor-tail and ACC306 rate-break-at-resume, then resume from before update 11."
    )


def test_the_checkpoint_before_the_jump_is_where_to_resume(told: Told) -> None:
    one = told["rate"]
    assert one.checkpoint is not None
    assert (one.checkpoint.name, one.checkpoint.moment.number) == ("epoch-1.pt", 10)
    assert one.advice == (
        "Mend ACC306 rate-break-at-resume, then resume from epoch-1.pt, saved after update 10: the last "
        "checkpoint that is known to lie before the first fault, at update 11."
    )
    drawn = [(x, text) for x, text in one.histories[0].launches]
    assert drawn == [(11.0, "launch 2, resumed from update 10")]


def test_a_rank_whose_gradients_were_not_reduced_is_named(told: Told) -> None:
    one = told["rank"]
    assert one.outcome == "faulty"
    assert place(one.first_wrong) == ("ACC604", 1, 1)
    assert codes(one.suspects) == ["ACC604"]
    assert one.suspects[0].follows == ("ACC605",)
    assert one.verdict[0].endswith("; rank 2 stands out, the other 2 do not.")
    assert one.strip is not None
    assert (one.strip.ranks, one.strip.quiet) == (3, 2)
    assert [row.rank for row in one.strip.rows] == [2]
    assert set(one.strip.rows[0].shares) == {1.0}
    assert any("slice of the gradient" in why for why in one.strip.rows[0].why)
    assert one.advice == (
        "The first fault is at update 1, so nothing before it can be resumed: "
        "mend ACC604 gradient-disagreement and start anew."
    )


def test_a_scale_that_collapses_is_told_from_its_first_skip_on(told: Told) -> None:
    one = told["scale"]
    assert one.outcome == "went wrong"
    assert place(one.first_wrong) == place(one.onset) == ("ACC704", 1, 12)
    assert one.onset is not None
    assert one.onset.first is not None
    assert (one.onset.first.attempt_id, one.onset.first.skipped) == (13, True)
    assert one.verdict[0].startswith(
        "At the skipped attempt after update 12 the training went wrong: 28 of 40 attempts were skipped, "
    )
    assert one.verdict[1].startswith("The log does not show why: ")
    assert (one.suspects, one.histories[0].axis, len(one.histories[0].skipped)) == ((), "attempt", 28)


def test_a_schedule_that_goes_on_over_the_skips_is_told_as_what_follows_from_them(told: Told) -> None:
    one = told["scale and schedule"]
    assert place(one.first_wrong)[0] == "ACC704"
    assert codes(one.suspects) == ["ACC302"]
    assert one.verdict[1].startswith(
        "The log does not show why: the first other fault is found on the skips themselves (ACC302 "
    )


@pytest.mark.parametrize("name", ["rate, right", "rank, right", "scale, right"])
def test_the_same_training_without_the_fault_is_told_to_be_clean(told: Told, name: str) -> None:
    one = told[name]
    assert one.outcome == "clean"
    assert (one.suspects, one.symptoms, one.first_wrong) == ((), (), None)
    assert re.fullmatch(r"\d+ rules passed, \d+ could not be checked\.", one.verdict[0])
    assert one.strip is None or one.strip.rows == ()
    assert one.advice == "Nothing that is reported asks for going back."


@pytest.mark.parametrize("format_", ["markdown", "html"])
@pytest.mark.parametrize(
    ("name", "cause", "later"),
    [
        ("rate", "ACC306", ["ACC901"]),
        ("rate and tails", "ACC306", ["ACC101", "ACC901"]),
        ("rank", "ACC604", ["ACC605"]),
        ("scale", "ACC704", []),
        ("scale and schedule", "ACC704", ["ACC302"]),
    ],
)
def test_whoever_reads_the_report_meets_the_cause_first(
    told: Told, name: str, cause: str, later: list[str], format_: str
) -> None:
    text = rendered([told[name]], format_).partition("<body")[2 if format_ == "html" else 0]
    met = re.findall(r"ACC\d{3}", text)
    assert met[0] == cause
    assert set(later) <= set(met)


def test_the_json_holds_the_order_of_the_suspects(told: Told) -> None:
    (run,) = json.loads(rendered([told["rate and tails"]], "json"))["runs"]
    assert [suspect["code"] for suspect in run["suspects"]] == ["ACC306", "ACC101"]


def test_all_the_reports_open_in_a_browser_without_a_complaint(told: Told, tmp_path: Path) -> None:
    file = tmp_path / "disasters.html"
    file.write_text(rendered(list(told.values()), "html"), encoding="utf-8")
    with page() as browser:
        browser.open(file.as_uri())
        browser.until("document.body.dataset.drawn === 'true'")
        assert browser.evaluate("document.querySelectorAll('.chart').length") > len(told)
        for one in told.values():
            assert one.verdict[0] in browser.evaluate("document.body.innerText")
        assert browser.complaints == []
