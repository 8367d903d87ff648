"""Rules ACC3xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import Row, faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

PER_MICRO_STEP = "ZfbSfbSfbSFBOS"
RIGHT = "ZfbfbfbFBOS"


def run_of(folder: Path, words: Iterable[str], *, ranks: int = 2, **run_fields: Any) -> Path:
    """A run whose words are these, with the scheduler where its steps bring it."""
    position, updates = 0, []
    for word in words:
        position += word.count("S")
        updates.append({"events": word, "scheduler_step": position, "skipped": "X" in word})
    return write_run(folder / "run", updates, ranks, **run_fields)


def standing_at(positions: Sequence[int], skipped: Iterable[int] = ()) -> list[dict[str, Any]]:
    """Attempts after which the scheduler stands at these positions; skipped counts from 1."""
    return [
        {"scheduler_step": position, "skipped": attempt in skipped}
        for attempt, position in enumerate(positions, 1)
    ]


def run_at(folder: Path, positions: Sequence[int], **run_fields: Any) -> Path:
    """A run whose scheduler stands at these positions after its attempts."""
    return write_run(folder / "run", standing_at(positions), **run_fields)


class TestSchedulePerMicroStep:
    CODE = "ACC301"

    def test_a_declared_schedule_that_ends_too_early_is_an_error(self, tmp_path: Path) -> None:
        first, second = judge(self.CODE, run_of(tmp_path, [PER_MICRO_STEP] * 2, planned_updates=1000))
        assert first.fault
        assert second.fault
        assert first.severity == second.severity == "error"
        assert (first.observed, first.expected) == (4, 1)
        assert first.message == (
            "the scheduler took 4 steps in an update of 4 micro-steps where 1 belongs to it: "
            "at this pace a schedule of the declared 1000 updates ends at update 250"
        )

    def test_without_a_declared_length_it_is_a_note(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, run_of(tmp_path, [PER_MICRO_STEP]))
        assert row.severity == "note"
        assert row.message.endswith("the schedule counts micro-steps and changes with the accumulation")

    def test_a_schedule_declared_in_micro_steps_is_a_note(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [PER_MICRO_STEP] * 3, planned_updates=1000, schedule_unit="micro_steps")
        assert {row.severity for row in judge(self.CODE, run)} == {"note"}

    def test_rates_that_last_to_the_planned_end_speak_against_the_declaration(self, tmp_path: Path) -> None:
        """A linear decay over 80 micro-steps is over after 20 updates of 4, as planned."""
        updates = [
            {"events": PER_MICRO_STEP, "scheduler_step": 4 * update, "learning_rate": 1 - update / 20}
            for update in range(1, 8)
        ]
        run = write_run(tmp_path / "run", updates, planned_updates=20)
        assert {(row.fault, row.severity) for row in judge(self.CODE, run)} == {(True, "note")}

    def test_a_rate_seen_at_its_end_is_an_error(self, tmp_path: Path) -> None:
        updates = [
            {
                "events": PER_MICRO_STEP,
                "scheduler_step": 4 * update,
                "learning_rate": max(0.0, 1 - (4 * update - 1) / 12),
            }
            for update in range(1, 13)
        ]
        rows = judge(self.CODE, write_run(tmp_path / "run", updates))
        assert {row.severity for row in rows} == {"error"}
        assert "after update 3 of 12 so far the rate was at its end, 0" in rows[0].message

    def test_a_tail_is_judged_by_the_pace_of_the_launch(self, tmp_path: Path) -> None:
        words = [PER_MICRO_STEP, PER_MICRO_STEP, "ZfbSFBOS"]
        rows = judge(self.CODE, run_of(tmp_path, words, planned_updates=1000))
        assert [row.severity for row in rows] == ["error"] * 3
        assert "a schedule of the declared 1000 updates ends at update 3" in rows[2].message

    @pytest.mark.parametrize(("contract", "fault"), [(1.0, True), (2.0, False)])
    def test_steps_beyond_the_contract(self, tmp_path: Path, contract: float, fault: bool) -> None:
        """Accelerate's prepared scheduler steps as often as there are processes; Trainer's must not."""
        run = run_of(tmp_path, [RIGHT + "S"] * 3, scheduler_steps_per_update=contract)
        rows = judge(self.CODE, run)
        assert [row.fault for row in rows] == [fault] * 3
        assert "the schedule does not count updates" in rows[0].message or not fault

    def test_a_step_after_the_wrong_micro_step_is_a_note(self, tmp_path: Path) -> None:
        rows = judge(self.CODE, run_of(tmp_path, ["ZfbSfbfbFBO"] * 4, planned_updates=100))
        assert {(row.fault, row.severity) for row in rows} == {(True, "note")}
        assert rows[0].message == (
            "the scheduler took 1 step in an update of 4 micro-steps where 1 belongs to it: "
            "it was taken between two backwards, so the update already used the rate after it"
        )

    def test_a_pace_of_neither_updates_nor_micro_steps_is_an_error(self, tmp_path: Path) -> None:
        """A step in every third micro-step, windows of four: nothing that it explains is worse."""
        words = ["ZFBFBFBSFBO", "ZFBFBSFBFBO", "ZFBSFBFBFBOS", "ZFBFBFBSFBO", "ZFBFBSFBFBO", "ZFBSFBFBFBOS"]
        run = run_of(tmp_path, words, ranks=1)
        rows = judge(self.CODE, run)
        assert {(row.fault, row.severity) for row in rows} == {(True, "error")}
        assert rows[0].message == (
            "the scheduler took 1 step in an update of 4 micro-steps where 1 belongs to it: "
            "1.33 in each update of 4 micro-steps count neither the updates nor the micro-steps"
        )
        report = check_paths([run], select=[self.CODE, "ACC303"])
        verdicts = {verdict.code: verdict for verdict in report.runs[0].verdicts}
        assert verdicts["ACC303"].reason == "a cause was found by ACC301"
        assert report.worst() == "error"

    @pytest.mark.parametrize(
        ("words", "fields"),
        [
            (["ZFBSFBFBSFBO", "ZFBFBSFBFBO", "ZFBSFBFBSFBO"], {"schedule_unit": "samples"}),
            ([RIGHT + "S", RIGHT + "S", RIGHT], {}),
        ],
        ids=["declared", "after the step"],
    )
    def test_other_paces_stay_a_note(self, tmp_path: Path, words: list[str], fields: dict[str, Any]) -> None:
        rows = judge(self.CODE, run_of(tmp_path, words, ranks=1, **fields))
        assert {row.severity for row in rows if row.fault} == {"note"}

    def test_a_tail_does_not_change_the_pace_of_micro_steps(self, tmp_path: Path) -> None:
        full: dict[str, Any] = {"events": "ZFBSFBSFBSFBOS"}
        updates = [full, full, {"events": "ZFBSFBOS", "microbatches": 2}]
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, 1))
        assert [(row.fault, row.severity) for row in rows] == [(True, "note")] * 3

    def test_it_is_found_where_every_micro_step_clears_the_gradients_too(self, tmp_path: Path) -> None:
        update = {"events": "ZFBSZFBSZFBSZFBOS", "microbatches": 1, "discarded_microbatches": 3}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [True]

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        words = {
            "once after the step": (RIGHT, 0),
            "once before the step, which is ACC304": ("ZfbfbfbFBSO", 0),
            "fast-forwarded at resume": ("S{S}998S" + RIGHT, 0),
            "a skipped attempt": ("ZfbfbfbFBX", 0),
            "a step on a skipped attempt, which is ACC302": ("ZfbfbfbFBXS", 0),
            "an epoch's step after a dropped tail": ("FBFB|SZFBFBFBFBO", 2),
            "the same, the end of data unseen": ("FBFBSZFBFBFBFBO", 2),
            "an epoch's end and an update": ("FBFB|SZFBFBFBFBOS", 2),
            "a window that the loop skipped by hand": ("FBFBFBFBCSZFBFBFBFBCOS", 4),
            "an epoch's step in a window over two epochs": ("FBFB|SFBFBO", 0),
            "the partner of a GAN": ("FBoSZFFBO", 1),
            "a rate set by hand": ("RZfbfbfbFBO", 0),
        }
        cases = {
            case: [{"events": word, "discarded_microbatches": discarded, "skipped": "X" in word}] * 3
            for case, (word, discarded) in words.items()
        }
        run = run_of_cases(tmp_path, cases, planned_updates=1000)
        assert by_case(self.CODE, run, cases) == dict.fromkeys(cases, [False] * 3)

    def test_a_validation_inside_a_window_is_no_cadence(self, tmp_path: Path) -> None:
        """A plateau scheduler is stepped after every 10th micro-step, in the middle of a window."""
        words = ["ZfbfbfbFBO", "ZfbfbfbFBO", "ZfbSfbfbFBO", "ZfbfbfbFBO"]
        assert faults(self.CODE, run_of(tmp_path, words)) == [False] * 4

    def test_closures_and_attempts_without_a_backward_are_out_of_scope(self, tmp_path: Path) -> None:
        """The last is a fast-forward behind a step that only quietens torch's warning about the order."""
        assert faults(self.CODE, run_of(tmp_path, ["(ZFB)OSFBFBFB", "S", "OS{S}198S"])) == []

    def test_without_a_scheduler_nothing_is_known(self, tmp_path: Path) -> None:
        updates = [{"events": "ZfbfbfbFBO", "scheduler_step": None, "scheduler_rate": None}] * 2
        run = write_run(tmp_path / "run", updates, scheduler_steps_per_update=None)
        assert faults(self.CODE, run) == [None, None]

    def test_a_scheduler_given_late_has_a_contract_of_1(self, tmp_path: Path) -> None:
        run = run_of(tmp_path, [RIGHT, PER_MICRO_STEP], scheduler_steps_per_update=None)
        assert faults(self.CODE, run) == [False, True]

    def test_an_unknown_word_is_unknown(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [{"events": None}])) == [None]


