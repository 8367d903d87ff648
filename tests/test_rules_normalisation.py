"""Rules ACC1xx on hand-made ledgers: what they find, what they leave alone, what they cannot tell."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

SHORT: dict[str, Any] = {"microbatches": 2, "total_weight": 0.5}
EMPTY: dict[str, Any] = {"valid_tokens": [0.0, 0.0, 0.0, 0.0]}


def window(n: list[float], weights: list[float], **more: Any) -> dict[str, Any]:
    """A window of micro-steps with these valid tokens and A1."""
    squares = [a * a / tokens if tokens else 0.0 for tokens, a in zip(n, weights, strict=True)]
    return {"valid_tokens": n, "loss_weight": weights, "loss_weight_sq": squares, **more}


class TestFixedDivisorTail:
    def test_a_tail_divided_by_the_full_count_is_found(self, tmp_path: Path) -> None:
        row = the_fault("ACC101", write_run(tmp_path / "run", [{}, {}, SHORT]))
        assert row.attempt == 3
        assert row.severity == "error"
        assert row.message == (
            "a short window of 2 of 4 micro-steps weighs 0.500 of an update: "
            "its tokens count 0.500 of what they should"
        )
        assert row.observed == pytest.approx(0.5)
        assert row.expected == pytest.approx(1.0)

    def test_the_first_window_of_a_launch_is_compared_with_1(self, tmp_path: Path) -> None:
        assert faults("ACC101", write_run(tmp_path / "run", [SHORT])) == [True]

    @pytest.mark.parametrize("total", [1.0, 1.0015, 2.0, 4.0])
    def test_a_right_tail_and_an_undivided_one_are_not(self, tmp_path: Path, total: float) -> None:
        """2 is m and 4 is m*W: nothing was divided, which is another fault."""
        run = write_run(tmp_path / "run", [{}, {"microbatches": 2, "total_weight": total}])
        assert faults("ACC101", run) == [False]

    @pytest.mark.parametrize(("tail", "fault"), [(0.15, True), (0.3, False)])
    def test_a_coefficient_of_all_windows_is_no_cause(self, tmp_path: Path, tail: float, fault: bool) -> None:
        updates = [{"total_weight": 0.3}, {"microbatches": 2, "total_weight": tail}]
        (row,) = judge("ACC101", write_run(tmp_path / "run", updates))
        assert row.fault is fault
        assert row.expected == pytest.approx(0.3)
        assert "weighs 0.150 where the last full one weighs 0.300" in row.message or not fault

    @pytest.mark.parametrize(
        ("total", "dtype", "fault"),
        [(1.0, "float32", False), (127 / 128, "float32", True), (127 / 128, "bfloat16", False)],
    )
    def test_a_tail_of_127_of_128(self, tmp_path: Path, total: float, dtype: str, fault: bool) -> None:
        run = write_run(
            tmp_path / "run",
            [{}, {"microbatches": 127, "total_weight": total, "weight_dtype": dtype}],
            ranks=1,
            accumulation_steps=128,
        )
        assert faults("ACC101", run) == [fault]

    def test_totals_that_move_anyway_make_no_tail(self, tmp_path: Path) -> None:
        """Gradients clipped by hand: the short windows are right, and clipped like the others."""
        totals = [(4, 0.9), (4, 0.7), (2, 0.3), (4, 0.8), (2, 0.4), (4, 0.6), (2, 0.45)]
        updates = [{"microbatches": m, "total_weight": total} for m, total in totals]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert faults("ACC101", run) == [False, False, False]
        assert {row.severity for row in judge("ACC104", run)} == {"note"}

    def test_a_tail_is_found_where_the_full_windows_move(self, tmp_path: Path) -> None:
        totals = [(4, 0.9), (2, 0.45), (4, 0.7), (2, 0.35)]
        updates = [{"microbatches": m, "total_weight": total} for m, total in totals]
        assert faults("ACC101", write_run(tmp_path / "run", updates, ranks=1)) == [True, True]

    def test_an_inferred_count_is_said_to_be(self, tmp_path: Path) -> None:
        updates = [{"microbatches": 4}] * 10 + [SHORT]
        row = the_fault("ACC101", write_run(tmp_path / "run", updates, accumulation_steps=None))
        assert "2 of 4 micro-steps (inferred) weighs 0.500" in row.message

    def test_a_count_that_changes_makes_no_short_window(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{}, {"accumulation_steps": 2}, {"accumulation_steps": 2}]
        run = write_run(tmp_path / "run", updates)
        assert judge("ACC101", run) == []
        (verdict,) = check_paths([run], select=["ACC101"]).runs[0].verdicts
        assert (verdict.status, verdict.reason) == ("not_checked", "no window was short")

    def test_a_closure_is_judged(self, tmp_path: Path) -> None:
        """Some trainers run every last micro-step inside the step's closure."""
        run = write_run(tmp_path / "run", [{}, SHORT | {"events": "ZFB(FB)O"}])
        assert faults("ACC101", run) == [True]

    def test_a_skipped_attempt_is_out_of_scope(self, tmp_path: Path) -> None:
        assert faults("ACC101", write_run(tmp_path / "run", [{}, SHORT | {"skipped": True}])) == []

    @pytest.mark.parametrize(
        "unknown",
        [
            {"loss_weight": None},
            {"grad_rescale": None},
            {"on": {1: None}},
            {"weight_uniform": [None, None]},
        ],
    )
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        assert faults("ACC101", write_run(tmp_path / "run", [{}, SHORT | unknown])) == [None]

    def test_an_unknown_count_or_divisor_is_unknown(self, tmp_path: Path) -> None:
        """A right window is no faulty tail, whatever the count is."""
        middle = {"microbatches": 4, "total_weight": 0.7}
        updates: list[dict[str, Any]] = [{"microbatches": 3}, middle, {"microbatches": 5}]
        run = write_run(tmp_path / "a", updates, accumulation_steps=None)
        assert faults("ACC101", run) == [False, False, False]
        assert faults("ACC104", run) == [False, True, False]
        assert faults("ACC101", write_run(tmp_path / "b", [SHORT], gradient_divisor=None)) == [None]


