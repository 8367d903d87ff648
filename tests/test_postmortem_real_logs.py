"""The post-mortems of other people's logs: what they say stands there, and no healthy run is accused."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from itertools import pairwise
from typing import Final

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import Ledger
from accumaudit.outputs.postmortem import rendered
from accumaudit.postmortem import PostMortem, post_mortems
from accumaudit.postmortem.model import LossFacts, Moment
from tests.real_logs import real_logs

pytestmark = pytest.mark.slow  # more than a hundred logs are audited

Told = dict[str, PostMortem]

ROSE: Final = {
    "bloom-tr1-13B.chronicles.md",
    "bloom-tr8-104B.chronicles.md",
    *(f"bloom-tr8-104B.chronicles.md#{number}" for number in (2, 3, 4)),
    *("bs-meg-n64.out", "bs-megds-ds-off.out", "bs-megds-zero-n16.out"),
}
"""Logs that end while the loss is high, before there are enough records to judge."""

MEGATRON: Final = re.compile(r"iteration +(\d+)/ *\d+ .*?lm loss: ([0-9.E+]+)")


@pytest.fixture(scope="module")
def told(logs: Ledger) -> Told:
    """The post-mortem of each log, by the name of its run."""
    return {one.run.run_id: one for one in post_mortems(logs, audit(logs, load_rules()))}


def loss_of(one: PostMortem) -> LossFacts:
    assert one.loss is not None
    return one.loss


def others(one: PostMortem) -> list[tuple[str, str]]:
    return [(other.verdict.code, other.verdict.severity) for other in one.others]


def fact(one: PostMortem, label: str) -> str | None:
    return dict(one.facts).get(label)


def test_no_log_is_said_to_have_gone_wrong_or_to_be_faulty(told: Told) -> None:
    """None holds what would prove it: no micro-batches, and no loss that stays high for long enough."""
    assert len(told) > 100
    assert {name for name, one in told.items() if one.outcome == "rose"} == ROSE
    assert {one.outcome for name, one in told.items() if name not in ROSE} == {"clean", "unknown"}
    assert {one.run.attempts for one in told.values() if one.outcome == "unknown"} == {0}
    assert [name for name, one in told.items() if one.first_wrong or one.onset or one.suspects] == []


def test_every_form_of_every_report_can_be_written(told: Told) -> None:
    text = rendered(list(told.values()), "markdown")
    assert text.count("\n# Post-mortem of ") + 1 == len(told)
    document = json.loads(rendered(list(told.values()), "json"))
    assert [run["run_id"] for run in document["runs"]] == list(told)


@pytest.mark.parametrize(
    ("name", "first", "lowest", "steepest"),
    [
        ("bloom-tr8-104B.chronicles.md", 7_000, 7_000, (7_000, 7_010)),
        ("bloom-tr8-104B.chronicles.md#2", 6_900, 6_900, (6_920, 6_930)),
        ("bloom-tr8-104B.chronicles.md#3", 11_446, 11_446, (11_447, 11_448)),
        ("bloom-tr8-104B.chronicles.md#4", 8_738, 8_738, (8_740, 8_741)),
        ("bloom-tr1-13B.chronicles.md", 29_020, 29_040, (29_040, 29_050)),
    ],
)
def test_what_is_told_of_a_loss_that_leapt_stands_in_the_logbook(
    told: Told, name: str, first: int, lowest: int, steepest: tuple[int, int]
) -> None:
    one, quoted = told[name], quotes(name.partition("#")[0])
    loss = loss_of(one)
    assert loss.first in quoted[first]
    assert (loss.lowest_at.number, loss.lowest in quoted[lowest]) == (lowest, True)
    assert loss.last in quoted[number_of(loss.last_at)]
    assert (number_of(loss.steepest_after), number_of(loss.steepest_at)) == steepest
    assert loss.steepest is not None
    rises = [after - before for before in quoted[steepest[0]] for after in quoted[steepest[1]]]
    assert any(rise == pytest.approx(loss.steepest) for rise in rises)
    assert one.marked == (loss.steepest_at,)


def quotes(log: str) -> dict[int, set[float]]:
    """The losses that a logbook quotes for each step, read without the project's own reader."""
    text = (real_logs() / "logbook" / log).read_text(encoding="utf-8")
    found: dict[int, set[float]] = defaultdict(set)
    for step, loss in MEGATRON.findall(text):
        found[int(step)].add(float(loss))
    return found


