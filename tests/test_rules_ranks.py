"""Rules ACC6xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import START, Record, build_run, write_records, write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

INDEPENDENT: dict[str, Any] = {"wrapper": "none", "gradient_divisor": None}


def run_of_lengths(
    folder: Path,
    lengths: Sequence[int],
    *,
    closed: Mapping[int, Mapping[str, Any]] | None = None,
    data_ends: Mapping[int, Sequence[int]] | None = None,
    attempt: Mapping[str, Any] | None = None,
    **run_fields: Any,
) -> Path:
    """A run whose ranks made so many attempts; closed and data_ends hold their marks by rank."""
    updates = [
        dict(attempt or {}) | {"on": {rank: None for rank, length in enumerate(lengths) if n > length}}
        for n in range(1, max(lengths) + 1)
    ]
    closes = closed if closed is not None else {rank: {} for rank in range(len(lengths))}
    marks: list[Record] = [
        {"kind": "end_of_data", "rank": rank, "attempt_id": n}
        for rank, ends in (data_ends or {}).items()
        for n in ends
    ]
    for rank, more in closes.items():
        end = {"kind": "close", "rank": rank, "attempt_id": lengths[rank], "time": START + lengths[rank] + 2}
        marks.append({**end, "reason": "closed", "finished": True, "leftover_microbatches": 0, **more})
    return write_run(folder / "run", updates, len(lengths), marks=marks, close=False, **run_fields)


KILLED: dict[str, Any] = {"reason": "exception", "finished": False}
UNREDUCED: dict[str, Any] = {"events": "ZfbfbfbfbO"}
BY_HAND = "ZFBFBFBFBAO"


class TestRankStoppedEarly:
    CODE = "ACC601"

    def test_a_rank_that_finished_before_the_others_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [6, 4], attempt=UNREDUCED))
        assert (row.rank, row.attempt, row.severity) == (1, 4, "error")
        assert (row.observed, row.expected) == (4, 6)
        assert row.message == (
            "rank 1 finished after attempt 4, and rank 0 went on to attempt 6: 2 attempts without its data"
        )

    def test_one_attempt_is_enough_after_a_good_end(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [5, 5, 4], attempt=UNREDUCED))
        assert row.rank == 2
        assert row.message.endswith("rank 0 went on to attempt 5: 1 attempt without its data")

    def test_attempts_that_were_reduced_were_joined(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [6, 4]))
        assert row.severity == "note"
        assert row.message.endswith(
            "2 attempts without its data; "
            "they were reduced, which needs an answer from every rank, as Join gives it"
        )

    def test_a_rank_out_of_data_is_found_while_the_others_live(self, tmp_path: Path) -> None:
        run = run_of_lengths(tmp_path, [6, 4], closed={}, data_ends={1: [4]}, attempt=UNREDUCED)
        row = the_fault(self.CODE, run)
        assert row.rank == 1
        assert row.message.startswith(
            "rank 1 was out of data after attempt 4, and rank 0 went on to attempt 6"
        )

    @pytest.mark.parametrize("data_ends", [{}, {0: [4]}])
    def test_ranks_left_waiting_are_found(self, tmp_path: Path, data_ends: dict[int, list[int]]) -> None:
        """Rank 1 has a window more than rank 0, waits in its reduction, and times out."""
        closed = {0: {}, 1: KILLED | {"leftover_microbatches": 3}}
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [4, 4], closed=closed, data_ends=data_ends))
        assert (row.rank, row.severity) == (0, "error")
        assert row.message == (
            "rank 0 finished after attempt 4, while rank 1 had begun another window and closed by exception"
        )

    def test_a_crash_after_a_dropped_tail_is_no_waiting(self, tmp_path: Path) -> None:
        left = {"leftover_microbatches": 2}
        run = run_of_lengths(tmp_path, [4, 4], closed={0: left, 1: KILLED | left})
        assert faults(self.CODE, run) == [False, False]

    def test_a_rank_that_fell_silent_is_found(self, tmp_path: Path) -> None:
        closed = {0: {"time": START + 60}}
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [9, 4], closed=closed))
        assert (row.rank, row.attempt, row.severity) == (1, 4, "error")
        assert row.message == "rank 1 wrote nothing after attempt 4, and rank 0 finished after attempt 9"

    def test_ranks_that_end_together_pass(self, tmp_path: Path) -> None:
        ends = {0: [2, 4], 1: [2, 4]}
        assert faults(self.CODE, run_of_lengths(tmp_path, [4, 4], data_ends=ends)) == [False, False]

    def test_a_crash_may_cost_one_rank_an_attempt(self, tmp_path: Path) -> None:
        run = run_of_lengths(tmp_path, [5, 4], closed={0: KILLED, 1: KILLED}, data_ends={0: [2], 1: [2]})
        assert faults(self.CODE, run) == [False, False]

    @pytest.mark.parametrize(
        ("lengths", "closed", "data_ends"),
        [
            pytest.param([5, 5], {}, {}, id="alive"),
            pytest.param([5, 4], {}, {}, id="alive, a record apart"),
            pytest.param([9, 4], {}, {}, id="read at different moments"),
            pytest.param([5, 4], {}, {0: [4], 1: [4]}, id="alive, at the start of an epoch"),
            pytest.param([9, 4], {}, {0: [4, 8], 1: [4]}, id="the end of an epoch that all have seen"),
            pytest.param([5, 4], {0: {}}, {}, id="one is about to finish"),
            pytest.param([7, 4], {0: {}}, {}, id="one is seconds ahead"),
            pytest.param([5, 4], {1: KILLED}, {}, id="killed, one without a last word"),
        ],
    )
    def test_live_and_killed_runs_are_unknown(
        self,
        tmp_path: Path,
        lengths: list[int],
        closed: dict[int, dict[str, Any]],
        data_ends: dict[int, list[int]],
    ) -> None:
        run = run_of_lengths(tmp_path, lengths, closed=closed, data_ends=data_ends, attempt=UNREDUCED)
        assert set(faults(self.CODE, run)) == {None}

    def test_a_resume_that_redoes_updates_shortens_no_rank(self, tmp_path: Path) -> None:
        """Rank 0 alone wrote a close mark in the first launch; its updates 3 to 5 were done again later."""
        run = run_of_lengths(tmp_path, [5, 5], closed={0: KILLED})
        write_run(run, 4, launch="bbbb", first_update=3, started_at=START + 1000)
        assert faults(self.CODE, run) == [False, False, None, None]

    def test_single_ranks_and_independent_runs_are_out_of_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, run_of_lengths(tmp_path / "one", [4])) == []
        apart = run_of_lengths(tmp_path / "sweep", [9, 4], attempt={"events": "ZFBFBFBFBO"}, **INDEPENDENT)
        assert faults(self.CODE, apart) == []

    def test_a_loop_that_reduces_by_hand_is_judged(self, tmp_path: Path) -> None:
        by_hand = {"events": "ZFBFBFBFBAO"}
        run = run_of_lengths(tmp_path, [6, 4], attempt=by_hand, **INDEPENDENT)
        assert the_fault(self.CODE, run).rank == 1

    def test_ranks_that_do_not_write_are_not_missed(self, tmp_path: Path) -> None:
        run = run_of_lengths(tmp_path, [4, 4, 0, 0], closed={0: {}, 1: {}}, recorded_ranks=[0, 1])
        assert faults(self.CODE, run) == [False, False]
        alone = run_of_lengths(tmp_path / "first", [4, 0], closed={0: {}}, recorded_ranks=[0])
        assert faults(self.CODE, alone) == []

    @pytest.mark.parametrize(
        ("lengths", "closed", "data_ends", "verdicts"),
        [
            pytest.param([103, 103], {0: {}, 1: {}}, {}, [False, False], id="together"),
            pytest.param([101, 100], {0: KILLED, 1: KILLED}, {}, [False, False], id="killed at a record"),
            pytest.param([103, 100], {0: {}, 1: {}}, {}, [False, True], id="a rank finished early"),
            pytest.param([109, 101], {}, {1: [95]}, [None, None], id="alive, a record apart"),
            pytest.param([121, 97], {}, {1: [97]}, [None, True], id="out of data"),
        ],
    )
    def test_only_every_tenth_attempt_is_recorded(
        self,
        tmp_path: Path,
        lengths: list[int],
        closed: dict[int, dict[str, Any]],
        data_ends: dict[int, list[int]],
        verdicts: list[bool | None],
    ) -> None:
        run = run_of_lengths(
            tmp_path, lengths, closed=closed, data_ends=data_ends, attempt=UNREDUCED, every=10
        )
        assert {row.rank: row.fault for row in judge(self.CODE, run)} == dict(enumerate(verdicts))

    def test_late_attempts_that_are_not_recorded_were_reduced_like_the_last_one(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, run_of_lengths(tmp_path, [9, 7], every=4))
        assert (row.attempt, row.rank, row.severity) == (5, 1, "note")
        assert row.message.startswith("rank 1 finished after attempt 7, and rank 0 went on to attempt 9")

    def test_an_unknown_wrapper_is_unknown(self, tmp_path: Path) -> None:
        run = run_of_lengths(tmp_path, [6, 4], wrapper=None)
        assert set(faults(self.CODE, run)) == {None}

    def test_optimizers_are_compared_with_themselves(self, tmp_path: Path) -> None:
        """The critic steps twice as often as the generator; each on all ranks alike."""
        records = build_run(4, 2, close=False)
        for rank, lines in build_run([{"optimizer": 1}] * 8, 2, close=False).items():
            records[rank] += lines[1:]
        for rank in records:
            for optimizer, attempts in ((0, 4), (1, 8)):
                mark = {"record": "mark", "launch": "aaaa", "rank": rank, "kind": "close"}
                records[rank].append(
                    mark | {"optimizer": optimizer, "attempt_id": attempts, "time": START, "finished": True}
                )
        run = write_records(tmp_path / "run", records)
        assert faults(self.CODE, run) == [False] * 4


class TestRateDisagreement:
    CODE = "ACC603"

    def test_different_rates_are_found(self, tmp_path: Path) -> None:
        update = {"learning_rate": 0.01, "on": {1: {"learning_rate": 0.001}}}
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{}, update], 3))
        assert (row.attempt, row.rank, row.severity) == (2, None, "error")
        assert (row.observed, row.expected) == (0.01, 0.001)
        assert row.message == "rank 0 stepped at 0.01 and rank 1 at 0.001, 10 times as much"

    @pytest.mark.parametrize(("rate", "fault"), [(0.01 * (1 + 1e-8), False), (0.01 * (1 + 1e-5), True)])
    def test_the_tolerance(self, tmp_path: Path, rate: float, fault: bool) -> None:
        update = {"learning_rate": 0.01, "on": {1: {"learning_rate": rate}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [fault]

    def test_rates_of_0_agree(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [{"learning_rate": 0.0}])) == [False]

    def test_pipeline_stages_may_differ(self, tmp_path: Path) -> None:
        stages = {
            rank: {
                "pipeline_rank": rank,
                "pipeline_size": 2,
                "data_parallel_rank": 0,
                "data_parallel_size": 1,
            }
            for rank in range(2)
        }
        update = {"learning_rate": 0.01, "on": {1: {"learning_rate": 0.001}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 2, on=stages)) == []

    def test_independent_runs_and_single_ranks_are_out_of_scope(self, tmp_path: Path) -> None:
        update = {"learning_rate": 0.01, "events": "ZFBO", "on": {1: {"learning_rate": 0.001}}}
        assert faults(self.CODE, write_run(tmp_path / "sweep", [update], **INDEPENDENT)) == []
        assert faults(self.CODE, write_run(tmp_path / "one", 2, 1)) == []

    def test_what_is_missing_is_unknown(self, tmp_path: Path) -> None:
        update = {"learning_rate": None, "on": {1: {"learning_rate": 0.1}}}
        assert faults(self.CODE, write_run(tmp_path / "rates", [update])) == [None]
        assert faults(self.CODE, write_run(tmp_path / "wrapper", 1, wrapper=None)) == [None]


class TestGradientDisagreement:
    CODE = "ACC604"

    def test_slices_that_differ_after_the_reduction_are_found(self, tmp_path: Path) -> None:
        update = {"probe_gradient": [1.0, 2.0], "on": {1: {"probe_gradient": [1.0, 1.5]}}}
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{}, update]))
        assert (row.attempt, row.rank, row.severity) == (2, None, "error")
        assert row.observed == pytest.approx(0.25)
        assert row.message == "slices of the reduced gradient differ by 25 % between ranks"

    def test_norms_that_differ_are_found(self, tmp_path: Path) -> None:
        update = {"grad_norm_after_clip": 2.0, "on": {1: {"grad_norm_after_clip": 1.9}}}
        row = the_fault(self.CODE, write_run(tmp_path / "run", [update]))
        assert row.severity == "error"
        assert row.message == (
            "the norms of the reduced gradient are 1.9 to 2, 5 % apart, while the probed slice agrees"
        )

    def test_a_clip_does_not_hide_them(self, tmp_path: Path) -> None:
        clipped = {"events": "ZfbfbfbFBCO", "grad_norm_before_scope": "global", "grad_norm_after_clip": 1.0}
        update = clipped | {"grad_norm_before_clip": 2.0, "on": {1: {"grad_norm_before_clip": 1.9}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [True]

    def test_a_clip_on_one_rank_alone_is_found(self, tmp_path: Path) -> None:
        fields = {"events": "ZfbfbfbFBCO", "grad_norm_before_scope": "global", "grad_norm_before_clip": 2.0}
        update = {"grad_norm_after_clip": 2.0, "on": {1: fields | {"grad_norm_after_clip": 1.0}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [True]

    def test_a_rank_that_threw_a_window_away_is_told(self, tmp_path: Path) -> None:
        update = {"probe_gradient": [1.0, 2.0], "on": {1: {"probe_gradient": [1.0, 1.5], "micro_step_id": 8}}}
        assert the_fault(self.CODE, write_run(tmp_path / "run", [update])).message == (
            "slices of the reduced gradient differ by 25 % between ranks; "
            "the ranks are 4 micro-steps apart in this attempt"
        )

    def test_a_clip_before_the_reduction_is_another_fault(self, tmp_path: Path) -> None:
        clipped = {"events": "ZfbfbfbCFBO", "grad_norm_before_scope": "global", "grad_norm_after_clip": 1.0}
        update = clipped | {"grad_norm_before_clip": 2.0, "on": {1: {"grad_norm_before_clip": 1.9}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [False]

    @pytest.mark.parametrize(
        "update",
        [
            pytest.param({}, id="equal"),
            pytest.param(
                {"on": {1: {"probe_gradient": [0.01000001 * n for n in range(1, 9)]}}}, id="rounding"
            ),
            pytest.param(
                {"on": {1: {"grad_norm_after_clip": 0.3, "grad_norm_after_scope": "shard"}}}, id="shards"
            ),
            pytest.param({"probe_gradient": [0.0, 0.0], "grad_norm_after_clip": 0.0}, id="all zero"),
            pytest.param(
                {"events": "ZFBFBFBFBO", "probe_parameter_moved": True}, id="reduced, and weights are clamped"
            ),
        ],
    )
    def test_it_leaves_alone(self, tmp_path: Path, update: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [update])) == [False]

    def test_a_loop_that_reduces_by_hand(self, tmp_path: Path) -> None:
        """The slice was taken after the loop's own reduction."""
        slices = {"events": BY_HAND, "probe_gradient": [1.0], "on": {1: {"probe_gradient": [2.0]}}}
        row = the_fault(self.CODE, write_run(tmp_path / "slices", [slices], **INDEPENDENT))
        assert row.message == "slices of the reduced gradient differ by 50 % between ranks"
        norms = {"events": BY_HAND, "on": {1: {"grad_norm_after_clip": 0.6}}}
        row = the_fault(self.CODE, write_run(tmp_path / "norms", [norms], **INDEPENDENT))
        assert row.message.startswith("the norms of the reduced gradient are 0.5 to 0.6, 16.7 % apart")

    def test_local_sgd_is_not_judged(self, tmp_path: Path) -> None:
        apart: dict[str, Any] = {"probe_gradient": [1.0], "on": {1: {"probe_gradient": [2.0]}}}
        moved = {"probe_parameter_moved": True}
        unwrapped = [apart | {"events": "ZFBO"}, apart | moved | {"events": "ZFBO"}]
        assert faults(self.CODE, write_run(tmp_path / "none", unwrapped, **INDEPENDENT)) == []
        quiet = [apart | {"events": "ZfbO"}, apart | moved | {"events": "ZfbO"}]
        assert faults(self.CODE, write_run(tmp_path / "ddp", quiet)) == []
        hooked = write_run(tmp_path / "hook", [apart, apart | moved], gradient_divisor=None)
        assert faults(self.CODE, hooked) == [None, None]
        sent = [update | {"events": BY_HAND} for update in (apart, apart | moved)]
        assert faults(self.CODE, write_run(tmp_path / "sent", sent, **INDEPENDENT)) == [None, None]

    @pytest.mark.parametrize(
        ("word", "run_fields"),
        [
            pytest.param("ZfbfbfbfbO", {}, id="not reduced is ACC501"),
            pytest.param("ZFBfbfbfbO", {}, id="reduced too early is ACC502"),
            pytest.param("ZfbfbfbFBX", {}, id="skipped"),
            pytest.param("ZFBFBFBFBO", {"wrapper": "none"}, id="independent runs"),
            pytest.param("ZFBFBFBFBO", {"wrapper": "fsdp2"}, id="shards"),
        ],
    )
    def test_out_of_scope(self, tmp_path: Path, word: str, run_fields: dict[str, Any]) -> None:
        update = {"events": word, "skipped": "X" in word, "probe_gradient": [1.0]}
        run = write_run(tmp_path / "run", [update | {"on": {1: {"probe_gradient": [2.0]}}}], 2, **run_fields)
        assert faults(self.CODE, run) == []

    def test_tensor_parts_are_not_compared(self, tmp_path: Path) -> None:
        parts = {
            rank: {
                "tensor_rank": rank % 2,
                "tensor_size": 2,
                "data_parallel_rank": rank // 2,
                "data_parallel_size": 2,
            }
            for rank in range(4)
        }
        other = {"probe_gradient": [5.0], "grad_norm_after_clip": 3.0}
        update = {"probe_gradient": [1.0], "on": {1: other, 3: other}}
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 4, on=parts)) == [False]

    @pytest.mark.parametrize(
        ("update", "run_fields"),
        [
            pytest.param({}, {"gradient_divisor": None}, id="a communication hook"),
            pytest.param({}, {"wrapper": None}, id="no wrapper"),
            pytest.param({"events": None}, {}, id="no word"),
            pytest.param({"probe_gradient": None, "grad_norm_after_clip": None}, {}, id="no gradients"),
            pytest.param(
                {"on": {1: {"grad_norm_after_clip": 0.3, "probe_parameter": "body.bias"}}},
                {},
                id="an optimizer divided over the ranks",
            ),
        ],
    )
    def test_unknown(self, tmp_path: Path, update: dict[str, Any], run_fields: dict[str, Any]) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [update], 2, **run_fields)) == [None]