class TestMeanOfMeans:
    def test_equal_weights_of_unequal_micro_steps_are_found(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [window([1.0, 9.0], [0.5, 0.5])], ranks=1, accumulation_steps=2)
        row = the_fault("ACC102", run)
        assert (row.rank, row.severity) == (0, "error")
        assert row.observed == pytest.approx(9.0)
        assert row.message == (
            "micro-steps of 1 to 9 valid tokens weigh 0.500 each: "
            "a token of the shortest counts 9.00 times one of the longest"
        )

    def test_each_rank_is_judged_by_itself(self, tmp_path: Path) -> None:
        updates = [{"on": {0: window([1.0, 9.0], [0.5, 0.5]), 1: window([5.0, 5.0], [0.5, 0.5])}}]
        run = write_run(tmp_path / "run", updates, accumulation_steps=2)
        assert [(row.rank, row.fault) for row in judge("ACC102", run)] == [(0, True), (1, False)]

    def test_the_declared_unit_and_a_wrong_total_are_told(self, tmp_path: Path) -> None:
        run = write_run(
            tmp_path / "run",
            [window([1.0, 9.0], [1.0, 1.0], samples=[1, 9])],
            ranks=1,
            accumulation_steps=2,
            loss_unit="sample",
        )
        message = the_fault("ACC102", run).message
        assert "1 to 9 valid samples" in message
        assert message.endswith("; the total weight is 2.000 besides")

    @pytest.mark.parametrize(
        "honest",
        [
            window([1.0, 9.0], [0.1, 0.9]),
            window([1000.0, 1009.0], [0.5, 0.5]),
            window([5.0, 5.0], [0.5, 0.5]),
            window([0.0, 5.0, 5.0], [0.0, 0.5, 0.5]),
            window([10.0, 90.0, 5.0], [0.1, 0.9, 0.0]),  # a loss multiplied by zero
            window([1000.0, 1020.0], [0.5, 0.5], weight_dtype="bfloat16"),
        ],
        ids=["global", "nearly-equal", "equal", "empty-micro-step", "silenced", "rounding"],
    )
    def test_honest_weights_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC102", write_run(tmp_path / "run", [honest], ranks=1)) == [False]

    def test_positions_say_nothing_where_samples_were_meant(self, tmp_path: Path) -> None:
        """One sequence a micro-step, each counting once whatever its length."""
        sequences = window([30.0, 90.0], [0.5, 0.5], samples=[1, 1])
        run = write_run(tmp_path / "one", [sequences], ranks=1, accumulation_steps=2, loss_unit="sample")
        assert faults("ACC102", run) == [None]
        uneven = {"on": {0: window([30.0], [1.0], samples=[1]), 1: window([90.0], [1.0], samples=[1])}}
        run = write_run(tmp_path / "two", [uneven], accumulation_steps=1, loss_unit="sample")
        assert faults("ACC103", run) == [None]
        run = write_run(tmp_path / "tokens", [uneven], accumulation_steps=1)
        assert faults("ACC103", run) == [True]

    def test_a_micro_step_alone_is_out_of_scope(self, tmp_path: Path) -> None:
        updates = [window([5.0], [1.0]), window([0.0, 5.0], [0.0, 1.0])]
        assert judge("ACC102", write_run(tmp_path / "run", updates, ranks=1)) == []

    @pytest.mark.parametrize(
        "unknown",
        [{"weight_uniform": [True, False]}, {"weight_uniform": [None, True]}, {"loss_weight": [None, 0.5]}],
    )
    def test_weights_that_differ_or_are_missing_are_unknown(
        self, tmp_path: Path, unknown: dict[str, Any]
    ) -> None:
        """Class weights, a mask of weights, a policy gradient."""
        updates = [window([1.0, 9.0], [0.5, 0.5], microbatches=2) | unknown]
        assert faults("ACC102", write_run(tmp_path / "run", updates, ranks=1)) == [None]

    def test_sums_tell_it_too(self, tmp_path: Path) -> None:
        updates = [
            window([1.0, 9.0], [0.5, 0.5]),
            window([1.0, 9.0], [0.1, 0.9]),
            window([0.0, 1.0, 9.0], [0.0, 0.5, 0.5]),
            window([5.0, 5.0], [0.5, 0.5]),
        ]
        run = write_run(tmp_path / "run", updates, 1, accumulation_steps=2, microbatch_detail="sums")
        assert faults("ACC102", run) == [True, False, None, False]
        assert "micro-steps of 1 to 9 valid tokens weigh 0.500 each" in the_fault("ACC102", run).message

    def test_it_explains_the_total(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [window([1.0, 9.0], [1.0, 1.0])], ranks=1, accumulation_steps=2)
        verdicts = {v.code: v for v in check_paths([run], select=["ACC102", "ACC104"]).runs[0].verdicts}
        assert verdicts["ACC102"].status == "failed"
        assert verdicts["ACC104"].reason == "a cause was found by ACC102"


