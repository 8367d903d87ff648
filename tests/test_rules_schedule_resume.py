"""Rule ACC306 on hand-made ledgers: the rate before and after a resume."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import build_run, write_records, write_run
from tests.verdicts import Row, faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC306"
RIGHT = "ZFBFBFBFBOS"
LATER: dict[str, Any] = {"launch": "bbbb", "started_at": 1_700_001_000.0}

Schedule = Callable[[int], float]
"""The rate of each update, from 1."""

Updates = list[dict[str, Any]]


def linear(update: int) -> float:
    """From 1e-3 to 0 over 100 updates."""
    return 1e-3 * (1 - (update - 1) / 100)


def cosine(update: int) -> float:
    """From 1e-3 to 0 over 100 updates."""
    return 5e-4 * (1 + math.cos(math.pi * (update - 1) / 100))


def steps(numbers: Sequence[int], rate: Schedule = linear, *, ahead: int = 0, **more: Any) -> Updates:
    """These updates, each with its rate and the next one; the scheduler stands `ahead` of them."""
    return [
        {
            "learning_rate": rate(number),
            "scheduler_rate": rate(number + 1),
            "optimizer_update_id": number,
            "scheduler_step": number + ahead,
            "optimizer_state_step": number,
            "events": RIGHT,
            **more,
        }
        for number in numbers
    ]


@dataclass
class Case:
    """What two launches did, as one optimizer of the run."""

    before: Updates
    after: Updates
    rows: list[Row] = field(default_factory=list)


def judged(folder: Path, cases: Mapping[str, Case], *, first: Any = None, second: Any = None) -> None:
    """One run of two launches, each case an optimizer of its own; its rows are put into the case."""
    for launch, fields in ((0, first or {}), (1, (second or {}) | LATER)):
        records = build_run(0, 1, close=False, **fields)
        for optimizer, case in enumerate(cases.values()):
            updates = [
                update | {"optimizer": optimizer} for update in (case.after if launch else case.before)
            ]
            records[0] += build_run(updates, 1, close=False, **fields)[0][1:]
        write_records(folder / "run", records, fields.get("launch", "aaaa"))
    rows = judge(CODE, folder / "run")
    for optimizer, case in enumerate(cases.values()):
        case.rows = [row for row in rows if row.optimizer == optimizer]


def by_case(cases: Mapping[str, Case]) -> dict[str, list[bool | None]]:
    """The verdicts on each case."""
    return {name: [row.fault for row in case.rows] for name, case in cases.items()}


def test_the_rate_before_once_more_is_found(tmp_path: Path) -> None:
    case = Case(steps(range(1, 51)), steps(range(51, 60), lambda n: linear(n - 1), ahead=-1))
    judged(tmp_path, {"late": case})
    (row,) = case.rows
    assert (row.fault, row.attempt, row.severity) == (True, 1, "error")
    assert row.observed == pytest.approx(5.1e-4)
    assert row.expected == pytest.approx(5e-4)
    assert row.message == (
        "resumed after update 50 at a rate of 0.00051 where 0.0005 was due: "
        "the rate of the update before once more, so the schedule is one step late"
    )


def test_each_kind_of_break_is_named(tmp_path: Path) -> None:
    cases = {
        "one step was passed over, so the schedule is one step early": lambda n: linear(n + 1),
        "the rate of the run's first update, so the schedule has begun again": lambda n: linear(n - 50),
        "the schedule was applied twice, to a rate that it had set to 0.5 of the peak already": (
            lambda n: linear(n) * linear(n) / 1e-3
        ),
        "0.3 times as much; a second stage that is not declared looks the same": lambda n: linear(n) * 0.3,
    }
    run = {words: Case(steps(range(1, 51)), steps(range(51, 60), rate)) for words, rate in cases.items()}
    judged(tmp_path, run)
    for words, case in run.items():
        (row,) = case.rows
        assert row.fault
        assert row.message.endswith(words)
        assert row.severity == ("warning" if "not declared" in words else "error")


def test_the_highest_rate_again_is_found(tmp_path: Path) -> None:
    """A constructor resets the rate for one update; the scheduler's state then sets it right."""

    def warmed(update: int) -> float:
        return 1e-4 * update if update < 10 else linear(update - 9)

    after = steps([51], lambda n: 1e-3 if n == 51 else warmed(n)) + steps(range(52, 60), warmed)
    case = Case(steps(range(1, 51), warmed), after)
    judged(tmp_path, {"peak": case})
    (row,) = case.rows
    assert (row.fault, row.severity) == (True, "error")
    assert row.message.endswith("the highest rate of the run again")


