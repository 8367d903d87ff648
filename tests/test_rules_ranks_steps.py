"""Rules ACC602, 607 and 609: skips, loss scales and step counts that differ between ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.cases import by_case, run_of_cases
from tests.records import write_run
from tests.tables import by_rank
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

UNWRAPPED: dict[str, Any] = {"wrapper": "none", "gradient_divisor": None}
REDUCED_BY_HAND = "ZFBFBFBFBAO"
MOVED: dict[str, Any] = {"probe_parameter_moved": True}


def stages(ranks: int) -> dict[int, dict[str, Any]]:
    """Each rank is a pipeline stage of its own."""
    alone = {"data_parallel_rank": 0, "data_parallel_size": 1}
    return {rank: {"pipeline_rank": rank, "pipeline_size": ranks, **alone} for rank in range(ranks)}


SKIPPED: dict[str, Any] = {"optimizer_step_skipped": True, "skip_evidence": "scaler"}
APPLIED: dict[str, Any] = {"optimizer_step_skipped": False}


class TestSkipDisagreement:
    CODE = "ACC602"

    def test_a_skip_on_one_rank_alone_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{}, by_rank(APPLIED, SKIPPED), {}]))
        assert (row.attempt, row.rank, row.severity) == (2, None, "error")
        assert (row.observed, row.expected) == (1, 0)
        assert row.message == (
            "rank 1 skipped this attempt (scaler), rank 0 applied it: from here on they are an update apart"
        )

    def test_many_ranks_are_counted(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [by_rank(APPLIED, *[SKIPPED] * 6)], 7))
        assert row.message.startswith(
            "ranks 1, 2, 3 and 3 more skipped this attempt (scaler), rank 0 applied"
        )

    def test_ranks_that_agree_pass(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{}, {"skipped": True}, {}])
        assert faults(self.CODE, run) == [False] * 3

    def test_who_wrapped_and_who_reduced(self, tmp_path: Path) -> None:
        """Gradients that the loop reduces bind the ranks; parameters that are averaged do not."""
        apart = by_rank(APPLIED, SKIPPED)
        cases = {
            "independent runs": [apart],
            "reduced by hand": [apart | {"events": REDUCED_BY_HAND}],
            "local SGD": [apart, MOVED],
            "reduced by hand, and the parameters are written too": [
                apart | {"events": REDUCED_BY_HAND},
                MOVED,
            ],
        }
        run = run_of_cases(tmp_path, cases, 2, **UNWRAPPED)
        assert by_case(self.CODE, run, cases) == {
            "independent runs": [],
            "reduced by hand": [True],
            "local SGD": [],
            "reduced by hand, and the parameters are written too": [None, None],
        }

    def test_local_sgd_inside_ddp_is_unknown_and_clamped_weights_are_judged(self, tmp_path: Path) -> None:
        apart = by_rank(APPLIED, SKIPPED)
        cases = {
            "never reduced": [apart | {"events": "ZfbfbfbfbO"}, MOVED | {"events": "ZfbfbfbfbO"}],
            "clamped": [apart, MOVED],
        }
        verdicts = by_case(self.CODE, run_of_cases(tmp_path, cases, 2), cases)
        assert verdicts == {"never reduced": [None, None], "clamped": [True, False]}
        hooked = write_run(tmp_path / "hooked", [apart, MOVED], gradient_divisor=None)
        assert faults(self.CODE, hooked) == [None, None]

    def test_what_is_missing_is_unknown(self, tmp_path: Path) -> None:
        unknown = {"optimizer_step_skipped": None}
        updates = [by_rank({}, unknown), by_rank({}, unknown, SKIPPED), {"on": {1: None, 2: None}}]
        run = write_run(tmp_path / "run", updates, 3)
        assert faults(self.CODE, run) == [None, True]
        assert faults(self.CODE, write_run(tmp_path / "wrapper", 1, wrapper=None)) == [None]

    def test_ranks_that_do_not_write_are_not_missed(self, tmp_path: Path) -> None:
        two = {"on": {2: None, 3: None}}
        run = write_run(tmp_path / "two", [two], 4, recorded_ranks=[0, 1])
        assert faults(self.CODE, run) == [False]
        one = write_run(tmp_path / "one", [{"on": {1: None}}], 2, recorded_ranks=[0])
        assert faults(self.CODE, one) == []


def scales(*values: float | None) -> dict[str, Any]:
    """An attempt of which each rank has a loss scale of its own."""
    return by_rank(*({"grad_scale": value} for value in values))


class TestScaleDisagreement:
    CODE = "ACC607"

    def test_different_scales_are_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [scales(65536, 65536), scales(65536, 131072)]))
        assert (row.attempt, row.rank, row.severity) == (2, None, "error")
        assert (row.observed, row.expected) == (131072, 65536)
        assert row.message == (
            "the loss scale was 131072 on rank 1 and 65536 on rank 0: "
            "in what they reduce, tokens of the one count 2 times as much as those of the other"
        )

    @pytest.mark.parametrize(("other", "fault"), [(65536 * (1 + 1e-8), False), (65536 * (1 + 1e-5), True)])
    def test_the_tolerance(self, tmp_path: Path, other: float, fault: bool) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [scales(65536, other)])) == [fault]

    def test_a_scale_that_moves_on_all_ranks_passes(self, tmp_path: Path) -> None:
        updates = [scales(65536, 65536) | {"skipped": True}, scales(32768, 32768)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [False, False]

    def test_scalers_of_their_own_behind_no_reduction_of_scaled_gradients(self, tmp_path: Path) -> None:
        apart = scales(65536, 32768)
        cases = {
            "unscaled, then reduced": [apart | {"events": "ZFBFBFBFBUAOGS"}],
            "unscaled, reduced and skipped": [apart | {"events": "ZFBFBFBFBUAXGS"}],
            "reduced, then unscaled": [apart | {"events": "ZFBFBFBFBAUOGS"}],
            "reduced, and unscaled in the kernel": [apart | {"events": "ZFBFBFBFBAOGS"}],
            "independent runs": [apart | {"events": "ZFBFBFBFBUOGS"}],
            "local SGD": [apart | {"events": "ZFBFBFBFBUOGS"}, apart | MOVED | {"events": "ZFBUOGS"}],
        }
        assert by_case(self.CODE, run_of_cases(tmp_path, cases, 2, **UNWRAPPED), cases) == {
            "unscaled, then reduced": [False],
            "unscaled, reduced and skipped": [False],
            "reduced, then unscaled": [True],
            "reduced, and unscaled in the kernel": [True],
            "independent runs": [],
            "local SGD": [],
        }

    def test_local_sgd_inside_ddp_is_unknown(self, tmp_path: Path) -> None:
        updates = [scales(65536, 32768), scales(65536, 32768) | MOVED]
        assert faults(self.CODE, write_run(tmp_path / "run", updates, gradient_divisor=None)) == [None, None]

    def test_pipeline_stages_are_not_compared(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [scales(65536, 1024)], on=stages(2))
        assert faults(self.CODE, run) == []

    def test_a_scale_that_is_missing_is_unknown(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [scales(65536, None)])) == [None]
        wrapper = write_run(tmp_path / "wrapper", [scales(65536, 32768)], wrapper=None)
        assert faults(self.CODE, wrapper) == [None]

    def test_without_a_scaler_nothing_is_in_scope(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", 2)) == []
        assert faults(self.CODE, write_run(tmp_path / "one", [{"grad_scale": 8.0}], 1)) == []


def counts(*values: int | None, **more: Any) -> dict[str, Any]:
    """An attempt after which the optimizer of each rank has a count of its own."""
    return by_rank(*({"optimizer_state_step": value, **more} for value in values))


class TestOptimizerStateDisagreement:
    CODE = "ACC609"

    def test_a_state_that_was_loaded_on_one_rank_alone_is_found(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [counts(1001, 1)], first_update=1001))
        assert (row.attempt, row.rank, row.severity) == (1, None, "error")
        assert (row.observed, row.expected) == (1, 1001)
        assert row.message == "the optimizer has made 1001 steps on rank 0 and 1 on rank 1: 1000 apart"

    def test_every_attempt_from_a_lonely_skip_on(self, tmp_path: Path) -> None:
        updates = [counts(1, 1), counts(2, 1), counts(3, 2)]
        assert faults(self.CODE, write_run(tmp_path / "run", updates)) == [False, True, True]

    def test_counts_that_agree_pass(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [{}, {"skipped": True}, {}])) == [False] * 3

    def test_sharded_parameters_are_compared(self, tmp_path: Path) -> None:
        """FSDP steps a shard of every parameter on every rank."""
        shards = {rank: {"shard_rank": rank, "shard_size": 2} for rank in range(2)}
        run = write_run(tmp_path / "run", [counts(8016, 7870)], wrapper="fsdp2", on=shards)
        assert faults(self.CODE, run) == [True]

    def test_ranks_that_step_parameters_of_their_own_are_not(self, tmp_path: Path) -> None:
        """ZeRO by hand: rank 1's parameters were frozen for the first ten updates."""
        own = [
            {"optimizer_state_step": 20, "probe_parameter": "head.bias"},
            {"optimizer_state_step": 10, "probe_parameter": "body.bias"},
        ]
        assert faults(self.CODE, write_run(tmp_path / "run", [by_rank(*own)])) == []
        two = [*own, {"optimizer_state_step": 20, "probe_parameter": "head.bias"}]
        assert faults(self.CODE, write_run(tmp_path / "two", [by_rank(*two)], 3)) == [False]

    def test_who_wrapped_and_who_reduced(self, tmp_path: Path) -> None:
        cases = {
            "independent runs": [counts(2, 1)],
            "reduced by hand": [counts(2, 1) | {"events": REDUCED_BY_HAND}],
            "local SGD": [counts(2, 1), counts(3, 2) | MOVED],
        }
        assert by_case(self.CODE, run_of_cases(tmp_path, cases, 2, **UNWRAPPED), cases) == {
            "independent runs": [],
            "reduced by hand": [True],
            "local SGD": [],
        }
        hooked = write_run(tmp_path / "hooked", [counts(2, 1) | MOVED], gradient_divisor=None)
        assert faults(self.CODE, hooked) == [None]

    def test_pipeline_stages_are_not_compared(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [counts(2, 1)], on=stages(2))) == []

    def test_what_is_missing_is_unknown(self, tmp_path: Path) -> None:
        run = write_run(
            tmp_path / "run", [counts(None, None), counts(2, None), counts(3, 2, probe_parameter=None)]
        )
        assert faults(self.CODE, run) == [None, None, True]
        assert faults(self.CODE, write_run(tmp_path / "wrapper", [counts(2, 1)], wrapper=None)) == [None]

    def test_only_some_attempts_and_ranks_are_recorded(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [counts(n, n) for n in range(1, 8)], every=3)
        assert [row.attempt for row in judge(self.CODE, run) if row.fault is False] == [1, 4, 7]


