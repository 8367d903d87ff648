"""Rule ACC302 on hand-made ledgers: schedules that move, or seem to move, on skipped attempts."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC302"
RIGHT = "ZFBFBFBFBUCOGS"
HELD = "ZFBFBFBFBUCXG"
MOVED = "ZFBFBFBFBUCXGS"


def attempts(
    words: Iterable[str], positions: Iterable[int | None] | None = None, **more: Any
) -> list[dict[str, Any]]:
    """Attempts of these words; the scheduler stands where its steps bring it, or at these positions."""
    words = list(words)
    counted = [sum(word.count("S") for word in words[: n + 1]) for n in range(len(words))]
    return [
        {
            "events": word,
            "scheduler_step": position,
            "skipped": "X" in word,
            "skip_evidence": "scaler",
            **more,
        }
        for word, position in zip(words, counted if positions is None else positions, strict=True)
    ]


def test_a_step_of_the_schedule_on_a_skip_is_found(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", attempts([RIGHT, RIGHT, MOVED, RIGHT]), 1)
    row = the_fault(CODE, run)
    assert (row.attempt, row.severity, row.observed, row.expected) == (3, "warning", 1, 0)
    assert row.message == (
        "the attempt was skipped (scaler) and the scheduler moved by 1 to position 3: "
        "on skips it has run 1 ahead in all, 0.1 % of 1000 updates (no length is declared)"
    )
    assert faults(CODE, run) == [True]


@pytest.mark.parametrize(
    ("skips", "planned", "severity"),
    [
        (1, None, "warning"),
        (2, None, "error"),
        (2, 2000, "warning"),
        (3, 2000, "error"),
        (1, 900, "error"),
        (9, 100_000, "warning"),
    ],
)
def test_the_harm_is_measured_by_the_length_of_the_run(
    tmp_path: Path, skips: int, planned: int | None, severity: str
) -> None:
    words = [MOVED] * skips + [RIGHT] * (skips + 1)
    rows = judge(CODE, write_run(tmp_path / "run", attempts(words), 1, planned_updates=planned))
    assert [(row.fault, row.severity) for row in rows] == [(True, severity)] * skips
    assert f"on skips it has run {skips} ahead in all" in rows[0].message


def test_skips_of_all_launches_add_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", attempts([RIGHT, MOVED, RIGHT]), 1, close=False)
    again = attempts([RIGHT, MOVED, RIGHT], [4, 5, 6])
    write_run(run, again, 1, launch="bbbb", first_update=3, started_at=1_700_001_000.0)
    assert [(row.fault, row.severity) for row in judge(CODE, run)] == [(True, "error")] * 2


def test_it_is_found_wherever_the_loop_steps_the_schedule(tmp_path: Path) -> None:
    words = {
        "after the scaler": MOVED,
        "a fused kernel skips inside": "ZFBFBFBFBXGS",
        "before the optimizer": "ZFBFBFBFBUCSXG",
        "the data ends afterwards": MOVED + "|",
        "the end was fetched ahead": "ZFBFBFB|FBUCXGS",
        "one backward": "ZFBXGS",
    }
    cases = {case: attempts([RIGHT, word, RIGHT]) for case, word in words.items()}
    assert by_case(CODE, run_of_cases(tmp_path, cases), cases) == {case: [True] for case in cases}


def test_the_first_attempts_of_a_launch_may_all_be_skips(tmp_path: Path) -> None:
    assert faults(CODE, write_run(tmp_path / "a", attempts([MOVED] * 3), 1)) == [True] * 3
    assert faults(CODE, write_run(tmp_path / "b", attempts([HELD] * 3), 1)) == [False] * 3


def test_as_many_steps_as_the_contract_says_count_once(tmp_path: Path) -> None:
    words = [RIGHT + "S", MOVED + "S", RIGHT + "S"]
    run = write_run(tmp_path / "run", attempts(words), 1, scheduler_steps_per_update=2.0)
    row = the_fault(CODE, run)
    assert row.observed == 2
    assert "it has run 1 ahead in all" in row.message


def test_honest_loops_are_silent(tmp_path: Path) -> None:
    validation = "ZFBFBSFBFBUCOG"
    cases = {
        "a gated schedule": attempts([HELD, HELD, RIGHT, RIGHT, HELD, RIGHT]),
        "set back around a skip": attempts([RIGHT, RIGHT, MOVED, RIGHT], [1, 2, 1, 2]),
        "set back by two and stepped once": attempts([RIGHT, RIGHT, RIGHT, MOVED, RIGHT], [1, 2, 3, 2, 3]),
        "set to an absolute place": attempts([RIGHT, RIGHT, MOVED, RIGHT, RIGHT], [0, 0, 0, 1, 1]),
        "once an epoch, on a skip": attempts(["ZFBO", "ZFBO", "ZFBOS", "ZFBO", "ZFBO", "ZFBXS"]),
        "once an epoch, the end seen": attempts(["ZFBO|S", "ZFBX|S", "ZFBO|S"]),
        "in short epochs, the end seen ahead": attempts(["ZF|BOS", "ZF|BXS", "ZF|BOS"]),
        "after a validation": attempts(["ZFBO", "ZFBO", "ZFBOS", "ZFBX", "ZFBO", "ZFBXS", "ZFBO"]),
        "a validation inside a window": attempts([validation, "ZFBFBSFBFBUCXG", validation]),
        "per micro-step, which is ACC301": attempts(
            ["ZFBSFBSFBSFBOGS", "ZFBSFBSFBSFBXGS", "ZFBSFBSFBSFBOGS"]
        ),
        "per micro-step, all at the end": attempts(["ZFBFBFBFBOGSSSS", "ZFBFBFBFBXGSSSS", "ZFBFBFBFBOGSSSS"]),
        "fast-forwarded before a first skip": attempts(["S{S}998SZFBFBFBFBUCXG", RIGHT, RIGHT]),
        "an epoch's step after a dropped tail": attempts([RIGHT, "FBFB|SZFBFBFBFBUCXG", RIGHT]),
        "a rate set by hand": attempts(["RZFBO", "RZFBX", "RZFBO"], [0, 0, 0]),
    }
    found = by_case(CODE, run_of_cases(tmp_path, cases), cases)
    assert {case for case, rows in found.items() if set(rows) != {False}} == set()


def test_an_epochs_end_may_be_known_from_the_next_epoch_alone(tmp_path: Path) -> None:
    updates = attempts(["ZFBOS", "ZFBXS", "ZFBOS", "ZFBO"])
    for epoch, update in enumerate(updates, 1):
        update["epoch"] = epoch
    assert faults(CODE, write_run(tmp_path / "run", updates, 1)) == [False]


@pytest.mark.parametrize(
    "declared", [{"scheduler_class": "ReduceLROnPlateau"}, {"schedule_unit": "samples"}], ids=str
)
def test_schedules_that_do_not_count_updates_are_silent(tmp_path: Path, declared: dict[str, Any]) -> None:
    run = write_run(tmp_path / "run", attempts([RIGHT, MOVED, RIGHT]), 1, **declared)
    assert faults(CODE, run) == [False]


def test_parameters_that_stay_prove_no_skip_where_nothing_could_move_them(tmp_path: Path) -> None:
    state: dict[str, Any] = {"skip_evidence": "state_step"}
    cases: dict[str, tuple[dict[str, Any], bool | None]] = {
        "at a rate of 0": (state | {"learning_rate": 0.0}, None),
        "with a gradient of 0": (state | {"grad_norm_after_clip": 0.0}, None),
        "with neither": (state, True),
        "the scaler said so": ({"learning_rate": 0.0}, True),
    }
    runs = {
        case: [*attempts([RIGHT]), *attempts([MOVED], [2], **fields), *attempts([RIGHT], [3])]
        for case, (fields, _) in cases.items()
    }
    found = by_case(CODE, run_of_cases(tmp_path, runs), cases)
    assert found == {case: [fault] for case, (_, fault) in cases.items()}


def test_what_was_not_recorded_is_unknown(tmp_path: Path) -> None:
    cases: dict[str, list[dict[str, Any]]] = {
        "whether it was skipped": [{"events": "ZFBOGS", "optimizer_step_skipped": None}],
        "the word": [{"events": None, "skipped": True}],
    }
    assert by_case(CODE, run_of_cases(tmp_path, cases), cases) == {case: [None] for case in cases}
    disagreeing = [{"on": {0: {"skipped": True}, 1: {}}}]
    assert faults(CODE, write_run(tmp_path / "ranks", disagreeing)) == [None]
    unseen = attempts([HELD], [None])
    run = write_run(tmp_path / "none", unseen, 1, scheduler_steps_per_update=None)
    (verdict,) = check_paths([run], select=[CODE]).runs[0].verdicts
    assert verdict.reason == "`scheduler_step` was never recorded"


def test_attempts_without_a_backward_and_applied_ones_are_out_of_scope(tmp_path: Path) -> None:
    """The first only quietens torch's warning about the order of optimizer and scheduler."""
    run = write_run(tmp_path / "run", attempts(["XS{S}198S", RIGHT]), 1)
    assert judge(CODE, run) == []


def test_every_third_record_is_enough(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", attempts([RIGHT, RIGHT, RIGHT, MOVED, RIGHT, RIGHT, RIGHT]), 1, every=3)
    assert faults(CODE, run) == [True]


def test_the_drift_rule_leaves_skips_to_it(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", attempts([RIGHT, MOVED, MOVED, RIGHT, RIGHT, RIGHT, RIGHT]), 1)
    verdicts = {v.code: v for v in check_paths([run], select=[CODE, "ACC303"]).runs[0].verdicts}
    assert verdicts[CODE].status == "failed"
    assert verdicts["ACC303"].status == "passed"
