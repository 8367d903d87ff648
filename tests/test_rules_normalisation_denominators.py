"""Rules ACC106, 107 and 109: several denominators in one window, and micro-steps that are not finite."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, rows_by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def window(n: list[float], weights: list[float], **more: Any) -> dict[str, Any]:
    """A window of micro-steps with these valid tokens and A1."""
    squares = [a * a / tokens if tokens else 0.0 for tokens, a in zip(n, weights, strict=True)]
    return {"valid_tokens": n, "loss_weight": weights, "loss_weight_sq": squares, **more}


ROWS = window([100.0, 60.0], [0.25, 0.75], samples=[2, 6])
"""A mean over each micro-step's tokens, weighted by its share of the rows."""


class TestSums:
    def test_sums_that_nothing_divides_are_a_warning(self, tmp_path: Path) -> None:
        """Every token weighs 1, so an update weighs as much as it has tokens; that may be meant."""
        updates = [window([n, n], [n, n]) for n in (10.0, 16.0, 7.0)]
        rows = judge("ACC104", write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2))
        assert [(row.severity, row.observed) for row in rows] == [("warning", n) for n in (20.0, 32.0, 14.0)]
        assert "add up to 20, not 1: this fits N (2 micro-steps of 2" in rows[0].message
        two = judge("ACC104", write_run(tmp_path / "two", updates, accumulation_steps=2))
        assert "add up to 20, not 1: this fits N/W (2 micro-steps of 2, 2 ranks)" in two[0].message

    def test_sums_over_equally_many_tokens_have_a_coefficient(self, tmp_path: Path) -> None:
        updates = [window([10.0, 10.0], [10.0, 10.0])] * 3
        rows = judge("ACC104", write_run(tmp_path / "run", updates, accumulation_steps=2))
        assert [row.severity for row in rows] == ["note"] * 3