class TestWrongTotalWeight:
    @pytest.mark.parametrize(
        ("total", "factors"),
        [
            (4.0, "G"),
            (8.0, "G*W"),
            (0.25, "1/G"),
            (0.5, "1/W"),
            (2.0, "W"),
            (0.125, "1/(G*W)"),
        ],
    )
    def test_a_structural_factor_is_an_error(self, tmp_path: Path, total: float, factors: str) -> None:
        row = the_fault("ACC104", write_run(tmp_path / "run", [{"total_weight": total}]))
        assert row.severity == "error"
        assert row.message == (
            f"the weights of the window add up to {total:g}, not 1: "
            f"this fits {factors} (4 micro-steps of 4, 2 ranks)"
        )
        assert row.observed == pytest.approx(total)
        assert row.expected == 1.0

    def test_every_factor_that_fits_is_listed(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"total_weight": 0.5}], accumulation_steps=2)
        assert "this fits 1/G and 1/W (2 micro-steps of 2" in the_fault("ACC104", run).message

    def test_a_short_window_is_measured_by_its_own_count(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"microbatches": 3, "total_weight": 3.0}], ranks=1)
        row = the_fault("ACC104", run)
        assert row.severity == "error"
        assert "add up to 3, not 1: this fits m (3 micro-steps of 4, 1 rank)" in row.message

    def test_a_tail_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, SHORT])
        row = the_fault("ACC104", run)
        assert row.severity == "error"
        assert row.message == (
            "the weights of the window add up to 0.5, not 1: 0.5 of a full window, with 2 of 4 micro-steps"
        )
        verdicts = {v.code: v for v in check_paths([run], select=["ACC101", "ACC104"]).runs[0].verdicts}
        assert verdicts["ACC104"].reason == "a cause was found by ACC101; 1 other rows are clean"

    @pytest.mark.parametrize("total", [1.0, 1.0019, 0.9981])
    def test_a_right_total_passes(self, tmp_path: Path, total: float) -> None:
        assert faults("ACC104", write_run(tmp_path / "run", [{"total_weight": total}])) == [False]

    def test_16_bit_is_judged_less_strictly(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]] = [{"weight_dtype": "bfloat16"}, {}]
        updates = [update | {"total_weight": 1.009} for update in updates]
        assert faults("ACC104", write_run(tmp_path / "run", updates)) == [False, True]

    def test_gradients_rescaled_before_the_step_pass(self, tmp_path: Path) -> None:
        updates = [{"total_weight": 970.0, "grad_rescale": 1 / 970}]
        assert faults("ACC104", write_run(tmp_path / "run", updates)) == [False]

    def test_a_micro_step_and_a_rank_without_tokens_pass(self, tmp_path: Path) -> None:
        updates = [{"on": {0: {"valid_tokens": [0.0, 7.0]}, 1: {"valid_tokens": [0.0, 0.0]}}}]
        assert faults("ACC104", write_run(tmp_path / "run", updates)) == [False]

    def test_a_coefficient_is_a_note(self, tmp_path: Path) -> None:
        row = judge("ACC104", write_run(tmp_path / "run", [{"total_weight": 0.3}] * 3))[0]
        assert (row.fault, row.severity) == (True, "note")
        assert row.message == (
            "the weights of the window add up to 0.3, not 1, in every full window of the launch; "
            "a deliberate coefficient looks the same"
        )

    def test_a_total_that_meets_a_factor_by_chance_is_a_note(self, tmp_path: Path) -> None:
        """A constant divisor: the total moves with the tokens, and passes 1/G on its way."""
        updates = [{"total_weight": total} for total in (0.31, 0.25, 0.42)]
        rows = judge("ACC104", write_run(tmp_path / "run", updates, ranks=1))
        assert [(row.fault, row.severity) for row in rows] == [(True, "note")] * 3
        assert rows[1].message == (
            "the weights of the window add up to 0.25, not 1 (0.25 to 0.42 over the launch), "
            "and fits no known factor"
        )

    def test_nothing_is_said_of_windows_whose_total_is_unknown(self, tmp_path: Path) -> None:
        signed: dict[str, Any] = {"weight_uniform": [None] * 4}
        run = write_run(tmp_path / "one", [signed, {"total_weight": 0.3}, signed], ranks=1)
        assert the_fault("ACC104", run).message == (
            "the weights of the window add up to 0.3, not 1, and fits no known factor"
        )
        run = write_run(tmp_path / "two", [signed, {"total_weight": 0.3}, {"total_weight": 0.3}], ranks=1)
        assert ", in every weighed window of the launch; " in judge("ACC104", run)[1].message

    def test_a_total_that_varies_is_a_note_with_its_span(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"total_weight": 0.3}, {"total_weight": 0.7}])
        row = judge("ACC104", run)[0]
        assert row.severity == "note"
        assert row.message.endswith(
            "add up to 0.3, not 1 (0.3 to 0.7 over the launch), and fits no known factor"
        )

    @pytest.mark.parametrize(
        ("evidence", "words"),
        [
            ({"loss_unobserved": 0.25}, "; 0.25 of the loss was not observed"),
            ({"loss_unobserved": None}, "; how much of the loss was observed is unknown"),
            (
                {"loss_terms": [{"micro_step": 1, "term": "aux", "loss_weight": 0.1, "valid_tokens": 3.0}]},
                "; further loss terms are not declared",
            ),
            (
                {"weight_uniform": [True, False, True, True]},
                "; the positions of a loss call weigh differently",
            ),
        ],
        ids=["unobserved", "unknown", "terms", "class-weights"],
    )
    def test_weak_evidence_lowers_a_factor_to_a_note(
        self, tmp_path: Path, evidence: dict[str, Any], words: str
    ) -> None:
        row = the_fault("ACC104", write_run(tmp_path / "run", [{"total_weight": 0.25} | evidence]))
        assert row.severity == "note"
        assert row.message.endswith(f"this fits 1/G (4 micro-steps of 4, 2 ranks){words}")

    def test_masked_samples_in_the_denominator_are_a_note(self, tmp_path: Path) -> None:
        updates = [{"total_weight": 932 / 1132, "masked_positions": [25] * 4}]
        row = the_fault("ACC104", write_run(tmp_path / "run", updates))
        assert row.severity == "note"
        assert "this fits N/(N+x)" in row.message

    @pytest.mark.parametrize(
        "unknown",
        [{"loss_weight": None}, {"grad_rescale": None}, {"weight_uniform": [None] * 4}, {"on": {1: None}}],
    )
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        assert faults("ACC104", write_run(tmp_path / "run", [unknown])) == [None]

    def test_skipped_attempts_are_out_of_scope(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"skipped": True, "total_weight": 4.0}])
        assert judge("ACC104", run) == []