def test_a_shift_that_hardly_matters_is_a_warning(tmp_path: Path) -> None:
    def long(update: int) -> float:
        return 1e-3 * (1 - update / 45_430)

    case = Case(steps(range(1, 51), long), steps(range(51, 60), lambda n: long(n - 1), ahead=-1))
    judged(tmp_path, {"late": case})
    assert [(row.fault, row.severity) for row in case.rows] == [(True, "warning")]


def test_updates_that_were_done_again_show_what_comes_later(tmp_path: Path) -> None:
    """The first rate is right; the constructor had made a step of its own."""
    again = steps(range(51, 70), lambda n: cosine(n) if n == 51 else cosine(n) * 0.98)
    case = Case(steps(range(1, 66), cosine), again)
    judged(tmp_path, {"later": case})
    (row,) = case.rows
    assert (row.fault, row.attempt, row.severity) == (True, 2, "error")
    assert row.message == (
        f"resumed after update 50; update 52 was done again at a rate of {cosine(52) * 0.98:.6g} "
        f"where the launch before had {cosine(52):.6g}"
    )


def test_the_position_tells_a_step_too_many_where_the_rate_turns(tmp_path: Path) -> None:
    def top(update: int) -> float:
        return 1e-3 * (update / 51 if update <= 51 else (91 - update) / 40)

    case = Case(steps(range(1, 51), top), steps(range(51, 60), lambda n: top(n + 1), ahead=1))
    judged(tmp_path, {"early": case})
    (row,) = case.rows
    assert (row.fault, row.severity) == (True, "error")
    assert row.message.endswith("one step was passed over, so the schedule is one step early")


def test_a_scheduler_that_stands_one_step_off_is_a_warning(tmp_path: Path) -> None:
    case = Case(steps(range(1, 51)), steps(range(51, 60), ahead=1))
    judged(tmp_path, {"off": case})
    (row,) = case.rows
    assert (row.fault, row.severity) == (True, "warning")
    assert row.message == (
        "resumed after update 50 at the right rate, 0.0005, with the scheduler at position 51 "
        "where it stood at 50: what follows is 1 step early or late"
    )


def begun_again(rate: Schedule, loaded: float) -> Updates:
    """A schedule that begins again on an optimizer whose loaded rate is good for one more update."""
    first, *others = steps(range(1, 9), rate)
    return [
        update | {"optimizer_update_id": number, "optimizer_state_step": number}
        for number, update in enumerate([first | {"learning_rate": loaded}, *others], 51)
    ]


def test_a_schedule_that_begins_again_behind_a_loaded_rate_is_found(tmp_path: Path) -> None:
    case = Case(steps(range(1, 51)), begun_again(linear, linear(51)))
    judged(tmp_path, {"again": case})
    (row,) = case.rows
    assert (row.fault, row.attempt, row.severity) == (True, 1, "error")
    assert (row.observed, row.expected) == (0, 50)
    assert row.message == (
        "resumed after update 50 at the right rate, 0.0005, with the scheduler at position 0 where it stood "
        "at 50: the rates that follow are those that the run had there before"
    )


def test_a_schedule_that_begins_again_on_the_rate_that_it_had_reached_is_found(tmp_path: Path) -> None:
    """A cosine that multiplies the rate which is there: half of what it was at each position."""
    reached = cosine(51) / 1e-3
    case = Case(steps(range(1, 51), cosine), begun_again(lambda n: reached * cosine(n), cosine(51)))
    judged(tmp_path, {"twice": case})
    (row,) = case.rows
    assert (row.fault, row.severity) == (True, "warning")
    assert row.message.endswith("the rates that follow are 0.5 of those that the run had there before")


def test_an_exponential_decay_may_be_counted_anew(tmp_path: Path) -> None:
    def exponential(update: int) -> float:
        return 1e-3 * 0.99 ** (update - 1)

    reached = exponential(51) / 1e-3
    case = Case(
        steps(range(1, 51), exponential), begun_again(lambda n: reached * exponential(n), exponential(51))
    )
    judged(tmp_path, {"counted anew": case})
    assert by_case({"counted anew": case}) == {"counted anew": [False]}