class TestCauses:
    """What follows from another finding is not reported beside it."""

    @staticmethod
    def found(run: Path) -> dict[str, str]:
        """The rules that found something, and those that say whose fault it was."""
        (report,) = check_paths([run], select=["ACC602", "ACC604", "ACC605", "ACC607", "ACC609"]).runs
        return {
            verdict.code: verdict.reason or verdict.status
            for verdict in report.verdicts
            if verdict.finding or "a cause was found" in (verdict.reason or "")
        }

    def test_a_lonely_skip_explains_what_comes_of_it(self, tmp_path: Path) -> None:
        skipped = by_rank(APPLIED | {"grad_scale": 64.0}, SKIPPED | {"grad_scale": 64.0})
        after = by_rank(
            {"grad_scale": 64.0, "optimizer_state_step": 3, "param_digest": "aa"},
            {"grad_scale": 32.0, "optimizer_state_step": 2, "param_digest": "bb"},
        )
        found = self.found(write_run(tmp_path / "run", [scales(64, 64), skipped, after]))
        assert found.pop("ACC602") == "failed"
        assert found.keys() == {"ACC605", "ACC607", "ACC609"}
        assert {reason.partition(";")[0] for reason in found.values()} == {"a cause was found by ACC602"}

    def test_scales_that_differ_explain_gradients_and_parameters(self, tmp_path: Path) -> None:
        update = by_rank(
            {"grad_scale": 64.0, "probe_gradient": [2.0], "param_digest": "aa"},
            {"grad_scale": 128.0, "probe_gradient": [1.0], "param_digest": "bb"},
        )
        assert self.found(write_run(tmp_path / "run", [update])) == {
            "ACC604": "a cause was found by ACC607",
            "ACC605": "a cause was found by ACC607",
            "ACC607": "failed",
        }

    def test_other_moments_explain_other_parameters(self, tmp_path: Path) -> None:
        update = by_rank(
            {"optimizer_state_step": 9, "param_digest": "aa"},
            {"optimizer_state_step": 1, "param_digest": "bb"},
        )
        assert self.found(write_run(tmp_path / "run", [update])) == {
            "ACC605": "a cause was found by ACC609",
            "ACC609": "failed",
        }