class TestScheduleDrift:
    CODE = "ACC303"

    def row(self, run: Path) -> Row:
        (row,) = judge(self.CODE, run)
        return row

    def test_windows_that_the_scheduler_misses_add_up(self, tmp_path: Path) -> None:
        row = self.row(run_at(tmp_path, [1, 2, 2, 3, 4, 4, 5, 6, 6, 7]))
        assert row.fault
        assert row.severity == "error"
        assert row.attempt is None
        assert row.observed == pytest.approx(5 / 8)
        assert row.message == (
            "the scheduler moved 5 steps in 8 updates, 0.625 each where 1 belongs to one: "
            "3 behind by update 10, 30 % of 10 updates, from update 3 on"
        )

    def test_a_step_too_many_at_every_epochs_end_is_a_warning_in_a_long_run(self, tmp_path: Path) -> None:
        positions = [update + update // 200 for update in range(1, 601)]
        row = self.row(run_at(tmp_path, positions, planned_updates=10_000))
        assert row.fault
        assert row.severity == "warning"
        assert "3 ahead by update 600, 0.03 % of 10000 updates, from update 200 on" in row.message

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        honest: dict[str, tuple[list[int], tuple[int, ...]]] = {
            "right": ([1, 2, 3, 4, 5], ()),
            "fast-forwarded before the first record": ([1001, 1002, 1003, 1004, 1005], ()),
            "one late from the start": ([0, 1, 2, 3, 4], ()),
            "one offset": ([1, 2, 3, 5, 6, 7], ()),
            "skips without a step": ([1, 2, 2, 3, 3, 4, 5, 6], (3, 5)),
            "steps on skips are ACC302": ([1, 2, 3, 4, 5, 6, 7, 8], (3, 5)),
            "set back around a skip": ([1, 2, 0, 1, 2, 0, 1, 2], (3, 6)),
            "a step for each window that was thrown away": ([1, 2, 4, 5, 7, 8, 9], ()),
            "a schedule that has ended": ([1, 2, 3, 4, 5, 5, 5, 5, 5, 5], ()),
            "a schedule that began after a warm-up by hand": ([0, 0, 0, 1, 2, 3, 4], ()),
            "a new schedule in every phase": ([1, 2, 3, 0, 1, 2, 3, 0, 1, 2], ()),
        }
        cases = {case: standing_at(positions, skipped) for case, (positions, skipped) in honest.items()}
        for attempt in (3, 5):
            cases["a step for each window that was thrown away"][attempt - 1]["discarded_microbatches"] = 4
        assert by_case(self.CODE, run_of_cases(tmp_path, cases), cases) == {key: [False] for key in cases}

    def test_a_contract_of_2_is_kept(self, tmp_path: Path) -> None:
        run = run_at(tmp_path, [2, 4, 6, 8, 10], scheduler_steps_per_update=2.0)
        assert self.row(run).fault is False

    def test_a_scheduler_that_does_not_step_with_the_updates_is_out_of_scope(self, tmp_path: Path) -> None:
        slow = {
            "once an epoch": [0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3],
            "every second update": [0, 1, 1, 2, 2, 3, 3, 4, 4],
            "never": [0, 0, 0, 0, 0, 0],
            "too short to tell": [1, 2],
        }
        cases = {case: standing_at(positions) for case, positions in slow.items()}
        assert judge(self.CODE, run_of_cases(tmp_path, cases)) == []

    def test_short_epochs_are_epochs_all_the_same(self, tmp_path: Path) -> None:
        """Epochs of one and two updates: the scheduler moves in most of them, always at the end."""
        positions, ends = [1, 1, 2, 3, 3, 4, 5, 5, 6], (1, 3, 4, 6, 7, 9)
        marks = [{"kind": "end_of_data", "attempt_id": attempt} for attempt in ends]
        assert judge(self.CODE, run_at(tmp_path, positions, marks=marks)) == []

    def test_a_resumed_launch_has_its_own_offset(self, tmp_path: Path) -> None:
        run = run_at(tmp_path, [1, 2, 3, 4, 5], close=False)
        again = [{"scheduler_step": position} for position in (105, 106, 107, 108, 109)]
        write_run(run, again, launch="bbbb", first_update=6, started_at=1_700_001_000.0)
        assert faults(self.CODE, run) == [False, False]

    def test_a_scheduler_given_late_has_a_contract_of_1(self, tmp_path: Path) -> None:
        run = run_at(tmp_path, [2, 4, 6, 8, 10], scheduler_steps_per_update=None)
        assert faults(self.CODE, run) == [True]

    def test_an_unknown_number_of_updates_is_out_of_scope(self, tmp_path: Path) -> None:
        assert judge(self.CODE, write_run(tmp_path / "run", [{"optimizer_update_id": None}] * 5)) == []

    def test_a_scheduler_without_a_position_is_out_of_scope(self, tmp_path: Path) -> None:
        assert judge(self.CODE, write_run(tmp_path / "run", [{"scheduler_step": None}] * 5)) == []


class TestScheduleBeforeOptimizer:
    CODE = "ACC304"

    def test_a_step_between_backward_and_step_is_found(self, tmp_path: Path) -> None:
        words = ["ZfbfbfbFBSO", "ZfbfbfbFBCSO", "ZfbfbfbFBUCSXG", "ZFBoSO", "ZfbSfbSfbSFBSO"]
        cases = {word: [{"events": word, "scheduler_step": 1, "learning_rate": 0.75}] for word in words}
        rows = judge(self.CODE, run_of_cases(tmp_path, cases))
        assert {(row.fault, row.severity) for row in rows} == {(True, "warning")}
        assert len(rows) == len(words)
        assert rows[0].message == (
            "the scheduler stepped between the last backward and the optimizer's step: "
            "the attempt used the rate 0.75 of schedule position 1, and the one before it was passed over"
        )

    def test_it_leaves_alone(self, tmp_path: Path) -> None:
        honest = {
            "right": "ZfbfbfbFBUCOGS",
            "set up": "S{S}98SZfbfbfbFBOS",
            "at the start of an epoch": "SZfbfbfbFBO",
            "between two epochs of one window": "FBFB|SFBFBO",
            "a window that the loop skipped by hand": "FBFBFBFBCSZFBFBFBFBCOS",
            "a rate set by hand": "ZfbfbfbFBRO",
            "the step of another optimizer": "ZFBOSo",
        }
        cases = {case: [{"events": word}] for case, word in honest.items()}
        assert by_case(self.CODE, run_of_cases(tmp_path, cases), cases) == {key: [False] for key in cases}

    def test_a_schedule_set_to_an_absolute_place_is_unknown(self, tmp_path: Path) -> None:
        """CosineAnnealingWarmRestarts.step(epoch + i / batches) keeps the epoch in last_epoch."""
        updates = [{"events": "ZfbfbfbFBSO", "scheduler_step": epoch} for epoch in (0, 0, 1, 1)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [None] * 4

    def test_a_scheduler_without_a_position_is_unknown(self, tmp_path: Path) -> None:
        updates = [{"events": "ZfbfbfbFBSO", "scheduler_step": None}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [None]

    def test_closures_and_attempts_without_a_backward_are_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of(tmp_path, ["(ZFB)SO", "S", "OS"])) == []


def rates(
    steps: Sequence[float | None], schedule: Sequence[float | None], words: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Attempts with these rates at the step, and these of the scheduler after the transaction."""
    return [
        {"learning_rate": rate, "scheduler_rate": after, "events": word}
        for rate, after, word in zip(steps, schedule, words or [RIGHT] * len(steps), strict=True)
    ]


class TestDetachedSchedule:
    CODE = "ACC307"

    def test_a_rate_that_stays_while_the_schedule_moves_is_found(self, tmp_path: Path) -> None:
        updates = rates([1e-3] * 4, [9e-4, 8.1e-4, 7.29e-4, 6.561e-4])
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, 1))
        assert [row.fault for row in rows] == [True] * 3
        assert [row.attempt for row in rows] == [2, 3, 4]
        assert {row.severity for row in rows} == {"error"}
        assert (rows[1].observed, rows[1].expected) == (1e-3, 8.1e-4)
        assert rows[1].message == (
            "the optimizer stepped at 0.001, the rate of the attempt before, "
            "where the scheduler at position 2 says 0.00081; nothing in the record set the rate by hand"
        )

    def test_a_rate_that_follows_is_right(self, tmp_path: Path) -> None:
        cases = {
            "right": rates([1.0, 0.9, 0.81], [0.9, 0.81, 0.729]),
            "a warm-up from 0": rates([0.0, 0.1, 0.2], [0.1, 0.2, 0.3]),
            "a constant schedule": rates([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
            "a step decay": rates([1.0, 1.0, 0.5], [1.0, 0.5, 0.5]),
        }
        assert by_case(self.CODE, run_of_cases(tmp_path, cases), cases) == {
            key: [False, False] for key in cases
        }

    def test_a_rate_set_by_hand_after_the_schedule_is_unknown(self, tmp_path: Path) -> None:
        cases = {
            "a dampened warm-up moves by itself": rates([0.25, 0.5, 0.75], [0.99, 0.98, 0.97]),
            "a lower bound after it followed": rates([1.0, 0.9, 0.9], [0.9, 0.81, 0.729]),
            "a constant from the first update on": rates(
                [1.0, 2.0, 2.0], [0.9, 0.81, 0.729], ["ZfbfbfbFBOSR", RIGHT, RIGHT]
            ),
        }
        assert by_case(self.CODE, run_of_cases(tmp_path, cases), cases) == {
            "a dampened warm-up moves by itself": [None, None],
            "a lower bound after it followed": [False, None],
            "a constant from the first update on": [None],
        }

    def test_a_declared_lower_bound_is_known(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", rates([0.1] * 3, [0.09, 0.08, 0.07]), 1, min_learning_rate=0.1)
        assert faults(self.CODE, run) == [False, False]

    def test_pairs_that_something_else_touched_are_out_of_scope(self, tmp_path: Path) -> None:
        touched = {
            "the loop sets it before every step": ["RZfbfbfbFBOS"] * 3,
            "the loop sets it after the schedule": ["ZfbfbfbFBOSR"] * 3,
            "the schedule moves before the step": ["ZfbfbfbFBSO"] * 3,
            "set once, no schedule since": ["ZfbfbfbFBOR", "ZfbfbfbFBO", "ZfbfbfbFBO"],
            "the schedule never moved": ["ZfbfbfbFBO"] * 3,
        }
        cases = {case: rates([1.0] * 3, [0.9, 0.8, 0.7], words) for case, words in touched.items()}
        assert judge(self.CODE, run_of_cases(tmp_path, cases)) == []

    def test_a_rate_loaded_at_the_start_is_forgotten_after_the_next_schedule_step(
        self, tmp_path: Path
    ) -> None:
        words = ["RZfbfbfbFBOS", RIGHT, RIGHT]
        run = write_run(tmp_path / "run", rates([1.0] * 3, [0.9, 0.8, 0.7], words), 1)
        assert faults(self.CODE, run) == [True]

    def test_launches_are_not_compared(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", rates([1.0, 0.9], [0.9, 0.81]), 1, close=False)
        again = [{"learning_rate": 0.1, "scheduler_rate": 0.05}]
        write_run(run, again, 1, launch="bbbb", first_update=3, started_at=1_700_001_000.0)
        assert faults(self.CODE, run) == [False]

    def test_an_attempt_that_is_missing_in_between_is_out_of_scope(self, tmp_path: Path) -> None:
        gone: dict[str, Any] = {"on": {0: None}}
        updates = [{"learning_rate": 1.0, "scheduler_rate": 0.5}, gone, {"learning_rate": 1.0}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, 1)) == []

    def test_unknown_rates_are_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", rates([1.0, None], [None, None]), 1)
        assert faults(self.CODE, run) == [None]
