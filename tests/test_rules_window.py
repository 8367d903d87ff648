"""Rules ACC2xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def step(microbatches: int, word: str | None = None, **more: Any) -> dict[str, Any]:
    """An attempt after this many micro-steps; its weights add up to 1 unless said otherwise."""
    return {"microbatches": microbatches} | ({"events": word} if word else {}) | more


def unwatched(*updates: dict[str, Any]) -> list[dict[str, Any]]:
    """The same attempts of a loop that gave no dataloader to attach."""
    return [update | {"epoch": None} for update in updates]


END_OF_DATA = {"kind": "end_of_data"}


class TestStepInsideWindow:
    def test_two_steps_within_one_window_are_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), step(2), step(2), step(4)], ranks=1)
        assert faults("ACC201", run) == [False, True, True, False]
        row = judge("ACC201", run)[1]
        assert (row.severity, row.observed, row.expected) == ("error", 2, 4)
        assert row.message == (
            "the optimizer stepped after 2 and again after 2 of 4 micro-steps in the middle of the data"
        )

    def test_unequal_parts_are_told_in_their_order(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), step(1), step(3)], ranks=1)
        messages = {row.message.split(" of ")[0] for row in judge("ACC201", run) if row.fault}
        assert messages == {"the optimizer stepped after 1 and again after 3"}

    def test_a_step_in_every_micro_step_is_found(self, tmp_path: Path) -> None:
        assert faults("ACC201", write_run(tmp_path / "run", [step(1)] * 4, ranks=1)) == [True] * 4

    def test_windows_that_are_never_full_are_found(self, tmp_path: Path) -> None:
        assert faults("ACC201", write_run(tmp_path / "run", [step(3)] * 3, ranks=1)) == [True] * 3

    def test_it_explains_the_weights(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), *[step(1, total_weight=0.25)] * 4], ranks=1)
        verdicts = {v.code: v for v in check_paths([run], select=["ACC101", "ACC201"]).runs[0].verdicts}
        assert verdicts["ACC201"].status == "failed"
        assert verdicts["ACC101"].reason == "a cause was found by ACC201"

    def test_one_short_window_is_a_tail(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), step(2), step(4), step(2)], ranks=1)
        assert faults("ACC201", run) == [False] * 4

    def test_skipped_micro_steps_do_not_fit_into_one_window(self, tmp_path: Path) -> None:
        """A loop that goes on after a non-finite loss, stepping by the batch index."""
        run = write_run(tmp_path / "run", [step(4), step(3), step(3), step(2), step(4)], ranks=1)
        assert faults("ACC201", run) == [False] * 5

    def test_epochs_shorter_than_a_window(self, tmp_path: Path) -> None:
        by_epoch = [step(3, epoch=epoch) for epoch in (1, 2, 3)]
        assert faults("ACC201", write_run(tmp_path / "epochs", by_epoch, ranks=1)) == [False] * 3
        marks = [END_OF_DATA | {"attempt_id": attempt} for attempt in (1, 2, 3)]
        by_marks = write_run(tmp_path / "marks", unwatched(*[step(3)] * 3), ranks=1, marks=marks)
        assert faults("ACC201", by_marks) == [False] * 3
        by_word = [step(3, "ZFBFBFBOS|")] * 3
        assert faults("ACC201", write_run(tmp_path / "word", by_word, ranks=1)) == [False] * 3

    @pytest.mark.parametrize(
        ("held", "unknown", "severity"),
        [(3, {}, "note"), (3, {"loss_weight": None}, "warning"), (1, {}, "warning")],
    )
    def test_without_a_dataloader_it_may_be_a_short_epoch(
        self, tmp_path: Path, held: int, unknown: dict[str, Any], severity: str
    ) -> None:
        run = write_run(tmp_path / "run", unwatched(*[step(held, **unknown)] * 2), ranks=1)
        rows = judge("ACC201", run)
        assert [(row.fault, row.severity) for row in rows] == [(True, severity)] * 2
        assert rows[0].message.endswith("; no dataloader was given, so the data may have ended between")

    def test_without_a_dataloader_wrong_weights_make_it_an_error(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", unwatched(*[step(1, total_weight=0.25)] * 2), ranks=1)
        assert [row.severity for row in judge("ACC201", run)] == ["error"] * 2

    @pytest.mark.parametrize(("total", "severity"), [(1.0, "warning"), (0.5, "error")])
    def test_a_window_of_two_may_have_lost_a_micro_step(
        self, tmp_path: Path, total: float, severity: str
    ) -> None:
        updates = [step(2), step(1, total_weight=total), step(1, total_weight=total), step(2)]
        rows = judge("ACC201", write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2))
        assert [row.fault for row in rows] == [False, True, True, False]
        assert rows[1].severity == rows[2].severity == severity
        assert rows[1].message.endswith("; micro-steps that the loop skipped would look the same")

    def test_a_count_that_changes_is_the_count_of_its_window(self, tmp_path: Path) -> None:
        updates = [step(2, accumulation_steps=2), step(2, accumulation_steps=2), step(4), step(4)]
        assert faults("ACC201", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 4

    def test_discarded_micro_steps_belong_to_the_window(self, tmp_path: Path) -> None:
        """Gradients cleared in every micro-step are another fault."""
        updates = [step(1, "ZFBZFBZFBZFBOS", discarded_microbatches=3)] * 2
        assert faults("ACC201", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 2

    def test_one_backward_through_the_losses_of_a_whole_window(self, tmp_path: Path) -> None:
        whole = [step(1, "ZFFFFBO")] * 3 + [step(1, "ZFFBO")]
        assert faults("ACC201", write_run(tmp_path / "whole", whole, ranks=1)) == [False] * 4
        pairs = write_run(tmp_path / "pairs", [step(1, "ZFFBO")] * 3, ranks=1)
        assert faults("ACC201", pairs) == [True] * 3

    def test_a_closure_and_a_step_without_backward_are_out_of_scope(self, tmp_path: Path) -> None:
        closures = write_run(tmp_path / "closures", [step(1, "(ZFB)OS")] * 3, ranks=1)
        assert judge("ACC201", closures) == []
        idle = [step(0, "ZO"), step(0, "O"), step(4), step(2)]
        assert faults("ACC201", write_run(tmp_path / "idle", idle, ranks=1)) == [False, False]

    def test_an_inferred_or_unknown_count_is_not_judged(self, tmp_path: Path) -> None:
        updates = [step(4)] * 20 + [step(2), step(2)]
        run = write_run(tmp_path / "a", updates, ranks=1, accumulation_steps=None)
        assert None in faults("ACC201", run)
        assert True not in faults("ACC201", run)
        (verdict,) = check_paths([run], select=["ACC201"]).runs[0].verdicts
        assert verdict.reason == "`accumulation_steps` was never declared or reported"

    def test_a_lost_record_breaks_the_pair(self, tmp_path: Path) -> None:
        updates = [step(1), step(4, on={0: None}), step(1)]
        assert judge("ACC201", write_run(tmp_path / "run", updates, ranks=1)) == []


class TestGradientsClearedInsideWindow:
    EVERY = step(1, "ZFBZFBZFBZFBOS", discarded_microbatches=3, total_weight=0.25)

    def test_a_clear_in_every_micro_step_is_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [self.EVERY] * 2, ranks=1)
        assert faults("ACC202", run) == [True, True]
        row = judge("ACC202", run)[0]
        assert (row.severity, row.observed, row.expected) == ("error", 1, 4)
        assert row.message == (
            "3 of 4 micro-steps were cleared before the step: "
            "the update lost them and holds 1, which weigh 0.250 of an update"
        )

    def test_a_clear_just_before_the_step_leaves_nothing(self, tmp_path: Path) -> None:
        updates = [step(0, "ZFBFBFBFBZOS", discarded_microbatches=4)]
        row = the_fault("ACC202", write_run(tmp_path / "run", updates, ranks=1))
        assert (
            row.message == "4 of 4 micro-steps were cleared before the step: the update lost them and holds 0"
        )

    def test_a_tail_is_judged_beside_a_whole_window(self, tmp_path: Path) -> None:
        tail = step(1, "ZFBZFBZFBOS|", discarded_microbatches=2)
        run = write_run(tmp_path / "run", [self.EVERY, tail], ranks=1)
        assert faults("ACC202", run) == [True, True]
        assert judge("ACC202", run)[1].message == (
            "2 of 3 micro-steps were cleared before the step: the update lost them and holds 1"
        )

    def test_it_explains_the_weights(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [self.EVERY] * 2, ranks=1)
        verdicts = {v.code: v for v in check_paths([run]).runs[0].verdicts}
        assert verdicts["ACC202"].status == "failed"
        assert verdicts["ACC101"].status != "failed"
        assert verdicts["ACC104"].reason == "a cause was found by ACC202"

    def test_right_weights_do_not_excuse_it(self, tmp_path: Path) -> None:
        updates = [step(2, "ZFBFBZFBFBOS", discarded_microbatches=2)] * 2
        rows = judge("ACC202", write_run(tmp_path / "run", updates, ranks=1))
        assert [(row.fault, row.severity) for row in rows] == [(True, "error")] * 2

    @pytest.mark.parametrize(("total", "severity"), [(1.0, "warning"), (0.5, "error")])
    def test_now_and_then_it_may_be_a_guard(self, tmp_path: Path, total: float, severity: str) -> None:
        """A loop that clears the window when it meets a non-finite gradient."""
        updates = [step(4), step(4), step(2, "ZFBFBZFBFBOS", discarded_microbatches=2, total_weight=total)]
        assert the_fault("ACC202", write_run(tmp_path / "run", updates, ranks=1)).severity == severity

    @pytest.mark.parametrize(
        "honest",
        [
            step(4, "ZFBFB|ZFBFBFBFBOS", discarded_microbatches=2),
            step(2, "ZFBFB|ZFBFBOS", discarded_microbatches=2),
            step(2, "ZFBFBoZFBFBOS", discarded_microbatches=2),
            step(4, "ZFBFBFBFBZFBFBFBFBOS", discarded_microbatches=4),
            step(2, "ZFBZFBFBOS", discarded_microbatches=1),
        ],
        ids=["dropped-tail", "end-of-data", "another-optimizer", "two-passes", "lost-micro-step"],
    )
    def test_honest_clears_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC202", write_run(tmp_path / "run", [step(4), honest], ranks=1)) == [False, False]

    def test_gradients_kept_elsewhere_and_put_back_are_unknown(self, tmp_path: Path) -> None:
        """Each micro-step is added to buffers of the loop's own, and cleared."""
        put_back = step(1, "ZFBZFBZFBZFBMO", discarded_microbatches=3, grad_rescale=None)
        assert faults("ACC202", write_run(tmp_path / "a", [put_back], ranks=1)) == [None]
        halved = put_back | {"grad_rescale": 0.5}
        assert faults("ACC202", write_run(tmp_path / "b", [halved], ranks=1)) == [True]

    def test_a_tail_of_two_passes_passes(self, tmp_path: Path) -> None:
        """Sharpness-aware minimisation by hand: the first pass moves the parameters and is cleared."""
        updates = [
            step(4, "ZFBFBFBFBZFBFBFBFBOS", discarded_microbatches=4),
            step(2, "ZFBFBZFBFBOS", discarded_microbatches=2),
        ]
        assert faults("ACC202", write_run(tmp_path / "run", updates, ranks=1)) == [False, False]

    def test_a_discriminator_passes(self, tmp_path: Path) -> None:
        updates = [step(1, "ZFFBO"), *[step(1, "FBoZFFBO", discarded_microbatches=1)] * 3]
        run = write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=1)
        assert faults("ACC202", run) == [False] * 4
        assert faults("ACC203", run) == [False] * 3
        assert faults("ACC205", run) == [False] * 5

    def test_a_closure_is_out_of_scope(self, tmp_path: Path) -> None:
        updates = [step(1, "(ZFBZFBZFB)OS", discarded_microbatches=2)]
        run = write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=3)
        assert judge("ACC202", run) == []

    def test_an_inferred_count_is_judged(self, tmp_path: Path) -> None:
        updates = [step(4)] * 10 + [step(2, "ZFBFBZFBFBOS", discarded_microbatches=2)]
        run = write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=None)
        assert faults("ACC202", run) == [False] * 10 + [True]

    @pytest.mark.parametrize("unknown", [{"events": None}, {"on": {0: {"discarded_microbatches": None}}}])
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        assert faults("ACC202", write_run(tmp_path / "run", [self.EVERY | unknown], ranks=1)) == [None]