class TestEmptyWindowApplied:
    def test_an_update_without_a_token_is_found(self, tmp_path: Path) -> None:
        row = the_fault("ACC105", write_run(tmp_path / "run", [{}, EMPTY, {}]))
        assert (row.attempt, row.severity, row.observed) == (2, "warning", 0.0)
        assert row.message == (
            "no token of 4 micro-steps on 2 ranks had a loss, yet the update was applied "
            "with a gradient norm of 0.5 and the schedule moved on"
        )

    def test_a_moving_schedule_is_enough(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [EMPTY | {"grad_norm_after_clip": 0.0}])
        assert the_fault("ACC105", run).message.endswith("the update was applied and the schedule moved on")

    @pytest.mark.parametrize(
        "honest",
        [
            {"on": {0: {"valid_tokens": [0.0, 0.0]}, 1: {"valid_tokens": [0.0, 3.0]}}},
            EMPTY | {"grad_norm_after_clip": 0.0, "events": "ZfbfbfbFBO"},
            EMPTY | {"loss_unobserved": 1.0},
            EMPTY
            | {"loss_terms": [{"micro_step": 1, "term": "aux", "loss_weight": 1.0, "valid_tokens": 3.0}]},
        ],
        ids=["one-token-somewhere", "nothing-moved", "unseen-loss", "another-term"],
    )
    def test_honest_windows_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC105", write_run(tmp_path / "run", [{}, honest])) == [False, False]

    def test_a_skipped_attempt_is_out_of_scope(self, tmp_path: Path) -> None:
        assert faults("ACC105", write_run(tmp_path / "run", [EMPTY | {"skipped": True}])) == []

    @pytest.mark.parametrize(
        "unknown",
        [
            {"valid_tokens": None, "loss_weight": None, "microbatches": 4},
            EMPTY | {"on": {1: None}},
            EMPTY | {"grad_norm_after_clip": None, "events": "ZfbfbfbFBO"},
        ],
        ids=["tokens", "rank", "norm"],
    )
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        assert faults("ACC105", write_run(tmp_path / "run", [unknown])) == [None]


