"""The order of the suspects, the sentences and the checkpoint of a post-mortem, on ledgers made by hand."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine.catalogue import load_rules
from accumaudit.engine.ignoring import Ignore
from accumaudit.engine.judge import audit
from accumaudit.ledger.reader import read_ledger
from accumaudit.postmortem import PostMortem, post_mortems
from accumaudit.postmortem.roles import role
from accumaudit.postmortem.story import at
from accumaudit.postmortem.suspects import NEAR
from accumaudit.testing.records import build_run, write_records, write_run

pytestmark = pytest.mark.slow  # a ledger is judged for each question

FALLING = [4.0 - 0.015 * update for update in range(120)]
HIGH = [3.9 + 0.01 * (update % 3) for update in range(40)]
TAIL: dict[str, Any] = {"microbatches": 2, "total_weight": 0.5}
HALVED: dict[str, Any] = {"total_weight": 0.5}


def tell(folder: Path) -> PostMortem:
    with read_ledger([folder]) as ledger:
        (told,) = post_mortems(ledger, audit(ledger, load_rules()))
    return told


def attempts(
    losses: Sequence[float], faults: Mapping[int, Mapping[str, Any]] | None = None
) -> list[dict[str, Any]]:
    """Updates with these losses, and the fields of some of them, by their numbers from 1."""
    made = []
    for number, loss in enumerate(losses, start=1):
        own = {"microbatches": 4, **(faults or {}).get(number, {})}
        made.append({"loss": [loss] * own["microbatches"], **own})
    return made


def saved(*attempts: int) -> list[dict[str, Any]]:
    """Checkpoints after these attempts."""
    return [{"kind": "checkpoint", "name": f"step-{number}", "attempt_id": number} for number in attempts]


def codes(told: PostMortem) -> list[str]:
    return [one.verdict.code for one in told.suspects]


def test_a_fault_shortly_before_the_divergence_stands_before_one_that_the_run_had_long_lived_with(
    tmp_path: Path,
) -> None:
    old = dict.fromkeys((4, 8), TAIL)
    told = tell(write_run(tmp_path, attempts(FALLING + HIGH, {**old, 118: HALVED, 119: HALVED})))
    assert told.outcome == "went wrong"
    assert told.onset is not None
    assert told.onset.first is not None
    assert (told.onset.verdict.code, told.onset.first.number) == ("ACC901", 121)
    assert codes(told) == ["ACC104", "ACC101"]
    assert [one.lead for one in told.suspects] == [3, 117]
    assert told.suspects[1].lead is not None
    assert told.suspects[1].lead > NEAR[0]
    assert told.first_wrong is not None
    assert told.first_wrong.verdict.code == "ACC101"
    assert [one.number for one in told.marked] == [4, 118, 121]
    first, second = told.verdict
    assert first.startswith("The strongest suspect lies at update 118: the weights of an update's positions")
    assert second.startswith("3 updates later, at update 121, the training went wrong: from here on the loss")
    assert second.endswith(
        "(ACC901 divergence-onset); the record proves the fault, and not that it led to this."
    )


def test_the_log_does_not_show_why_where_nothing_was_wrong_before(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts(FALLING + HIGH)))
    assert told.outcome == "went wrong"
    assert told.suspects == ()
    assert told.verdict[1].startswith("The log does not show why: ")


def test_what_changed_before_the_divergence_is_told_though_it_is_no_fault(tmp_path: Path) -> None:
    by_hand = {
        "learning_rate": 1e-2,
        "learning_rates": [1e-2],
        "events": "RZfbfbfbFBOS",
        "scheduler_rate": 1e-2,
    }
    told = tell(write_run(tmp_path, attempts(FALLING + HIGH, dict.fromkeys(range(111, 161), by_hand))))
    assert told.suspects == ()
    (change,) = told.changes
    assert (change.moment.number, change.text) == (
        111,
        "the learning rate rose from 0.00047619 to 0.01, 21 times as much",
    )
    assert told.verdict[1].endswith(f". The last change up to there: {change.text}, at update 111.")


def test_a_warm_up_and_a_decay_are_no_changes(tmp_path: Path) -> None:
    rates = [1e-5 * number for number in range(1, 31)] + [3e-4 * 0.5**number for number in range(1, 10)]
    told = tell(write_run(tmp_path, [{"learning_rate": rate, "learning_rates": [rate]} for rate in rates]))
    assert told.changes == ()


def test_another_accumulation_and_another_number_of_ranks_are_changes(tmp_path: Path) -> None:
    write_run(tmp_path, 20)
    write_run(
        tmp_path,
        20,
        ranks=3,
        launch="bbbb",
        first_update=21,
        resumed_from_update=20,
        optimizer_state_step_at_attach=20,
        scheduler_step_at_attach=20,
        started_at=1_700_100_000.0,
        accumulation_steps=8,
    )
    assert [(one.moment.number, one.text) for one in tell(tmp_path).changes] == [
        (21, "the micro-steps to an update changed from 4 to 8"),
        (21, "the number of ranks changed from 2 to 3"),
    ]


def test_a_loss_that_is_not_finite_comes_after_the_fault_before_it(tmp_path: Path) -> None:
    lost = {number: {"loss": [math.nan] * 4} for number in range(7, 11)}
    told = tell(write_run(tmp_path, attempts([3.0] * 10, {5: HALVED, **lost})))
    assert told.outcome == "went wrong"
    assert codes(told) == ["ACC104"]
    assert told.onset is not None
    assert (told.onset.verdict.code, told.onset.first and told.onset.first.number) == ("ACC109", 7)
    assert told.verdict[0].startswith("The strongest suspect lies at update 5: ")
    assert told.verdict[1].startswith("2 updates later, at update 7, the training went wrong: ")


def test_a_fault_after_the_divergence_is_no_suspect_of_it(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts(FALLING + HIGH, {140: HALVED})))
    assert codes(told) == ["ACC104"]
    assert told.suspects[0].lead == -19
    assert told.verdict[1].startswith(
        "The log does not show why: the first other fault is found after it, at update 140"
    )


def test_faults_without_a_divergence_are_told_from_the_first_on(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([3.0, 2.9, 2.8, 2.7], {3: TAIL})))
    assert told.outcome == "faulty"
    assert told.verdict[0].startswith(
        "At update 3 the training is not the one that was meant: a short last window"
    )
    assert told.verdict[1] == (
        "Whether the loss left its history was not checked (fewer than 75 updates of one stage have a loss): "
        "it began at 3 and ends at 2.7."
    )
    assert told.suspects[0].follows == ("ACC104",)
    harm = told.suspects[0].harm
    assert (harm.attempts, harm.of_attempts, harm.size) == (1, 4, "measured 0.5, expected 1")
    assert harm.tokens is not None
    assert harm.of_tokens is not None
    assert harm.tokens / harm.of_tokens == pytest.approx(1 / 7, rel=0.1)


def test_a_healthy_run_has_no_suspect(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([4.0 - 0.02 * update for update in range(100)])))
    assert told.outcome == "clean"
    assert (told.suspects, told.symptoms, told.first_wrong, told.marked, told.around) == (
        (),
        (),
        None,
        (),
        (),
    )
    assert told.verdict[1] == "The loss was not found to leave its history: it began at 4 and ends at 2.02."
    assert told.advice == "Nothing that is reported asks for going back."


def test_a_short_record_that_ends_high_is_told_without_a_claim(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([3.0, 2.9, 7.5])))
    assert told.outcome == "rose"
    assert told.verdict[0] == (
        "The last loss is 7.5, at update 3, and the lowest 2.9, at update 2; 3 records are too few to tell a "
        "divergence from a spike."
    )
    assert told.advice == "The loss rises most at update 3: look for a checkpoint from before it."


def test_a_peak_before_the_lowest_loss_is_not_where_it_began_to_rise(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([3.0, 7.0, 2.0, 3.5, 5.0])))
    assert told.outcome == "rose"
    assert told.advice == "The loss is lowest at update 3: look for a checkpoint from there."
    assert [one.number for one in told.marked] == [3]


def test_the_last_checkpoint_before_the_first_fault_is_where_to_resume(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([3.0] * 6, {4: HALVED}), marks=saved(2, 3, 4, 5)))
    assert told.checkpoint is not None
    assert told.checkpoint.name == "step-3"
    assert told.advice == (
        "Mend ACC104 wrong-total-weight, then resume from step-3, saved after update 3: the last checkpoint "
        "that is known to lie before the first fault, at update 4."
    )


def test_a_checkpoint_of_updates_that_were_done_again_is_no_place_to_resume(tmp_path: Path) -> None:
    marks = [{"kind": "checkpoint", "name": f"first-{number}", "attempt_id": number} for number in (2, 4)]
    write_run(tmp_path, attempts([3.0] * 4), marks=marks)
    write_run(
        tmp_path,
        attempts([3.0] * 4, {3: HALVED}),
        launch="bbbb",
        first_update=3,
        started_at=1_700_100_000.0,
        resumed_from_update=2,
    )
    told = tell(tmp_path)
    assert told.checkpoint is not None
    assert told.checkpoint.name == "first-2"
    assert told.first_wrong is not None
    assert told.first_wrong.first is not None
    assert (told.first_wrong.first.launch, told.first_wrong.first.number) == (2, 5)


def test_nothing_can_be_resumed_where_the_first_update_is_wrong(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, attempts([3.0] * 3, {1: HALVED, 2: HALVED, 3: HALVED})))
    assert told.advice.startswith(
        "The first fault is at update 1, so nothing before it can be resumed: mend ACC104"
    )


def test_a_misleading_record_is_no_fault_of_the_training(tmp_path: Path) -> None:
    wrong = [{"loss": [2.5] * 4, "reported_loss": 10.0}] * 6
    told = tell(write_run(tmp_path, wrong))
    assert told.outcome == "clean"
    assert [one.verdict.code for one in told.others] == ["ACC810"]
    assert told.verdict[1].startswith("What was found is not about the updates: ")
    assert told.first_wrong is None


def test_every_bundled_rule_has_a_role() -> None:
    roles = {code: role(code) for code in load_rules()}
    assert {code for code, one in roles.items() if one == "symptom"} == {
        *("ACC109", "ACC309", "ACC704", "ACC803", "ACC901", "ACC902")
    }
    assert {code for code, one in roles.items() if one == "cost"} == {"ACC503", "ACC504", "ACC506"}
    assert all(one == "record" for code, one in roles.items() if code in ("ACC305", "ACC806", "ACC904"))
    assert role("XY001") == "cause"


def test_a_record_without_updates_is_not_said_to_be_clean(tmp_path: Path) -> None:
    told = tell(write_run(tmp_path, 0))
    assert told.outcome == "unknown"
    assert told.verdict == ("The record holds no update.", "Nothing can be told of this training.")
    assert told.advice == "Nothing could be checked, so the record tells no place to resume from."
    assert [one.reason for one in told.unchecked] == ["no attempt was recorded"]


def test_a_skip_before_any_update_leaves_nothing_to_resume_and_one_after_an_update_does(
    tmp_path: Path,
) -> None:
    storm = [
        {"skipped": True, "grad_scale": 2.0**-step, "loss_scale": [2.0**-step] * 4} for step in range(40)
    ]
    first = tell(write_run(tmp_path / "first", [*storm, {}], ranks=1))
    assert first.verdict[0].startswith("At a skipped attempt before any update the training went wrong: ")
    assert "nothing before it can be resumed" in first.advice
    later = tell(write_run(tmp_path / "later", [{}, *storm], ranks=1))
    assert later.advice.startswith("Resume from before the skipped attempt after update 1.")
    assert later.symptoms[0].harm.attempts == 0


def test_a_state_saved_among_attempts_without_a_record_is_no_place_to_resume(tmp_path: Path) -> None:
    losses, faults = [3.0] * 60, dict.fromkeys(range(35, 61), HALVED)
    sampled = write_run(tmp_path / "sampled", attempts(losses, faults), every=10, marks=saved(15, 25, 33, 37))
    told = tell(sampled)
    assert told.first_wrong is not None
    assert told.first_wrong.first is not None
    assert told.first_wrong.first.number == 41
    assert told.checkpoint is not None
    assert told.checkpoint.name == "step-25"
    lost: dict[str, Any] = {"on": {0: None, 1: None}}
    holed = write_run(tmp_path / "holed", [{}, {}, lost, lost, HALVED], marks=saved(2, 4))
    told = tell(holed)
    assert told.checkpoint is not None
    assert told.checkpoint.name == "step-2"


def test_a_state_that_holds_work_done_again_is_no_place_to_resume_though_its_attempt_has_no_record(
    tmp_path: Path,
) -> None:
    write_run(tmp_path, 60, every=10, marks=saved(15, 38, 47))
    write_run(
        tmp_path,
        attempts([3.0] * 30, {21: HALVED}),
        every=10,
        launch="bbbb",
        first_update=36,
        started_at=1_700_100_000.0,
        resumed_from_update=35,
    )
    told = tell(tmp_path)
    assert told.first_wrong is not None
    assert told.first_wrong.first is not None
    assert told.first_wrong.first.launch == 2
    assert told.checkpoint is not None
    assert told.checkpoint.name == "step-15"


def test_the_first_fault_is_the_earliest_though_optimizers_count_attempts_of_their_own(
    tmp_path: Path,
) -> None:
    """The second optimizer steps at every fifth update of the first: its fourth is the first's twentieth."""
    names = [{"index": place, "class": "AdamW", "name": name} for place, name in enumerate("gd")]
    marks = [{**mark, "micro_step_id": 4 * mark["attempt_id"]} for mark in saved(5, 9, 14)]
    often = [HALVED if number >= 10 else {} for number in range(1, 41)]
    seldom = [{"optimizer": 1, **(TAIL if number == 4 else {})} for number in range(1, 9)]
    records = build_run(often, optimizers=names, marks=marks)
    for rank, lines in build_run(seldom, optimizers=names, close=False).items():
        for number, line in enumerate(lines[1:], start=1):
            line |= {"micro_step_id": 20 * number, "time": records[rank][5 * number]["time"]}
            line["seq"] = 1_000 + number
        records[rank] += lines[1:]
    told = tell(write_records(tmp_path, records))
    places = {one.verdict.code: one.first for one in told.suspects}
    assert {code: (one.optimizer, one.number) for code, one in places.items() if one is not None} == {
        "ACC104": (0, 10),
        "ACC101": (1, 4),
    }
    assert at(places["ACC101"], told.run) == "update 4 of optimizer 1"
    assert told.first_wrong is not None
    assert told.first_wrong.verdict.code == "ACC104"
    assert told.checkpoint is not None
    assert told.checkpoint.name == "step-9"