class TestStaleGradients:
    STALE = step(4, "FBFBFBFBOS")

    def test_gradients_that_were_never_cleared_are_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), self.STALE, self.STALE, step(4)], ranks=1)
        assert faults("ACC203", run) == [True, True, False]
        first, second, _ = judge("ACC203", run)
        assert (first.severity, first.observed, second.observed) == ("error", 2, 3)
        assert second.message == (
            "no gradient was cleared since attempt 2: the step used the gradients of 3 windows, not of one"
        )

    def test_it_explains_a_window_that_is_too_long(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(4), step(6, "FBFBFBFBFBFBOS")], ranks=1)
        verdicts = {v.code: v for v in check_paths([run], select=["ACC203", "ACC204"]).runs[0].verdicts}
        assert verdicts["ACC203"].status == "failed"
        assert verdicts["ACC204"].reason == "a cause was found by ACC203; 1 other rows are clean"

    @pytest.mark.parametrize(
        "word", ["ZFBFBFBFBOS", "FBoZFFBFBFBFBO", "FBZFBFBFBFBOS"], ids=["top", "another-optimizer", "later"]
    )
    def test_a_clear_anywhere_passes(self, tmp_path: Path, word: str) -> None:
        assert faults("ACC203", write_run(tmp_path / "run", [step(4), step(4, word)], ranks=1)) == [False]

    def test_a_step_inside_a_window_is_another_fault(self, tmp_path: Path) -> None:
        updates = [step(1, "ZFBO"), *[step(1, "FBO")] * 3]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert faults("ACC203", run) == [False] * 3
        assert faults("ACC201", run) == [True] * 4

    def test_the_first_attempt_has_none_before_it(self, tmp_path: Path) -> None:
        assert judge("ACC203", write_run(tmp_path / "run", [self.STALE], ranks=1)) == []

    def test_a_closure_is_out_of_scope(self, tmp_path: Path) -> None:
        assert judge("ACC203", write_run(tmp_path / "run", [step(1, "(FB)O")] * 2, ranks=1)) == []

    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path) -> None:
        updates = [step(4), step(4, events=None)]
        assert faults("ACC203", write_run(tmp_path / "word", updates, ranks=1)) == [None]
        updates = [step(3), step(4, "FBFBFBFBO"), step(5), step(5, "ZFBFBFBFBFBO")]
        run = write_run(tmp_path / "count", updates, ranks=1, accumulation_steps=None)
        assert faults("ACC203", run) == [None, False, False]