class TestUnscoredTokensInDenominator:
    """The default window has 932 valid tokens, 2,048 positions, 1,600 attended ones and 32 samples."""

    @pytest.mark.parametrize(
        ("total", "words"),
        [
            (932 / 2048, "counts 1116 positions without loss besides 932 valid tokens"),
            (
                932 / 2048,
                "which weigh 0.455 of an update; 1116 is all other positions of the input, padding included",
            ),
            (932 / 1600, "668 is all other positions under the attention mask"),
            (932 / 964, "32 is the number of samples: one position a row"),
        ],
    )
    def test_the_positions_are_named(self, tmp_path: Path, total: float, words: str) -> None:
        row = the_fault("ACC110", write_run(tmp_path / "run", [{"total_weight": total}]))
        assert row.severity == "error"
        assert words in row.message

    def test_masked_samples_are_a_note(self, tmp_path: Path) -> None:
        updates = [{"total_weight": 932 / 1132, "masked_positions": [25] * 4}]
        row = the_fault("ACC110", write_run(tmp_path / "run", updates))
        assert row.severity == "note"
        assert row.message.endswith("200 is the positions of samples that are masked as a whole")

    def test_a_token_for_each_masked_sample_is_an_error(self, tmp_path: Path) -> None:
        """Rows have 64 positions: one in every micro-step of either rank is masked as a whole."""
        updates = [{"total_weight": 932 / 940, "masked_positions": [64] * 4}]
        row = the_fault("ACC110", write_run(tmp_path / "run", updates))
        assert row.severity == "error"
        assert row.message.endswith(
            "8 is the number of samples that are masked as a whole: one position each"
        )

    def test_masked_samples_may_be_all_that_is_not_scored(self, tmp_path: Path) -> None:
        updates = [
            {"total_weight": 932 / 1600, "masked_positions": [83, 84] * 2, "input_positions": [200] * 4}
        ]
        assert the_fault("ACC110", write_run(tmp_path / "run", updates)).severity == "note"

    def test_undeclared_terms_make_it_a_note(self, tmp_path: Path) -> None:
        terms = [{"micro_step": 1, "term": "aux", "loss_weight": 0.1, "valid_tokens": 3.0}]
        run = write_run(tmp_path / "run", [{"total_weight": 932 / 2048, "loss_terms": terms}])
        assert the_fault("ACC110", run).severity == "note"

    def test_it_explains_the_total(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"total_weight": 932 / 2048}])
        verdicts = {v.code: v for v in check_paths([run], select=["ACC104", "ACC110"]).runs[0].verdicts}
        assert verdicts["ACC104"].reason == "a cause was found by ACC110"

    @pytest.mark.parametrize(
        "honest",
        [{}, {"total_weight": 0.3}, {"total_weight": 4.0}, {"microbatches": 2, "total_weight": 0.5}],
        ids=["right", "coefficient", "undivided", "tail"],
    )
    def test_other_totals_pass(self, tmp_path: Path, honest: dict[str, Any]) -> None:
        assert faults("ACC110", write_run(tmp_path / "run", [honest])) == [False]

    def test_a_coefficient_that_meets_the_count_once_is_none(self, tmp_path: Path) -> None:
        """T is 932/2048 throughout, while the positions change with the window."""
        updates = [{"total_weight": 932 / 2048, "input_positions": [256 + 40 * k] * 4} for k in range(5)]
        assert faults("ACC110", write_run(tmp_path / "run", updates)) == [False] * 5

    def test_a_second_factor_leaves_it_open(self, tmp_path: Path) -> None:
        """Half of all positions are scored and G is 2: the record does not tell which it is."""
        updates = [window([50.0, 50.0], [0.25, 0.25], input_positions=[100, 100])]
        run = write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2)
        assert faults("ACC110", run) == [None]
        row = the_fault("ACC104", run)
        assert row.severity == "error"
        assert "this fits 1/G and N/(N+x)" in row.message

    @pytest.mark.parametrize(
        "unknown",
        [
            {"weight_uniform": [True, False, True, True]},
            {"loss_weight": None},
            dict.fromkeys(["samples", "input_positions", "attended_positions", "masked_positions"]),
        ],
        ids=["class-weights", "weights", "positions"],
    )
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        run = write_run(tmp_path / "run", [{"total_weight": 932 / 2048} | unknown])
        assert faults("ACC110", run) == [None]


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    right_tail = {"microbatches": 2}
    run = write_run(tmp_path / "run", [{}, {}, right_tail, {"skipped": True}, {}])
    codes = ["ACC101", "ACC102", "ACC103", "ACC104", "ACC105", "ACC110"]
    (report,) = check_paths([run], select=codes).runs
    assert {verdict.code: verdict.status for verdict in report.verdicts} == dict.fromkeys(codes, "passed")


def test_backwards_without_forwards_may_be_terms_of_one_micro_step(tmp_path: Path) -> None:
    """Two tasks with a backward each: their token counts are none of two micro-steps."""
    two_tasks = {"valid_tokens": [12, 2, 12, 2], "loss_weight": [0.5] * 4, "accumulation_steps": 2}
    unseen = write_run(tmp_path / "unseen", [{**two_tasks, "events": "ZBBBBOS"}], 1)
    seen = write_run(tmp_path / "seen", [{**two_tasks, "accumulation_steps": 4}], 1)
    assert faults("ACC102", unseen) == [None]
    assert faults("ACC102", seen) == [True]
