"""Rules ACC308, 310 and 311 on hand-made ledgers: the first rate, bounds of the rate, weight decays."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

LATER: dict[str, Any] = {"launch": "bbbb", "started_at": 1_700_001_000.0}
TWO_OPTIMIZERS = [{"index": 0, "class": "Muon", "name": None}, {"index": 1, "class": "AdamW", "name": None}]


def rates(*groups: Sequence[float | None]) -> list[dict[str, Any]]:
    """Attempts with these rates, one entry for each parameter group or one alone."""
    return [
        {"learning_rate": group[0], "learning_rates": list(group)}
        if group[0] is not None
        else {"learning_rate": None, "learning_rates": None}
        for group in groups
    ]


def single(*values: float | None) -> list[dict[str, Any]]:
    """Attempts with these rates of one parameter group."""
    return rates(*[[value] for value in values])


def declare(attempt: int = 0, **values: Any) -> dict[str, Any]:
    """The mark of what the loop declares after this attempt."""
    return {"kind": "declare", "name": json.dumps(values), "attempt_id": attempt}


WARMUP: dict[str, Any] = {"warmup_updates": 4}


class TestFirstUpdateAtPeak:
    CODE = "ACC308"

    def test_a_first_update_at_the_declared_peak_is_found(self, tmp_path: Path) -> None:
        updates = single(1e-3, 2.5e-4, 5e-4)
        run = write_run(tmp_path / "run", updates, 2, peak_learning_rate=1e-3, **WARMUP)
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.rank, row.severity, row.observed) == (1, None, "warning", 1e-3)
        assert row.message == (
            "the first update ran at 0.001, where the declared peak is 0.001, although a warm-up of 4 "
            "updates is declared; the next one ran at 0.00025"
        )

    def test_without_a_peak_the_warm_up_itself_tells(self, tmp_path: Path) -> None:
        cases = {
            "lower rates follow": single(1e-3, 2.5e-4),
            "no warm-up at all": single(1e-3, 1e-3, 1e-3, 1e-3, 1e-3),
            "a decay from the start": single(1e-3, 9e-4, 8e-4, 7e-4, 6e-4),
        }
        run = run_of_cases(tmp_path, cases, **WARMUP)
        assert by_case(self.CODE, run, cases) == {case: [True] for case in cases}
        words = sorted(row.message.partition(", although")[0] for row in judge(self.CODE, run))
        assert words == [
            "the first update ran at 0.001, the highest rate up to update 2",
            *["the first update ran at 0.001, the highest rate up to update 5"] * 2,
        ]

    def test_the_first_update_may_follow_skips(self, tmp_path: Path) -> None:
        updates = [single(1e-3)[0] | {"skipped": True}, *single(1e-3, 2.5e-4)]
        row = the_fault(self.CODE, write_run(tmp_path / "run", updates, 1, **WARMUP))
        assert row.attempt == 2

    def test_honest_warm_ups_pass(self, tmp_path: Path) -> None:
        cases = {
            "from 0": single(0.0, 2.5e-4, 5e-4),
            "from 0, nothing after it": single(0.0),
            "from a quarter of the peak": single(2.5e-4, 5e-4, 7.5e-4, 1e-3, 9e-4),
            "from a third, by LinearLR": single(3.3e-4),
            "flat within the first epoch": single(2e-4, 2e-4, 2e-4, 2e-4, 1e-3),
            "one group warms up, one does not": rates([1e-3, 0.0], [1e-3, 5e-4], [1e-3, 1e-3]),
        }
        run = run_of_cases(tmp_path, cases, peak_learning_rate=1e-3, **WARMUP)
        assert by_case(self.CODE, run, cases) == {case: [False] for case in cases}

    def test_what_cannot_be_told_yet_is_unknown(self, tmp_path: Path) -> None:
        cases = {
            "one update": single(1e-3),
            "a few equal ones": single(1e-3, 1e-3),
            "no rate": single(None, 1e-3),
        }
        run = run_of_cases(tmp_path, cases, **WARMUP)
        assert by_case(self.CODE, run, cases) == {case: [None] for case in cases}
        groups = rates([1e-3, 1e-4])
        run = write_run(tmp_path / "groups", groups, 1, peak_learning_rate=1e-3, **WARMUP)
        assert faults(self.CODE, run) == [None]

    @pytest.mark.parametrize(
        "fields",
        [{"schedule_unit": "micro_steps"}, {"optimizers": TWO_OPTIMIZERS}],
        ids=["unit", "optimizers"],
    )
    def test_a_warm_up_that_is_not_this_optimizers_is_unknown(
        self, tmp_path: Path, fields: dict[str, Any]
    ) -> None:
        updates = single(1e-3, 2.5e-4)
        assert faults(self.CODE, write_run(tmp_path / "run", updates, 1, **WARMUP, **fields)) == [None]

    @pytest.mark.parametrize(
        "fields",
        [{}, {"warmup_updates": 0}, {"warmup_updates": 1}, {"warmup_updates": 4, "resumed_from_update": 7}],
        ids=["none", "zero", "one", "resumed"],
    )
    def test_runs_without_a_warm_up_are_out_of_scope(self, tmp_path: Path, fields: dict[str, Any]) -> None:
        updates = single(1e-3, 1e-3)
        run = write_run(
            tmp_path / "run", updates, 1, first_update=8 if "resumed" in str(fields) else 1, **fields
        )
        assert judge(self.CODE, run) == []

    def test_declarations_hold_from_where_they_are_made(self, tmp_path: Path) -> None:
        """The second declaration is another stage's."""
        updates = single(1e-3, 2.5e-4)
        early = [declare(warmup_updates=4, peak_learning_rate=1e-3), declare(2, warmup_updates=0)]
        assert faults(self.CODE, write_run(tmp_path / "early", updates, 1, marks=early)) == [True]
        late = [declare(1, warmup_updates=4)]
        assert judge(self.CODE, write_run(tmp_path / "late", updates, 1, marks=late)) == []