class TestMixedDenominators:
    CODE = "ACC106"

    def test_micro_steps_that_weigh_by_their_rows_are_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [ROWS], ranks=1, accumulation_steps=2))
        assert (row.attempt, row.rank, row.severity) == (1, 0, "warning")
        assert row.observed == pytest.approx(5.0)
        assert row.message == (
            "a token of micro-step 2 (60 tokens) counts 5.00 times one of micro-step 1 (100 tokens): "
            "the micro-steps weigh like their rows"
        )

    def test_each_rank_is_judged_by_itself(self, tmp_path: Path) -> None:
        updates = [{"on": {0: window([5.0, 5.0], [0.2, 0.8]), 1: window([5.0, 5.0], [0.5, 0.5])}}]
        run = write_run(tmp_path / "run", updates, accumulation_steps=2)
        assert [(row.rank, row.fault) for row in judge(self.CODE, run)] == [(0, True), (1, False)]

    def test_the_quantity_that_the_weights_follow_is_named(self, tmp_path: Path) -> None:
        padded = {"input_positions": [100, 300], "attended_positions": [60, 90], "samples": [2, 2]}
        cases = {
            "their positions, padding included": [window([50.0, 90.0], [0.25, 0.75], **padded)],
            "their positions under the attention mask": [window([50.0, 90.0], [0.4, 0.6], **padded)],
            "their tokens over all tokens so far": [
                window([20.0, 30.0, 50.0], [20 / 20 / 3, 30 / 50 / 3, 50 / 100 / 3])
            ],
            "their tokens over their place in the window": [
                window([5.0, 7.0, 9.0], [5 / 21, 3.5 / 21, 3 / 21])
            ],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        for name, (row,) in rows_by_case(self.CODE, run, cases).items():
            assert row.fault
            assert row.severity == "warning"
            assert f": the micro-steps weigh like {name}" in row.message

    def test_a_wrong_total_is_told_and_explained(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [window([5.0, 5.0], [0.2, 3.8])], ranks=1, accumulation_steps=2)
        row = the_fault(self.CODE, run)
        assert row.message == (
            "a token of micro-step 2 (5 tokens) counts 19.00 times one of micro-step 1 (5 tokens); "
            "the total weight is 4.000 besides"
        )
        verdicts = {v.code: v for v in check_paths([run], select=["ACC104", "ACC106"]).runs[0].verdicts}
        assert verdicts["ACC104"].reason == "a cause was found by ACC106"

    def test_honest_windows_pass(self, tmp_path: Path) -> None:
        cases = {
            "one denominator": [window([1.0, 9.0], [0.1, 0.9])],
            "means of means are ACC102": [window([1.0, 9.0], [0.5, 0.5])],
            "an empty micro-step": [window([0.0, 5.0, 5.0], [0.0, 0.5, 0.5])],
            "a loss multiplied by zero": [window([10.0, 90.0, 5.0], [0.1, 0.9, 0.0])],
            "no token at all": [window([0.0, 0.0], [0.0, 0.0])],
            "half a percent": [window([10.0, 10.0], [0.5, 0.5025])],
            "rounding in 16 bit": [window([10.0, 10.0], [0.5, 0.5125], weight_dtype="bfloat16")],
            "the loss scale of one micro-step": [window([5.0, 5.0], [0.5, 512.0], loss_scale=[1024.0, 1.0])],
            "one loss climbed, the other descended": [window([5.0, 9.0], [-5 / 14, 9 / 14])],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        assert by_case(self.CODE, run, cases) == {case: [False] for case in cases}

    def test_the_weights_are_still_compared_where_the_scale_changes(self, tmp_path: Path) -> None:
        updates = [ROWS | {"loss_scale": [1024.0, 512.0]}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, ranks=1)) == [True]

    @pytest.mark.parametrize(("windows", "severity"), [(2, "warning"), (9, "note")])
    def test_a_coefficient_for_each_task_becomes_a_note(
        self, tmp_path: Path, windows: int, severity: str
    ) -> None:
        """Two data sets in turns, the second at a third of its weight, over the window's tokens."""
        updates = []
        for number in range(windows):
            first, second = 80.0 + 11 * number, 90.0 + 7 * number
            total = first + second
            updates.append(window([first, second], [first / total, second / total / 3]))
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2))
        assert [(row.fault, row.severity) for row in rows] == [(True, severity)] * windows
        assert ("a coefficient for each kind of micro-step looks the same" in rows[0].message) == (
            windows > 2
        )

    def test_denominators_that_follow_the_data_stay_a_warning(self, tmp_path: Path) -> None:
        """The first micro-step is divided by its own tokens, the second by those of the window."""
        updates = []
        for number in range(9):
            first, second = 20.0 + 13 * number, 190.0 - 9 * number
            updates.append(window([first, second], [0.5, second / (first + second)]))
        rows = judge(self.CODE, write_run(tmp_path / "run", updates, ranks=1, accumulation_steps=2))
        assert [(row.fault, row.severity) for row in rows] == [(True, "warning")] * 9

    def test_what_was_not_recorded_or_meant_is_unknown(self, tmp_path: Path) -> None:
        cases = {
            "class weights": [ROWS | {"weight_uniform": [True, False]}],
            "weights that change sign": [ROWS | {"weight_uniform": [None, True]}],
            "an unseen micro-step": [ROWS | {"loss_weight": [None, 0.75]}],
            "no weights": [ROWS | {"loss_weight": None, "microbatches": 2}],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        assert by_case(self.CODE, run, cases) == {case: [None] for case in cases}
        rows = write_run(tmp_path / "rows", [ROWS], ranks=1, accumulation_steps=2, loss_unit="sample")
        assert faults(self.CODE, rows) == [None]

    def test_single_micro_steps_and_skips_are_out_of_scope(self, tmp_path: Path) -> None:
        updates = [window([5.0], [1.0]), ROWS | {"skipped": True}]
        assert judge(self.CODE, write_run(tmp_path / "run", updates, ranks=1)) == []

    def test_sums_tell_the_ratio(self, tmp_path: Path) -> None:
        updates = [
            ROWS,
            window([1.0, 9.0], [0.5, 0.5]),
            window([1.0, 9.0], [0.1, 0.9]),
            window([0.0, 4.0, 4.0], [0.0, 0.2, 0.8]),
            ROWS | {"loss_scale": [1.0, 2.0]},
        ]
        run = write_run(tmp_path / "run", updates, 1, accumulation_steps=2, microbatch_detail="sums")
        assert faults(self.CODE, run) == [True, False, False, None, None]
        assert the_fault(self.CODE, run).message == (
            "a token of one micro-step counts 5.00 times one of another"
        )


Terms = list[tuple[float, float]]


def with_term(
    n: list[float], weights: list[float], term: Terms, *, name: str = "train.py:40", **more: Any
) -> dict[str, Any]:
    """A window with a further term, of these valid tokens and A1 in each micro-step."""
    terms = [
        {"micro_step": place, "term": name, "declared": True, "valid_tokens": tokens, "loss_weight": weight}
        for place, (tokens, weight) in enumerate(term, 1)
    ]
    return window(n, weights, loss_terms=terms, **more)


MIXED = with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.05), (80.0, 0.05)])
"""The main term over the window, the other one a mean over each micro-step."""