def number_of(moment: Moment | None) -> int:
    assert moment is not None
    assert moment.number is not None
    return moment.number


def test_a_logbook_proves_no_divergence_and_no_cause(told: Told) -> None:
    one = told["bloom-tr8-104B.chronicles.md#4"]
    assert one.verdict == (
        "The last loss is 7.59651, at step 8,743, and the lowest 3.31748, at step 8,738; "
        "6 records are too few to tell a divergence from a spike.",
        "The log does not show why: 3 rules passed, 66 could not be checked.",
    )
    assert one.advice == "The loss rises most at step 8,741: look for a checkpoint from before it."
    assert told["bloom-tr8-104B.chronicles.md#2"].advice == (
        "The loss rises most between step 6,920 and step 6,930: look for a checkpoint from before it."
    )
    drawn = one.histories[0].curve("grad_norm_before")
    assert drawn is not None
    assert max(y for y in drawn.y if y is not None) == 3_273_878  # of step 8,741


def test_runs_that_were_started_again_are_told_apart(told: Told) -> None:
    again = [told[f"mds-4runs-concatenated.log{part}"] for part in ("", "#2", "#3", "#4")]
    assert [(loss_of(one).first, loss_of(one).last) for one in again] == [(12.64183, 10.66876)] * 4
    assert [others(one) for one in again] == [[]] * 4
    whole, cut = (told[f"mds-watch-recollect-restart.log{part}"] for part in ("", "#2"))
    assert (whole.run.updates, others(whole)) == (20, [])
    assert (cut.run.updates, others(cut)) == (15, [("ACC808", "note")])
    assert cut.others[0].verdict.finding is not None
    assert cut.others[0].verdict.finding.message == "the record ends at 15 of 20 updates"
    assert [one.histories[0].launches for one in (*again, whole, cut)] == [()] * 6


def test_two_writers_mislead_readers_and_change_no_update(told: Told) -> None:
    one = told["sft-two-writers.trainer_log"]
    assert one.verdict == (
        "5 rules passed, 62 could not be checked.",
        "What was found is not about the updates: 656 of 656 steps stand more than once in this log, with "
        "other losses: two processes wrote it; this one again on line 2 (ACC806 duplicated-records).",
    )
    assert others(one) == [("ACC806", "warning"), ("ACC808", "note")]
    assert one.histories[0].launches == ((5010.0, "launch 2, resumed from update 5000"),)
    assert one.quality == (
        "One record for 10 steps; those between are not checked.",
        "24 records of launch 1 (steps 5,010 to 5,240) were done again by a later launch and are left out "
        "here.",
        "678 records stand in the files a second time; the first of each is read.",
    )
    log = (real_logs() / "llamafactory" / "sft-two-writers.trainer_log.jsonl").read_text(encoding="utf-8")
    steps = [line["current_steps"] for line in map(json.loads, log.splitlines()) if "loss" in line]
    assert len(steps) == 656 + 24 + 678
    back = [after for before, after in pairwise(steps) if after < before - 20]
    assert back == [5010]


def test_skips_that_the_scale_explains_are_facts_and_no_faults(told: Told) -> None:
    one = told["dschat-step1-opt1.3b-gbs128.log"]
    assert fact(one, "Record") == "DeepSpeed's log, 736 records of 7,360 steps, 139 steps skipped"
    assert fact(one, "Planned") == "7,360 updates"
    assert one.verdict[1] == "No update in the record has a finite loss."
    assert others(one) == [("ACC804", "note")]
    passed = {verdict.code for verdict in one.run.with_status("passed")}
    assert "ACC704" in passed
    log = (real_logs() / "deepspeed" / "dschat-step1-opt1.3b-gbs128.log").read_text(encoding="utf-8")
    assert log.count("OVERFLOW!") == 139


def test_what_a_log_cannot_show_is_said_with_what_would_show_it(told: Told) -> None:
    for one in told.values():
        listed = {verdict.code for missing in one.unchecked for verdict in missing.verdicts}
        assert listed == {verdict.code for verdict in one.run.with_status("not_checked")}
    remedies = {
        missing.remedy
        for missing in told["bloom-tr8-104B.chronicles.md"].unchecked
        if missing.reason == "the logbook holds no loss weights"
    }
    assert len(remedies) == 1
    assert str(remedies.pop()).startswith("attach accumaudit to the training")


def test_a_log_without_updates_tells_nothing_of_a_training(told: Told) -> None:
    assert told["peft-debug.train.out"].verdict[0] == "The record holds no update."
