"""Rules ACC9xx on hand-made ledgers: what a run's updates say together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault


def window(n: list[float], weights: list[float], **more: Any) -> dict[str, Any]:
    """A window of micro-steps with these valid tokens and A1."""
    squares = [a * a / tokens if tokens else 0.0 for tokens, a in zip(n, weights, strict=True)]
    return {"valid_tokens": n, "loss_weight": weights, "loss_weight_sq": squares, **more}


UNEQUAL = window([1.0, 9.0], [0.5, 0.5])
"""Worth 3.6 tokens of 10."""

EQUAL = window([1.0, 9.0], [0.1, 0.9])


class TestEquivalentBatchShrunk:
    CODE = "ACC905"

    def test_the_share_is_told(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [EQUAL, UNEQUAL, UNEQUAL], ranks=1, accumulation_steps=2)
        row = the_fault(self.CODE, run)
        assert (row.attempt, row.rank, row.severity) == (None, None, "note")
        assert row.observed == pytest.approx((10 + 3.6 + 3.6) / 30)
        assert row.message == (
            "the tokens of an update are worth 0.57 of as many that weigh the same: 6 of 10 on average, "
            "over 3 updates; the least is 0.36, in update 2"
        )

    @pytest.mark.parametrize(("light", "fault"), [(0.5, False), (0.32, True)])
    def test_a_share_of_0_8_is_enough(self, tmp_path: Path, light: float, fault: bool) -> None:
        """Two equal halves, of which one weighs less: (1 + l)^2 / (2 (1 + l^2)), 0.9 and 0.79."""
        updates = [window([10.0, 10.0], [1.0, light])]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, ranks=1)) == [fault]

    def test_ranks_are_one_batch(self, tmp_path: Path) -> None:
        """Each rank divides by its own tokens: equal inside ranks, unequal between them."""
        updates = [{"on": {0: window([1.0], [1.0]), 1: window([9.0], [1.0])}}]
        row = the_fault(self.CODE, write_run(tmp_path / "run", updates, accumulation_steps=1))
        assert row.observed == pytest.approx(0.36)

    def test_honest_windows_pass(self, tmp_path: Path) -> None:
        cases = {
            "one denominator": [EQUAL],
            "an empty micro-step": [window([0.0, 9.0], [0.0, 1.0])],
            "a coefficient": [window([1.0, 9.0], [0.03, 0.27])],
            "an unequal window now and then": [EQUAL] * 9 + [UNEQUAL],
            "the unequal one was skipped": [EQUAL, UNEQUAL | {"skipped": True}],
            "some unknown": [EQUAL, EQUAL | {"weight_uniform": [True, False]}],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        assert by_case(self.CODE, run, cases) == {case: [False] for case in cases}

    def test_what_is_no_measure_is_unknown(self, tmp_path: Path) -> None:
        cases = {
            "class weights": [UNEQUAL | {"weight_uniform": [True, False]}],
            "a policy gradient": [UNEQUAL | {"weight_uniform": [None, True]}],
            "unseen weights": [UNEQUAL | {"loss_weight": None, "microbatches": 2}],
        }
        run = run_of_cases(tmp_path, cases, accumulation_steps=2)
        assert by_case(self.CODE, run, cases) == {case: [None] for case in cases}

    @pytest.mark.parametrize(("samples", "fault"), [([1, 1], None), ([1, 9], True)])
    def test_a_loss_of_samples_is_measured_in_samples(
        self, tmp_path: Path, samples: list[int], fault: bool | None
    ) -> None:
        updates = [UNEQUAL | {"samples": samples}]
        run = write_run(tmp_path / "run", updates, 1, accumulation_steps=2, loss_unit="sample")
        assert faults(self.CODE, run) == [fault]
        assert "the samples of an update" in judge(self.CODE, run)[0].message

    def test_empty_windows_are_out_of_scope(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [window([0.0, 0.0], [0.0, 0.0])], 1, accumulation_steps=2)
        assert judge(self.CODE, run) == []

    def test_it_is_told_beside_its_cause(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [UNEQUAL], ranks=1, accumulation_steps=2)
        (report,) = check_paths([run], select=["ACC102", self.CODE]).runs
        assert {verdict.code: verdict.severity for verdict in report.with_status("failed")} == {
            "ACC102": "error",
            self.CODE: "note",
        }