class TestLossTermDenominators:
    CODE = "ACC107"

    def test_a_term_with_a_denominator_of_its_own_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [MIXED], ranks=1, accumulation_steps=2))
        assert (row.attempt, row.rank, row.severity) == (1, 0, "warning")
        assert row.observed == pytest.approx(4.0)
        assert row.message == (
            "a token of the term train.py:40 counts 0.0625 to 0.25 of a token of the main term, by the "
            "micro-step: this term is divided by its own tokens of each micro-step, the main one is not"
        )

    def test_the_denominator_is_named(self, tmp_path: Path) -> None:
        cases = {
            "the main term is divided by its tokens of each micro-step, this one is not": [
                with_term([20.0, 80.0], [0.5, 0.5], [(30.0, 0.03), (70.0, 0.07)])
            ],
            "this term is divided by the main one's tokens of each micro-step, the main one is not": [
                with_term([20.0, 80.0], [0.2, 0.8], [(30.0, 0.15), (70.0, 0.0875)])
            ],
            "this term is divided by the rows of each micro-step, the main one is not": [
                with_term([20.0, 80.0], [0.2, 0.8], [(30.0, 0.15), (70.0, 0.07)], samples=[2, 10])
            ],
            "the main term is divided by the positions of each micro-step, this one is not": [
                with_term([20.0, 80.0], [0.4, 0.8], [(30.0, 0.03), (70.0, 0.07)], input_positions=[50, 100])
            ],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        for name, (row,) in rows_by_case(self.CODE, run, cases).items():
            assert (row.fault, row.severity) == (True, "warning")
            assert row.message.endswith(name)

    def test_of_several_terms_the_worst_is_told(self, tmp_path: Path) -> None:
        calm = with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.02), (80.0, 0.08)], name="train.py:50")
        both = MIXED | {"loss_terms": calm["loss_terms"] + MIXED["loss_terms"]}
        row = the_fault(self.CODE, write_run(tmp_path / "run", [both], ranks=1, accumulation_steps=2))
        assert "the term train.py:40" in row.message

    def test_a_coefficient_that_is_annealed_inside_the_window_is_a_note(self, tmp_path: Path) -> None:
        """0.1, then 0.2: it has nothing to do with the numbers of tokens."""
        annealed = with_term([90.0, 80.0], [90 / 170, 80 / 170], [(90.0, 9 / 170), (80.0, 16 / 170)])
        row = the_fault(self.CODE, write_run(tmp_path / "run", [annealed], ranks=1, accumulation_steps=2))
        assert row.severity == "note"
        assert row.message.endswith("a coefficient that changes inside the window looks the same")

    def test_honest_terms_pass(self, tmp_path: Path) -> None:
        cases = {
            "a coefficient over the same tokens": [
                with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.02), (80.0, 0.08)])
            ],
            "each term over its own tokens of the window": [
                with_term([20.0, 80.0], [0.2, 0.8], [(5.0, 0.25), (15.0, 0.75)])
            ],
            "another coefficient in each update": [
                with_term([20.0, 80.0], [0.2, 0.8], [(20.0, c * 0.2), (80.0, c * 0.8)]) for c in (0.1, 0.5)
            ],
            "each term a mean over its own tokens": [
                with_term([20.0, 80.0], [0.5, 0.5], [(19.0, 0.05), (60.0, 0.05)])
            ],
            "a coefficient that moves, all counts equal": [
                with_term([50.0, 50.0], [0.5, 0.5], [(50.0, 0.05), (50.0, 0.1)])
            ],
            "a term that is absent from one micro-step": [
                with_term([20.0, 80.0, 50.0], [0.2, 0.8, 0.5], [(20.0, 0.02), (80.0, 0.08)])
            ],
            "a term multiplied by zero in one": [
                with_term([20.0, 80.0, 50.0], [0.2, 0.8, 0.5], [(20.0, 0.02), (80.0, 0.0), (50.0, 0.05)])
            ],
            "rounding in 16 bit": [
                with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.0204), (80.0, 0.08)], weight_dtype="bfloat16")
            ],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        found = by_case(self.CODE, run, cases)
        assert {fault for rows in found.values() for fault in rows} == {False}
        assert all(found.values())

    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path) -> None:
        cases = {
            "class weights": [MIXED | {"weight_uniform": [True, False]}],
            "the main term": [MIXED | {"loss_weight": None, "loss_weight_sq": None, "microbatches": 2}],
            "the other term": [with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.05), (80.0, math.nan)])],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        assert by_case(self.CODE, run, cases) == {case: [None] for case in cases}

    def test_one_term_one_micro_step_and_skips_are_out_of_scope(self, tmp_path: Path) -> None:
        updates = [{}, with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.05)]), MIXED | {"skipped": True}]
        run = write_run(tmp_path / "run", updates, ranks=1)
        assert judge(self.CODE, run) == []
        (verdict,) = check_paths([run], select=[self.CODE]).runs[0].verdicts
        assert verdict.reason == "no window had a further loss term in two micro-steps"


