"""Rules ACC8xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import START, build_run, write_records, write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

INFINITE = float("inf")
NAN = float("nan")


class TestUpdateIdBreak:
    CODE = "ACC801"

    def run(
        self, folder: Path, ids: Sequence[int | None], *, skipped: Sequence[int] = (), **more: Any
    ) -> Path:
        updates = [
            {"optimizer_update_id": update, "skipped": attempt in skipped}
            for attempt, update in enumerate(ids, 1)
        ]
        return write_run(folder / "run", updates, 1, **more)

    @pytest.mark.parametrize(
        ("ids", "text"),
        [
            ([5, 6, 7, 4], "the update id goes from 7 to 4 over one applied attempt"),
            ([5, 6, 9], "the update id goes from 6 to 9 over one applied attempt"),
            ([5, 6, 6], "the update id goes from 6 to 6 over one applied attempt"),
        ],
    )
    def test_an_id_that_goes_back_jumps_or_stays_is_found(
        self, tmp_path: Path, ids: list[int], text: str
    ) -> None:
        row = the_fault(self.CODE, self.run(tmp_path, ids))
        assert (row.attempt, row.rank, row.severity) == (len(ids), 0, "error")
        assert (row.observed, row.expected) == (ids[-1], ids[-2] + 1)
        assert row.message == text

    def test_an_id_that_moves_on_a_skip_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, self.run(tmp_path, [5, 6, 7], skipped=[2]))
        assert row.message == "the update id goes from 5 to 6 over one skipped attempt"

    def test_right_counts_pass(self, tmp_path: Path) -> None:
        assert faults(self.CODE, self.run(tmp_path, [5, 6, 6, 7], skipped=[3])) == [False] * 3

    def test_missing_attempts_allow_as_much(self, tmp_path: Path) -> None:
        gone = {"on": {0: None}}
        run = write_run(tmp_path / "run", [{}, gone, gone, {}, {"optimizer_update_id": 9}], 1)
        assert faults(self.CODE, run) == [False, True]

    def test_more_than_is_missing_is_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"on": {0: None}}, {"optimizer_update_id": 4}], 1)
        assert the_fault(self.CODE, run).message == "the update id goes from 1 to 4 over 2 attempts"

    def test_a_resume_mark_explains_a_change(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, [5, 6, 7, 4, 5], marks=[{"kind": "resume", "attempt_id": 3}])
        assert faults(self.CODE, run) == [False] * 3

    def test_only_every_third_attempt_is_recorded(self, tmp_path: Path) -> None:
        ids = [5, 6, 6, 7, 8, 9, 10]
        assert faults(self.CODE, self.run(tmp_path, ids, skipped=[3], every=3)) == [False, False]
        row = the_fault(self.CODE, self.run(tmp_path / "jump", [5, 6, 7, 12, 13, 14, 15], every=3))
        assert row.message == "the update id goes from 5 to 12 over 3 attempts"
        back = self.run(tmp_path / "back", [5, 6, 7, 3, 4, 5, 6], every=3)
        assert the_fault(self.CODE, back).attempt == 4
        marks = [{"kind": "resume", "attempt_id": 2}]
        told = self.run(tmp_path / "told", [5, 6, 7, 3, 4, 5, 6], every=3, marks=marks)
        assert faults(self.CODE, told) == [False]

    def test_launches_are_not_compared(self, tmp_path: Path) -> None:
        run = self.run(tmp_path, [5, 6, 7], close=False)
        write_run(run, 2, 1, launch="bbbb", first_update=6, started_at=START + 1000)
        assert set(faults(self.CODE, run)) == {False}

    def test_an_unknown_skip_lets_the_id_move_or_not(self, tmp_path: Path) -> None:
        updates = [{"optimizer_update_id": update, "optimizer_step_skipped": None} for update in (5, 5, 6, 8)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, 1)) == [False, False, True]

    def test_unknown_ids_are_unknown_and_a_first_attempt_is_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, self.run(tmp_path, [5, None, 6])) == [None, None]
        assert faults(self.CODE, write_run(tmp_path / "one", 1, 1)) == []


def report(reported: float | None, total: float | None = None) -> dict[str, Any]:
    """What the loop says of an update, and in all."""
    return {"global_valid_tokens_in_update": reported, "cumulative_train_tokens": total}


# 100 + 110 + 120 + 130 tokens on rank 0, three more a micro-step on rank 1; 256 positions of input
# and 200 attended in each of 4 micro-steps on each rank.
COUNTED, OF_RANK_1, INPUT, ATTENDED = 932, 472, 2048, 1600
MEANINGS = {
    INPUT: "input positions over all ranks",
    ATTENDED: "attended positions over all ranks",
    INPUT / 2: "input positions of one rank",
    ATTENDED / 2: "attended positions of one rank",
}


class TestTokenCountMismatch:
    CODE = "ACC802"

    def test_another_count_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [report(1000)]))
        assert (row.attempt, row.rank, row.severity) == (1, None, "warning")
        assert (row.observed, row.expected) == (1000, COUNTED)
        assert row.message == (
            "the loop reports 1000 tokens for this update, and 932 were counted: "
            "the report is 1.07 times that"
        )

    def test_the_count_of_one_rank_is_named(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [report(OF_RANK_1)]))
        assert row.message.endswith("the report is 0.506 times that, the count of one rank")

    def test_a_running_count_is_judged_by_its_growth(self, tmp_path: Path) -> None:
        updates = [report(None, total) for total in (5000, 5000 + COUNTED, 5000 + COUNTED)]
        row = the_fault(self.CODE, write_run(tmp_path / "run", updates))
        assert row.attempt == 3
        assert row.message.startswith("the loop reports 0 tokens by its running count, and 932 were counted")

    def test_right_counts_pass(self, tmp_path: Path) -> None:
        assert set(faults(self.CODE, write_run(tmp_path / "run", 3))) == {False}

    @pytest.mark.parametrize("reported", MEANINGS)
    def test_counts_that_mean_something_else_are_807(self, tmp_path: Path, reported: float) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [report(reported)])) == [False]

    def test_a_count_that_lags_by_one_window_passes(self, tmp_path: Path) -> None:
        short = {"microbatches": 2}  # of 426 tokens
        updates = [{}, short | report(COUNTED), report(426), report(COUNTED)]
        assert set(faults(self.CODE, write_run(tmp_path / "run", updates))) == {False}

    def test_skipped_attempts_are_out_of_scope(self, tmp_path: Path) -> None:
        """A running count may include a skipped window or not."""
        updates = [report(None, 1000), report(None, 1000) | {"skipped": True}, report(None, 1000 + COUNTED)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [False]

    @pytest.mark.parametrize(
        "more",
        [
            pytest.param({"valid_tokens": [97.3] * 4}, id="class weights"),
            pytest.param({"weight_uniform": [False] * 4}, id="weights that differ on purpose"),
            pytest.param({"discarded_microbatches": 2}, id="micro-steps thrown away"),
            pytest.param({"on": {1: None}}, id="a rank missing"),
            pytest.param({"valid_tokens": [None] * 4}, id="no tokens counted"),
        ],
    )
    def test_unknown(self, tmp_path: Path, more: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [report(1000) | more])) == [None]

    def test_a_window_of_one_class_among_class_weights_is_not_judged(self, tmp_path: Path) -> None:
        """Its tokens weigh alike, and are counted as the sum of their weights."""
        updates = [report(COUNTED) | {"weight_uniform": [False] * 4}, report(COUNTED / 2)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [None, None]

    def test_a_loop_that_reports_nothing_is_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [report(None)] * 2)) == []


class TestTokensMeanSomethingElse:
    CODE = "ACC807"

    def test_counts_of_positions_are_named(self, tmp_path: Path) -> None:
        rows = judge(self.CODE, write_run(tmp_path / "run", [report(reported) for reported in MEANINGS]))
        assert [row.fault for row in rows] == [True] * 4
        assert {row.severity for row in rows} == {"note"}
        assert [row.message for row in rows] == [
            f"the loop reports {reported:.0f} tokens for this update: "
            f"these are {meaning}, where 932 tokens have a loss"
            for reported, meaning in MEANINGS.items()
        ]

    def test_a_running_count_of_positions_beside_a_right_one(self, tmp_path: Path) -> None:
        """The Trainer normalises by labels and reports num_input_tokens_seen."""
        updates = [report(COUNTED, INPUT * update) for update in (1, 2)]
        row = the_fault(self.CODE, write_run(tmp_path / "run", updates))
        assert row.attempt == 2
        assert row.message.startswith("the loop reports 2048 tokens by its running count: these are input")

    def test_other_counts_pass(self, tmp_path: Path) -> None:
        nothing_masked = {"input_positions": [116.5] * 4, "attended_positions": [116] * 4}
        whole = {"valid_tokens": [256.0] * 4, "attended_positions": [256] * 4} | report(INPUT)
        updates = [{}, report(1000), whole, nothing_masked | report(COUNTED)]
        assert set(faults(self.CODE, write_run(tmp_path / "run", updates))) == {False}

    @pytest.mark.parametrize(
        "more",
        [
            pytest.param({"valid_tokens": [None] * 4}, id="no tokens counted"),
            pytest.param({"input_positions": None, "attended_positions": None}, id="no positions known"),
        ],
    )
    def test_unknown(self, tmp_path: Path, more: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [report(INPUT) | more])) == [None]

    def test_a_loop_that_reports_nothing_is_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [report(None)] * 2)) == []


class TestNonFiniteUpdate:
    CODE = "ACC803"

    @pytest.mark.parametrize(
        ("update", "text"),
        [
            ({"grad_norm_after_clip": NAN}, "the norm of the gradient at the step was not finite"),
            (
                {"grad_norm_after_clip": INFINITE, "probe_nonfinite": True},
                "the norm of the gradient at the step was not finite",
            ),
            (
                {"grad_norm_after_clip": None, "probe_nonfinite": True},
                "the gradient of head.weight at the step was not finite",
            ),
            (
                {"grad_norm_before_clip": INFINITE, "grad_norm_after_clip": None, "probe_nonfinite": None},
                "the norm that the last clip returned was not finite",
            ),
        ],
    )
    def test_an_applied_gradient_that_is_not_finite_is_found(
        self, tmp_path: Path, update: dict[str, Any], text: str
    ) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{}, update], 1))
        assert (row.attempt, row.rank, row.severity) == (2, 0, "error")
        assert row.message.startswith("applied although " + text)

    def test_of_a_foreign_log_no_clip_is_told(self, tmp_path: Path) -> None:
        (tmp_path / "train.log").write_text(
            " iteration 1/ 2 | lm loss: 2.5 | grad norm: 0.9 | number of skipped iterations: 0 |\n"
            " iteration 2/ 2 | lm loss: 2.4 | grad norm: inf | number of skipped iterations: 0 |\n",
            encoding="utf-8",
        )
        row = the_fault(self.CODE, tmp_path / "train.log")
        assert (row.attempt, row.message) == (
            2,
            "applied although the norm of the gradient in the log is not finite",
        )

    def test_a_finite_probe_beside_a_norm_that_is_not_is_told(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{"grad_norm_after_clip": NAN}], 1))
        assert row.message.endswith("not finite (that of head.weight was)")

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param({}, id="finite"),
            pytest.param({"grad_norm_before_clip": INFINITE}, id="cleaned before the step"),
            pytest.param({"grad_norm_after_clip": None}, id="the probe alone"),
            pytest.param({"loss": [NAN, None, 2.0, 2.0]}, id="a loss of no tokens"),
        ],
    )
    def test_it_leaves_alone(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 1)) == [False]

    def test_a_skipped_attempt_is_out_of_scope(self, tmp_path: Path) -> None:
        update = {"skipped": True, "grad_norm_after_clip": INFINITE, "probe_nonfinite": True}
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 1)) == []

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param({"grad_norm_after_clip": NAN, "optimizer_step_skipped": None}, id="applied or not"),
            pytest.param({"grad_norm_after_clip": None, "probe_nonfinite": None}, id="no gradient"),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 1)) == [None]


class TestAmbiguousStepCounter:
    CODE = "ACC804"

    def run(
        self, folder: Path, steps: Sequence[int | None], *, skipped: Sequence[int] = (), optimizers: int = 1
    ) -> Path:
        lines = {
            optimizer: build_run(
                [
                    {"reported_global_step": step, "skipped": attempt in skipped, "optimizer": optimizer}
                    for attempt, step in enumerate(steps, 1)
                ],
                2,
            )
            for optimizer in range(optimizers)
        }
        for optimizer in range(1, optimizers):
            for rank, records in lines[optimizer].items():
                lines[0][rank] += records[1:-1]
        return write_records(folder / "run", lines[0])

    @pytest.mark.parametrize(
        ("steps", "skipped", "optimizers", "reading"),
        [
            ([4, 8, 12], (), 1, "advanced by 8 over 2 updates: it counts micro-steps"),
            ([3, 7, 11], (), 1, "advanced by 8 over 2 updates: it counts micro-steps"),
            ([1, 2, 3], (2,), 1, "advanced by 2 over 1 updates: it counts attempts, skipped ones included"),
            ([2, 4, 6], (), 2, "advanced by 4 over 2 updates: it counts steps of all 2 optimizers"),
            (
                [4, 8, 12],
                (),
                4,
                "advanced by 8 over 2 updates: it counts micro-steps or steps of all 4 optimizers",
            ),
        ],
    )
    def test_other_readings_are_named(
        self, tmp_path: Path, steps: list[int], skipped: tuple[int, ...], optimizers: int, reading: str
    ) -> None:
        rows = judge(self.CODE, self.run(tmp_path, steps, skipped=skipped, optimizers=optimizers))
        assert {(row.fault, row.severity, row.attempt) for row in rows} == {(True, "note", None)}
        assert len(rows) == optimizers
        assert rows[0].message == f"the reported step {reading}"

    @pytest.mark.parametrize(
        ("steps", "skipped"),
        [
            pytest.param([1, 2, 3], (), id="updates"),
            pytest.param([0, 1, 2], (), id="reported before it is raised"),
            pytest.param([501, 502, 503], (), id="continued"),
            pytest.param([1, 1, 2, 3], (2,), id="updates, with a skip"),
            pytest.param([0, 1, 1, 2], (2,), id="reported before it is raised, with a skip"),
        ],
    )
    def test_counters_of_updates_pass(
        self, tmp_path: Path, steps: list[int], skipped: tuple[int, ...]
    ) -> None:
        assert faults(self.CODE, self.run(tmp_path, steps, skipped=skipped)) == [False]

    def test_a_counter_that_fits_nothing_is_unknown(self, tmp_path: Path) -> None:
        assert faults(self.CODE, self.run(tmp_path, [10, 20, 40])) == [None]

    def test_rare_reports_are_compared_where_they_are(self, tmp_path: Path) -> None:
        assert faults(self.CODE, self.run(tmp_path, [1, None, 3, None, 5])) == [False]
        assert faults(self.CODE, self.run(tmp_path / "short", [4, None, 12])) == []

    def test_unknown_updates_are_unknown(self, tmp_path: Path) -> None:
        updates = [{"optimizer_update_id": None, "reported_global_step": step} for step in (4, 8, 12)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [None]


class TestDuplicatedRecords:
    CODE = "ACC806"

    def test_a_copied_file_is_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 3, 2)
        shutil.copy(run / "rank-00" / "00000.aaaa.jsonl", run / "rank-00" / "backup.jsonl")
        rows = judge(self.CODE, run)
        assert [(row.rank, row.fault) for row in rows] == [(0, True), (1, False)] * 3
        assert (rows[0].severity, rows[0].observed, rows[0].expected) == ("warning", 2, 1)
        assert rows[0].message.startswith("rank 0 recorded this attempt 2 times (the lines are copies)")

    def test_two_writers_are_told_from_copies(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 2, 1)
        other = build_run([{"time": START + 50}, {"time": START + 60}], 1)
        write_records(run, other, "aaaa-again")
        rows = judge(self.CODE, run)
        assert [row.fault for row in rows] == [True, True]
        assert "(two writers used the same rank and launch)" in rows[0].message

    def test_two_recorders_in_one_file_are_named(self, tmp_path: Path) -> None:
        records = build_run(2, 1)
        twice = [{**line, "time": line["time"] + 0.01, "seq": 9} for line in records[0][1:3]]
        run = write_records(tmp_path / "run", {0: records[0][:-1] + twice + records[0][-1:]})
        assert "(two recorders wrote into one file)" in judge(self.CODE, run)[0].message

    def test_updates_done_again_after_a_resume_are_a_note(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 5, 1, close=False)
        write_run(run, 3, 1, launch="bbbb", first_update=4, started_at=START + 1000)
        rows = judge(self.CODE, run)
        again = [row for row in rows if row.fault]
        assert [(row.attempt, row.severity) for row in again] == [(4, "note"), (5, "note")]
        assert again[0].message == (
            "update 4 was made in launch 1 and again in a later one, which resumed from before it; "
            "in all it made updates 4 to 5 again"
        )
        assert len(rows) == 8

    def test_a_single_update_done_again_is_one(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 4, 1, close=False)
        write_run(run, 3, 1, launch="bbbb", first_update=4, started_at=START + 1000)
        assert the_fault(self.CODE, run).message.endswith("which resumed from before it")

    def test_the_ranks_of_a_run_are_no_duplicates(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", 2, 3)) == [False] * 6