def test_a_period_that_begins_again_is_none(tmp_path: Path) -> None:
    """Warm restarts every 50 updates, counted from 0 again when one is due."""

    def restarts(update: int) -> float:
        return cosine((update - 1) % 50 * 2 + 1)

    case = Case(steps(range(1, 51), restarts), begun_again(restarts, restarts(51)))
    judged(tmp_path, {"period": case})
    assert by_case({"period": case}) == {"period": [False]}


def skipped(number: int, word: str = "ZFBFBFBFBX", *, moved: int = 0) -> dict[str, Any]:
    """An attempt after this update that was skipped."""
    (update,) = steps([number + 1])
    held = {"optimizer_update_id": number, "optimizer_state_step": number, "skipped": True, "events": word}
    following = {"scheduler_step": number + moved, "scheduler_rate": linear(number + 1 + moved)}
    return update | held | following


def test_right_resumes_are_silent(tmp_path: Path) -> None:
    def restarts(update: int) -> float:
        return cosine((update - 1) % 50 * 2 + 1)

    def plateau(update: int) -> float:
        return 1e-3 if update <= 50 else 1e-4

    def shorter(update: int) -> float:
        return linear(update) if update <= 50 else linear(update) * 0.5

    cases = {
        "it goes on": Case(steps(range(1, 51)), steps(range(51, 60))),
        "updates were done again": Case(steps(range(1, 66), cosine), steps(range(51, 70), cosine)),
        "a warm restart is due": Case(steps(range(1, 51), restarts), steps(range(51, 60), restarts)),
        "a step of the schedule is due": Case(steps(range(1, 51), plateau), steps(range(51, 60), plateau)),
        "in the flat part": Case(steps(range(1, 51), plateau), steps(range(51, 60), plateau)),
        "a constant rate without a schedule": Case(
            steps(range(1, 51), lambda _: 1e-3, scheduler_rate=None, scheduler_step=None, events="ZFBO"),
            steps(range(51, 60), lambda _: 1e-3, scheduler_rate=None, scheduler_step=None, events="ZFBO"),
        ),
        "fast-forwarded": Case(steps(range(1, 51)), steps([51], events="S{S}48SZFBFBFBFBOS")),
        "counted from 0 with an offset": Case(steps(range(1, 51)), steps(range(51, 60), ahead=-50)),
        "after a skip that held the schedule": Case(
            [*steps(range(1, 51)), skipped(50)], steps(range(51, 60))
        ),
        "saved before a skip that moved it": Case(
            [*steps(range(1, 51)), skipped(50, "ZFBFBFBFBXS", moved=1)], steps(range(51, 60))
        ),
        "saved after it": Case(
            [*steps(range(1, 51)), skipped(50, "ZFBFBFBFBXS", moved=1)],
            steps(range(51, 60), lambda n: linear(n + 1), ahead=1),
        ),
        "the first attempt is skipped": Case(
            steps(range(1, 51)), [skipped(50) | {"learning_rate": linear(51)}, *steps(range(51, 60))]
        ),
        "a new optimizer and a new schedule": Case(
            steps(range(1, 51)),
            [
                update | {"optimizer_state_step": place}
                for place, update in enumerate(steps(range(51, 60), shorter, ahead=-50), 1)
            ],
        ),
    }
    judged(tmp_path, cases)
    assert by_case(cases) == {name: [False] for name in cases}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"planned_updates": 100}, {"planned_updates": 200}),
        ({}, {"peak_learning_rate": 3e-5}),
        ({"min_learning_rate": 0.0}, {"min_learning_rate": 1e-5}),
        ({}, {"warmup_updates": 20}),
        ({}, {"scheduler_class": "CosineAnnealingLR"}),
        ({}, {"optimizers": [{"index": 0, "class": "SGD", "name": None}]}),
    ],
    ids=str,
)
def test_a_second_stage_is_none(tmp_path: Path, first: dict[str, Any], second: dict[str, Any]) -> None:
    case = Case(steps(range(1, 51)), steps(range(51, 60), lambda n: linear(n - 50)))
    judged(tmp_path, {"stage": case}, first=first, second=second)
    assert by_case({"stage": case}) == {"stage": [False]}