NOT_FINITE: dict[str, Any] = {"grad_norm_after_clip": math.nan, "probe_nonfinite": True}


class TestNonFiniteMicroBatchApplied:
    CODE = "ACC109"

    def test_a_loss_that_is_not_finite_is_found_in_any_micro_step(self, tmp_path: Path) -> None:
        spoilt = {"on": {1: {"loss": [2.0, math.nan, 2.0, 2.0]}}, **NOT_FINITE}
        run = write_run(tmp_path / "run", [{}, spoilt])
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.rank, row.severity) == (2, 1, "error")
        assert row.message == (
            "the loss of micro-step 2 of 4 on rank 1 is not finite, and the update was applied "
            "with gradients that are not finite either"
        )
        assert len(faults(self.CODE, run)) == 4

    def test_it_explains_the_update(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"loss": [2.0, math.inf, 2.0, 2.0], **NOT_FINITE}], 1)
        verdicts = {v.code: v for v in check_paths([run], select=["ACC109", "ACC803"]).runs[0].verdicts}
        assert verdicts["ACC109"].status == "failed"
        assert verdicts["ACC803"].reason == "a cause was found by ACC109"

    def test_what_is_not_finite_is_named(self, tmp_path: Path) -> None:
        weights = [0.25, math.inf, 0.25, 0.25]
        unknown = {"grad_norm_after_clip": None, "probe_nonfinite": None}
        cases = {
            "the gradient at the loss of micro-step 2": [{"loss_weight": weights, **unknown}],
            "the loss and its gradient of micro-step 2": [
                {"loss_weight": weights, "loss": [2.0, math.inf, 2.0, 2.0], **unknown}
            ],
            "the loss of micro-step 4": [{"loss": [2.0, 2.0, 2.0, -math.inf], **unknown}],
        }
        run = run_of_cases(tmp_path, cases)
        for words, (row,) in rows_by_case(self.CODE, run, cases).items():
            assert (row.fault, row.severity) == (True, "error")
            assert row.message.startswith(words)
            assert row.message.endswith("with gradients of which nothing is known")

    def test_a_finite_gradient_makes_it_a_warning(self, tmp_path: Path) -> None:
        """A label whose logit is masked: the loss is infinite, its gradient is not."""
        run = write_run(tmp_path / "run", [{"loss": [2.0, math.inf, 2.0, 2.0]}], 1)
        row = the_fault(self.CODE, run)
        assert row.severity == "warning"
        assert row.message.endswith("applied with a finite gradient norm of 0.5")

    def test_honest_windows_pass(self, tmp_path: Path) -> None:
        cases: dict[str, list[dict[str, Any]]] = {
            "finite": [{}],
            "an empty micro-step has no loss": [{"valid_tokens": [0.0, 5.0], "loss": [None, 2.0]}],
            "or one that is NaN": [{"valid_tokens": [0.0, 5.0], "loss": [math.nan, 2.0], **NOT_FINITE}],
            "multiplied by zero": [window([5.0, 5.0], [0.0, 1.0], loss=[math.nan, 2.0])],
            "an empty window": [{"valid_tokens": [0.0, 0.0], "loss": [None, None]}],
            "gradients that are not finite for another reason": [NOT_FINITE],
        }
        run = run_of_cases(tmp_path, cases)
        assert by_case(self.CODE, run, cases) == {case: [False] for case in cases}

    def test_multiplied_by_zero_is_no_excuse_where_the_gradient_is_spoilt(self, tmp_path: Path) -> None:
        spoilt = window([5.0, 5.0], [0.0, 1.0], loss=[math.nan, 2.0], **NOT_FINITE)
        assert faults(self.CODE, write_run(tmp_path / "run", [spoilt], 1)) == [True]

    def test_skipped_and_empty_attempts_are_out_of_scope(self, tmp_path: Path) -> None:
        updates = [{"loss": [math.nan] * 4, "skipped": True}, {"microbatches": 0, "valid_tokens": []}]
        assert judge(self.CODE, write_run(tmp_path / "run", updates, 1)) == []

    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path) -> None:
        cases: dict[str, list[dict[str, Any]]] = {
            "losses": [{"loss": None}],
            "one loss": [{"loss": [2.0, None, 2.0, 2.0]}],
            "weights": [{"loss_weight": None}],
            "tokens of the losses": [
                {"loss": [2.0, math.nan, 2.0, 2.0], "valid_tokens": None, "microbatches": 4}
            ],
        }
        run = run_of_cases(tmp_path, cases)
        assert by_case(self.CODE, run, cases) == {case: [None] for case in cases}

    def test_whether_it_was_applied_may_be_unknown(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]]
        updates = [{"loss": [math.nan] * 4, "optimizer_step_skipped": None}, {"optimizer_step_skipped": None}]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, 1)) == [None, False]

    def test_sums_that_are_known_are_finite(self, tmp_path: Path) -> None:
        updates: list[dict[str, Any]]
        updates = [{}, {"loss": [None] * 4}, {"valid_tokens": [0.0, 0.0], "loss": [None, None]}]
        run = write_run(tmp_path / "run", updates, 1, microbatch_detail="sums")
        assert faults(self.CODE, run) == [False, None, False]


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    honest = with_term([20.0, 80.0], [0.2, 0.8], [(20.0, 0.02), (80.0, 0.08)])
    run = write_run(tmp_path / "run", [{}, honest, {"microbatches": 2}, {"skipped": True}], 1)
    codes = ["ACC106", "ACC107", "ACC109"]
    (report,) = check_paths([run], select=codes).runs
    assert {verdict.code: verdict.status for verdict in report.verdicts} == dict.fromkeys(codes, "passed")