BOUNDS: dict[str, Any] = {"peak_learning_rate": 1e-3, "min_learning_rate": 1e-4}


class TestRateOutsideBounds:
    CODE = "ACC311"

    def test_rates_above_and_below_are_found(self, tmp_path: Path) -> None:
        updates = single(1e-3, 3e-3, 1e-4, 5e-5)
        run = write_run(tmp_path / "run", updates, 1, **BOUNDS)
        assert faults(self.CODE, run) == [False, True, False, True]
        above, below = (row for row in judge(self.CODE, run) if row.fault)
        assert (above.severity, above.observed, above.expected) == ("error", 3e-3, 1e-3)
        assert above.message == "the update ran at 0.003, 3 times the declared peak of 0.001"
        assert (below.observed, below.expected) == (5e-5, 1e-4)
        assert below.message == "the update ran at 5e-05, below the declared minimum of 0.0001"

    def test_honest_rates_pass(self, tmp_path: Path) -> None:
        cases = {
            "at the bounds": single(1e-3, 1e-4),
            "rounding": single(1.0005e-3, 0.9995e-4),
            "a group above on purpose": rates([1e-3, 1e-2], [5e-4, 5e-3]),
            "a group below on purpose": rates([1e-3, 1e-5], [5e-4, 5e-6]),
            "a frozen group": rates([0.0, 1e-3], [0.0, 5e-4]),
        }
        run = run_of_cases(tmp_path, cases, **BOUNDS)
        assert by_case(self.CODE, run, cases) == {case: [False, False] for case in cases}

    def test_groups_are_outside_together(self, tmp_path: Path) -> None:
        updates = rates([1e-3, 5e-4], [3e-3, 2e-3], [0.0, 3e-3], [9e-5, 1e-5])
        assert faults(self.CODE, write_run(tmp_path / "run", updates, 1, **BOUNDS)) == [
            False,
            True,
            True,
            True,
        ]

    def test_a_warm_up_begins_below_the_minimum(self, tmp_path: Path) -> None:
        updates = single(0.0, 5e-5, 1e-3, 5e-5)
        declared = write_run(tmp_path / "declared", updates, 1, warmup_updates=2, **BOUNDS)
        assert faults(self.CODE, declared) == [False, False, False, True]
        undeclared = write_run(tmp_path / "undeclared", updates, 1, **BOUNDS)
        assert faults(self.CODE, undeclared) == [None, None, False, True]

    def test_one_bound_is_enough(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "peak", single(1e-3, 3e-3, 0.0), 1, peak_learning_rate=1e-3)
        assert faults(self.CODE, run) == [False, True, False]
        run = write_run(tmp_path / "min", single(1e-3, 3e-3, 0.0), 1, min_learning_rate=1e-4)
        assert faults(self.CODE, run) == [False, False, True]

    def test_bounds_hold_from_their_declaration_on(self, tmp_path: Path) -> None:
        updates = single(1e-3, 1e-3, 1e-4, 1e-3)
        marks = [declare(peak_learning_rate=1e-3), declare(2, peak_learning_rate=1e-4)]
        run = write_run(tmp_path / "two", updates, 1, marks=marks)
        assert faults(self.CODE, run) == [False, False, False, True]
        run = write_run(tmp_path / "late", updates, 1, marks=marks[1:])
        assert faults(self.CODE, run) == [None, None, False, True]

    def test_a_second_launch_has_its_own(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", single(1e-3), 1, close=False, peak_learning_rate=1e-3)
        write_run(run, single(1e-4, 1e-3), 1, first_update=2, peak_learning_rate=1e-4, **LATER)
        assert faults(self.CODE, run) == [False, False, True]

    def test_what_is_not_known_is_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "rate", single(None), 1, **BOUNDS)
        assert faults(self.CODE, run) == [None]
        run = write_run(tmp_path / "whose", single(1.0), 1, optimizers=TWO_OPTIMIZERS, **BOUNDS)
        assert faults(self.CODE, run) == [None]

    def test_skips_and_undeclared_bounds_are_out_of_scope(self, tmp_path: Path) -> None:
        skipped = write_run(tmp_path / "skipped", [single(1.0)[0] | {"skipped": True}], 1, **BOUNDS)
        assert judge(self.CODE, skipped) == []
        assert judge(self.CODE, write_run(tmp_path / "none", single(1.0), 1)) == []