class TestWindowTooLong:
    def test_more_micro_steps_than_declared_are_found(self, tmp_path: Path) -> None:
        row = the_fault("ACC204", write_run(tmp_path / "run", [step(4), step(6, total_weight=1.5)], ranks=1))
        assert (row.severity, row.observed, row.expected) == ("warning", 6, 4)
        assert row.message == "a window of 6 micro-steps where 4 are declared; it weighs 1.500 of an update"

    def test_an_inferred_count_makes_it_a_note(self, tmp_path: Path) -> None:
        updates = [step(4)] * 10 + [step(5)]
        row = the_fault("ACC204", write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=None))
        assert row.severity == "note"
        assert "where 4 are usual (inferred)" in row.message

    @pytest.mark.parametrize(("total", "severity"), [(1.0, "note"), (2.0, "warning")])
    def test_two_passes_over_each_batch_are_a_note(self, tmp_path: Path, total: float, severity: str) -> None:
        run = write_run(tmp_path / "run", [step(8, total_weight=total)] * 3, ranks=1)
        assert [(row.fault, row.severity) for row in judge("ACC204", run)] == [(True, severity)] * 3

    def test_short_and_full_windows_and_a_change_pass(self, tmp_path: Path) -> None:
        updates = [step(4), step(2), step(8, accumulation_steps=8)]
        assert faults("ACC204", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 3

    def test_two_backwards_a_micro_step_without_a_seen_forward(self, tmp_path: Path) -> None:
        """Eight backwards are four micro-steps of two, or eight of one."""
        run = write_run(tmp_path / "run", [step(8, "ZBBBBBBBBOS")] * 3, ranks=1)
        assert faults("ACC204", run) == [None] * 3

    def test_a_longer_window_without_a_seen_forward_is_found(self, tmp_path: Path) -> None:
        updates = [step(4, "ZBBBBOS")] * 3 + [step(6, "ZBBBBBBOS")]
        assert faults("ACC204", write_run(tmp_path / "run", updates, ranks=1)) == [False] * 3 + [True]

    def test_two_backwards_of_one_forward_and_pairs_are_one_micro_step(self, tmp_path: Path) -> None:
        updates = [step(4, "ZFBBFBBFBBFBBOS"), step(4, "ZFFBFFBFFBFFBOS")]
        run = write_run(tmp_path / "run", updates, ranks=1)
        for code in ("ACC201", "ACC202", "ACC203", "ACC204", "ACC205"):
            assert set(faults(code, run)) == {False}

    def test_a_closure_is_out_of_scope(self, tmp_path: Path) -> None:
        assert judge("ACC204", write_run(tmp_path / "run", [step(6, "(ZFBFB)O")], ranks=1)) == []

    def test_an_unknown_count_is_unknown(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [step(3), step(5)], ranks=1, accumulation_steps=None)
        assert faults("ACC204", run) == [None, None]


class TestDroppedTail:
    CLEARED = step(4, "FBFB|ZFBFBFBFBOS", discarded_microbatches=2, epoch=2)

    def test_a_tail_that_was_cleared_is_counted(self, tmp_path: Path) -> None:
        row = the_fault("ACC205", write_run(tmp_path / "run", [step(4), self.CLEARED], ranks=1))
        assert (row.attempt, row.severity, row.observed) == (2, "note", 2)
        assert row.message == "2 micro-steps before this window were computed and cleared without a step"

    @pytest.mark.parametrize(("begun", "fault"), [(6, True), (4, False), (5, False)])
    def test_a_tail_that_was_fetched_as_a_whole_lies_before_the_next_pass(
        self, tmp_path: Path, begun: int, fault: bool
    ) -> None:
        """A loop that fetches whole windows sees the end of the data before the window that it leaves out."""
        updates = [step(4), step(4, "ZFBFBZFBFBFBFBOS", discarded_microbatches=2, micro_step_id=10, epoch=2)]
        ends = [
            {"kind": "end_of_data", "attempt_id": 1, "micro_step_id": 4, "epoch": 1},
            {"kind": "epoch_end", "attempt_id": 1, "micro_step_id": begun, "epoch": 1},
        ]
        run = write_run(tmp_path / "run", updates, ranks=1, marks=ends, close=False)
        assert faults("ACC205", run) == [False, fault]

    def test_without_a_dataloader_any_rest_counts(self, tmp_path: Path) -> None:
        updates = unwatched(step(4), step(4, "FBFBZFBFBFBFBOS", discarded_microbatches=2))
        assert faults("ACC205", write_run(tmp_path / "run", updates, ranks=1)) == [False, True, False]

    def test_what_a_finished_run_left_is_counted(self, tmp_path: Path) -> None:
        close = {
            "kind": "close",
            "reason": "closed",
            "finished": True,
            "leftover_microbatches": 3,
            "leftover_valid_tokens": 41.0,
        }
        row = the_fault("ACC205", write_run(tmp_path / "run", 2, ranks=1, marks=[close], close=False))
        assert (row.rank, row.severity, row.observed) == (0, "note", 3)
        assert row.message == "the last 3 micro-steps (41 valid positions) were computed and never applied"

    @pytest.mark.parametrize(
        "honest",
        [
            step(4, "FBFBoZFBFBFBFBOS", discarded_microbatches=2),
            step(4, "ZFBFBFBFBZFBFBFBFBOS", discarded_microbatches=4),
            step(4, "FBZFBFBFBFBOS", discarded_microbatches=1),
            step(4, "FBFBZFBFBFBFBOS|", discarded_microbatches=2),
        ],
        ids=["another-optimizer", "two-passes", "dry-run", "in-the-middle"],
    )
    def test_gradients_cleared_elsewhere_are_no_tail(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC205", write_run(tmp_path / "run", [step(4), honest], ranks=1)) == [False] * 3

    @pytest.mark.parametrize(("finished", "fault"), [(False, False), (None, None)])
    def test_an_interrupted_run_dropped_nothing(
        self, tmp_path: Path, finished: bool | None, fault: bool | None
    ) -> None:
        close = {"kind": "close", "reason": "exit", "finished": finished, "leftover_microbatches": 3}
        run = write_run(tmp_path / "run", 1, ranks=1, marks=[close], close=False)
        assert faults("ACC205", run) == [False, fault]

    def test_a_run_cut_while_alive_is_silent(self, tmp_path: Path) -> None:
        assert faults("ACC205", write_run(tmp_path / "run", 2, ranks=1, close=False)) == [False, False]

    def test_what_the_other_side_of_a_gan_leaves_is_no_tail(self, tmp_path: Path) -> None:
        close = {"kind": "close", "finished": True, "leftover_microbatches": 1, "optimizer": 0}
        updates = [step(1, "ZFFBO"), step(1, "FBoZFFBO", discarded_microbatches=1)]
        run = write_run(tmp_path / "run", updates, ranks=1, marks=[close], close=False, accumulation_steps=1)
        assert faults("ACC205", run) == [False, False, False]

    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path) -> None:
        updates = [
            self.CLEARED | {"on": {0: {"discarded_microbatches": None}}},
            self.CLEARED | {"events": None},
        ]
        run = write_run(tmp_path / "run", updates, ranks=1, close=False)
        assert faults("ACC205", run) == [None, None]


def test_healthy_loops_are_silent(tmp_path: Path) -> None:
    """Accumulation in DDP, two optimizers in turn, a tail at the end of each epoch, a skip."""
    updates = [
        step(4),
        step(4, skipped=True),
        step(2, "ZfbFBOS|"),
        step(4, "ZfbfbfbFBoOS", epoch=2),
        step(4, "ZfbfbfbFBOoS", epoch=2),
        step(2, "ZfbFBOS|", epoch=2),
    ]
    run = write_run(tmp_path / "run", updates)
    codes = ["ACC201", "ACC202", "ACC203", "ACC204", "ACC205", "ACC206"]
    (report,) = check_paths([run], select=codes).runs
    assert {verdict.code: verdict.status for verdict in report.verdicts} == dict.fromkeys(codes, "passed")


def test_a_long_window_is_read_from_its_short_form(tmp_path: Path) -> None:
    updates = [
        step(65, "Zfb{fb}63FBOS"),
        step(65, "fb{fb}63FBOS"),
        step(1, "ZFB{ZFB}63ZFBOS", discarded_microbatches=64),
    ]
    run = write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=65)
    assert faults("ACC203", run) == [True, False]
    assert faults("ACC202", run) == [False, False, True]