def test_losses_that_are_not_finite_at_the_end_are_said_to_be_there(tmp_path: Path) -> None:
    reported = [{"loss": [None] * 4, "reported_loss": loss} for loss in [*FALLING, *[math.nan] * 3]]
    told = tell(write_run(tmp_path, reported))
    assert told.verdict[1] == (
        "The finite loss was not found to leave its history: it began at 4 and its last finite value is "
        "2.215; 3 records have a loss that is not finite."
    )


def test_what_is_ignored_is_not_said_to_be_sound(tmp_path: Path) -> None:
    ignored = [Ignore(rule=code, reason="known") for code in ("ACC104", "ACC901")]
    with read_ledger([write_run(tmp_path, attempts(FALLING + HIGH, {10: HALVED}))]) as ledger:
        (told,) = post_mortems(ledger, audit(ledger, load_rules(), ignore=ignored))
    assert told.outcome == "clean"
    assert told.verdict[0].endswith(" could not be checked, what is ignored was found by 2 rules.")
    assert told.verdict[1].startswith(
        "What ACC901 divergence-onset found of the loss is ignored: it began at 4"
    )


def test_the_first_of_the_faults_after_the_divergence_is_named(tmp_path: Path) -> None:
    told = tell(
        write_run(tmp_path, attempts(FALLING + HIGH, {130: TAIL, 140: HALVED}), marks=saved(118, 125))
    )
    assert "the first other fault is found after it, at update 130" in told.verdict[1]
    assert told.advice == (
        "Resume from step-118, saved after update 118: the last checkpoint that is known to lie before the "
        "first symptom, at update 121. The log does not show what to mend: change something before going on."
    )


def test_a_fault_of_the_whole_run_leaves_no_place_to_resume(tmp_path: Path) -> None:
    late = [{"scheduler_step": number - number // 4} for number in range(1, 41)]
    told = tell(write_run(tmp_path, late, marks=saved(20)))
    assert [(one.verdict.code, one.first) for one in told.suspects if one.first is None] == [("ACC303", None)]
    assert told.first_wrong is None
    assert told.advice == (
        "Mend ACC303 schedule-drift. What was found is about the whole run: no update is known from before "
        "which to resume."
    )