def test_a_stage_may_be_declared_later(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps(range(1, 51)), 1, close=False)
    declared = [{"kind": "declare", "name": '{"peak_learning_rate": 0.0001}', "attempt_id": 0}]
    write_run(run, steps(range(51, 60), lambda n: linear(n) * 0.1), 1, marks=declared, **LATER)
    assert faults(CODE, run) == [False]


def test_what_is_declared_in_the_first_launch_alone_is_no_new_stage(tmp_path: Path) -> None:
    case = Case(steps(range(1, 51)), steps(range(51, 60), lambda n: linear(n - 1), ahead=-1))
    judged(tmp_path, {"late": case}, first={"planned_updates": 100})
    assert by_case({"late": case}) == {"late": [True]}


def test_what_cannot_be_compared_is_unknown(tmp_path: Path) -> None:
    late = steps(range(51, 60), lambda n: linear(n - 1))
    cases = {
        "the rate is set by hand": Case(
            steps(range(1, 51), events="RZFBO", scheduler_rate=None, scheduler_step=None),
            steps(range(51, 60), lambda n: linear(n) * 0.3, events="RZFBO", scheduler_rate=None),
        ),
        "set by hand after the schedule": Case(
            steps(range(1, 51), scheduler_rate=1.0), steps(range(51, 60), scheduler_rate=1.0)
        ),
        "the schedule steps before each update": Case(
            [*steps(range(1, 50)), *steps([50], events="ZFBFBFBFBO", scheduler_rate=linear(50))], late
        ),
        "no record of the update before": Case(steps(range(1, 41)), late),
        "no record of the first attempt": Case(
            steps(range(1, 51)), [update | {"attempt_id": n} for n, update in enumerate(late, 2)]
        ),
        "no rate": Case(steps(range(1, 51)), steps([51], learning_rate=None)),
        "the schedule had come to its end": Case(
            steps(range(1, 51), lambda n: max(0.0, 1e-3 * (51 - n) / 50)),
            steps(range(51, 60), lambda _: 1e-3),
        ),
    }
    judged(tmp_path, cases)
    assert by_case(cases) == {name: [None] for name in cases}


def test_rates_set_by_hand_are_compared_where_updates_were_done_again(tmp_path: Path) -> None:
    by_hand: dict[str, Any] = {"events": "RZFBO", "scheduler_rate": None, "scheduler_step": None}
    cases = {
        "right": Case(steps(range(1, 66), **by_hand), steps(range(51, 70), **by_hand)),
        "late": Case(
            steps(range(1, 66), **by_hand), steps(range(51, 70), lambda n: linear(n - 1), **by_hand)
        ),
    }
    judged(tmp_path, cases)
    assert by_case(cases) == {"right": [False], "late": [True]}
    assert cases["late"].rows[0].severity == "error"


def test_a_jump_with_another_number_of_ranks_is_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps(range(1, 51)), 1, close=False)
    write_run(run, steps(range(51, 60), lambda n: 0.7 * linear(n)), 2, **LATER)
    assert faults(CODE, run) == [None]


def test_without_a_count_of_updates_the_position_tells_where_it_goes_on(tmp_path: Path) -> None:
    """SGD has no state, and the loop does not save the audit's."""
    run = write_run(tmp_path / "run", steps(range(1, 51), optimizer_state_step=None), 1, close=False)
    after = [
        update | {"optimizer_update_id": n, "optimizer_state_step": None, "learning_rate": rate}
        for n, (update, rate) in enumerate(
            zip(steps(range(41, 45)), [1e-3, 6e-4, 5.9e-4, 5.8e-4], strict=True), 1
        )
    ]
    write_run(run, after, 1, scheduler_step_at_attach=40, **LATER)
    row = the_fault(CODE, run)
    assert row.message.startswith(
        "resumed after update at position 40 at a rate of 0.001 where 0.0006 was due"
    )


def test_every_fifth_record_is_enough_where_the_last_one_is_there(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps(range(1, 52)), 1, close=False, every=5)
    write_run(run, steps(range(52, 60), lambda n: linear(n - 1)), 1, every=5, **LATER)
    assert faults(CODE, run) == [True]


def test_a_run_of_one_launch_and_a_second_fresh_run_are_out_of_scope(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", steps(range(1, 11)), 1)
    write_run(run, steps(range(1, 11)), 1, **LATER)
    reports = check_paths([run], select=[CODE]).runs
    assert [report.verdicts[0].reason for report in reports] == ["no launch continued an earlier one"] * 2