class TestWindowSizeDisagreement:
    CODE = "ACC606"

    def test_sizes_that_differ_are_a_note_where_the_weights_are_right(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{}, {"on": {1: {"microbatches": 2}}}]))
        assert (row.attempt, row.rank, row.severity) == (2, None, "note")
        assert (row.observed, row.expected) == (2, 4)
        assert row.message == (
            "rank 0 accumulated 4 micro-steps and rank 1 2: every token counts the same all the same"
        )

    def test_unequal_weights_are_a_warning(self, tmp_path: Path) -> None:
        """400 and 200 tokens, each divided by its own rank's number."""
        short = {"valid_tokens": [100.0] * 2, "loss_weight": [0.5] * 2, "loss_weight_sq": [0.0025] * 2}
        full = {"valid_tokens": [100.0] * 4, "loss_weight": [0.25] * 4, "loss_weight_sq": [0.000625] * 4}
        row = the_fault(self.CODE, write_run(tmp_path / "run", [full | {"on": {1: short}}]))
        assert row.severity == "warning"
        assert row.message.endswith("tokens weigh up to 2.00 times as much as others")

    def test_unknown_weights_are_a_warning(self, tmp_path: Path) -> None:
        unknown = {"loss_weight": None, "loss_weight_sq": None}
        row = the_fault(
            self.CODE, write_run(tmp_path / "run", [unknown | {"on": {1: unknown | {"microbatches": 2}}}])
        )
        assert row.severity == "warning"
        assert row.message.endswith("the record does not tell how much their tokens weigh")

    def test_a_short_window_of_all_ranks_and_a_rank_without_tokens_pass(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{"microbatches": 2}, {"on": {1: {"valid_tokens": [0.0] * 4}}}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [False, False]

    def test_independent_runs_and_single_ranks_are_out_of_scope(self, tmp_path: Path) -> None:
        update = {"events": "ZFBO", "on": {1: {"microbatches": 2}}}
        assert faults(self.CODE, write_run(tmp_path / "sweep", [update], **INDEPENDENT)) == []
        assert faults(self.CODE, write_run(tmp_path / "one", 2, 1)) == []

    def test_ranks_that_do_not_write_are_not_missed(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{"on": {2: None}}, {"on": {1: {"microbatches": 2}, 2: None}}]
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, 3, recorded_ranks=[0, 1]))
        assert [(row.fault, row.severity) for row in rows] == [(False, "warning"), (True, "warning")]
        assert rows[1].message.endswith("the record does not tell how much their tokens weigh")

    def test_unknown_sizes_are_unknown(self, tmp_path: Path) -> None:
        unknown = {"on": {1: {"microbatches": None}}}
        assert faults(self.CODE, write_run(tmp_path / "run", [unknown])) == [None]