def decays(*groups: Sequence[float] | None, **more: Any) -> list[dict[str, Any]]:
    """Attempts with these weight decays."""
    return [{"weight_decays": None if group is None else list(group), **more} for group in groups]


OLD = decays(*[[0.1, 0.0]] * 4)


def resumed(folder: Path, before: list[dict[str, Any]], after: list[dict[str, Any]], **second: Any) -> Path:
    """A run of two launches."""
    run = write_run(folder, before, 1, close=False)
    return write_run(run, after, 1, first_update=len(before) + 1, **second, **LATER)


class TestWeightDecayBreak:
    CODE = "ACC310"

    def test_a_change_at_a_resume_is_found(self, tmp_path: Path) -> None:
        run = resumed(tmp_path / "run", OLD, decays(*[[0.1, 0.1]] * 3))
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.severity, row.observed, row.expected) == (1, "warning", 0.1, 0.0)
        assert row.message == (
            "resumed with a weight decay of [0.1, 0.1] where it was [0.1, 0.0] before; "
            "a second stage that is not declared looks the same"
        )
        assert faults(self.CODE, run) == [False, True]

    def test_the_first_update_after_a_resume_may_be_the_only_one(self, tmp_path: Path) -> None:
        """A schedule wrote the constructor's decay into the groups and restored itself afterwards."""
        before = decays(*[[0.1 + 1e-4 * n] for n in range(4)])
        after = decays([0.2], *[[0.1005 + 1e-4 * n] for n in range(3)])
        row = the_fault(self.CODE, resumed(tmp_path / "run", before, after))
        assert "resumed with a weight decay of [0.2] where it was [0.10" in row.message
        assert "for this one update: then it is [0.10" in row.message

    def test_one_update_that_differs_is_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", OLD + decays([0.0, 0.0]) + OLD, 1)
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.observed, row.expected) == (5, 0.0, 0.1)
        assert row.message == (
            "one update with a weight decay of [0.0, 0.0] where it was [0.1, 0.0] before, "
            "and [0.1, 0.0] after it"
        )

    def test_honest_decays_pass(self, tmp_path: Path) -> None:
        cosine = [[0.1 + 0.01 * n] for n in range(8)]
        cases = {
            "constant": OLD,
            "a schedule": decays(*cosine),
            "up and down again": decays(*cosine, *reversed(cosine[:-1])),
            "a milestone": OLD + decays(*[[0.05, 0.0]] * 3),
            "every third update": decays(*[[0.1], [0.0], [0.0]] * 4),
            "a group is added": OLD + decays(*[[0.1, 0.0, 0.1]] * 3),
        }
        run = run_of_cases(tmp_path, cases)
        assert by_case(self.CODE, run, cases) == {case: [False] for case in cases}

    def test_honest_resumes_pass(self, tmp_path: Path) -> None:
        assert faults(self.CODE, resumed(tmp_path / "same", OLD, OLD)) == [False, False]
        schedule = decays(*[[0.1 + 0.01 * n] for n in range(8)])
        assert faults(self.CODE, resumed(tmp_path / "schedule", schedule[:4], schedule[4:])) == [False, False]

    @pytest.mark.parametrize(
        "second",
        [
            {"peak_learning_rate": 1e-4},
            {"scheduler_class": "CosineAnnealingLR"},
            {"optimizers": TWO_OPTIMIZERS},
        ],
        ids=str,
    )
    def test_a_second_stage_is_none(self, tmp_path: Path, second: dict[str, Any]) -> None:
        assert (
            faults(self.CODE, resumed(tmp_path / "run", OLD, decays(*[[0.0, 0.0]] * 3), **second))
            == [False] * 2
        )

    def test_a_new_optimizer_is_none(self, tmp_path: Path) -> None:
        after = [
            {**update, "optimizer_state_step": n} for n, update in enumerate(decays(*[[0.0, 0.0]] * 3), 1)
        ]
        assert faults(self.CODE, resumed(tmp_path / "run", OLD, after)) == [False, False]

    @pytest.mark.parametrize("other", [[0.1], [0.0, 0.1]], ids=["number", "order"])
    def test_other_groups_are_unknown(self, tmp_path: Path, other: list[float]) -> None:
        assert faults(self.CODE, resumed(tmp_path / "run", OLD, decays(*[other] * 3))) == [False, None]

    def test_with_gaps_only_a_resume_is_judged(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", OLD + decays([0.0, 0.0]) + OLD, 1, every=2, close=False)
        assert faults(self.CODE, run) == [None]
        write_run(run, decays(*[[0.0, 0.0]] * 3), 1, first_update=10, every=2, **LATER)
        assert faults(self.CODE, run) == [None, True]

    def test_decays_that_were_not_recorded_are_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", decays(None, None), 1)
        assert faults(self.CODE, run) == [None]
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "`weight_decays` was never recorded"
