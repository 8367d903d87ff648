"""Rule ACC103 on hand-made ledgers: denominators that differ between ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.verdicts import faults, faults_by_run, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def window(n: list[float], weights: list[float], **more: Any) -> dict[str, Any]:
    """A window of micro-steps with these valid tokens and A1."""
    squares = [a * a / tokens if tokens else 0.0 for tokens, a in zip(n, weights, strict=True)]
    return {"valid_tokens": n, "loss_weight": weights, "loss_weight_sq": squares, **more}


class TestRankLocalDenominator:
    def test_local_means_of_unequal_ranks_are_found(self, tmp_path: Path) -> None:
        updates = [{"on": {0: window([1.0], [1.0]), 1: window([9.0], [1.0])}}]
        row = the_fault("ACC103", write_run(tmp_path / "run", updates, accumulation_steps=1))
        assert (row.rank, row.severity) == (None, "error")
        assert row.message == "a token on rank 0 counts 9.00 times one on rank 1"
        assert row.observed == pytest.approx(9.0)

    def test_denominators_of_a_ranks_whole_window_are_found(self, tmp_path: Path) -> None:
        updates = [{"on": {0: window([2.0, 3.0], [0.4, 0.6]), 1: window([4.0, 6.0], [0.4, 0.6])}}]
        run = write_run(tmp_path / "run", updates, accumulation_steps=2)
        assert faults("ACC103", run) == [True]
        assert faults("ACC102", run) == [False, False]

    @pytest.mark.parametrize(
        "ranks",
        [
            {0: window([1.0], [0.2]), 1: window([9.0], [1.8])},
            {0: window([0.0], [0.0]), 1: window([9.0], [2.0])},
            {0: window([5.0, 5.0], [0.5, 0.5]), 1: window([10.0], [1.0])},
            {0: window([1.0], [1.0], grad_rescale=0.2), 1: window([9.0], [1.0], grad_rescale=1.8)},
        ],
        ids=["global", "empty-rank", "unequal-windows", "rescaled-before-the-reduction"],
    )
    def test_honest_ranks_pass(self, tmp_path: Path, ranks: dict[int, dict[str, Any]]) -> None:
        assert faults("ACC103", write_run(tmp_path / "run", [{"on": ranks}])) == [False]

    def test_sums_tell_it_too(self, tmp_path: Path) -> None:
        updates = [
            {"on": {0: window([1.0], [1.0]), 1: window([9.0], [1.0])}},
            {"on": {0: window([1.0], [0.2]), 1: window([9.0], [1.8])}},
            {"on": {0: window([0.0], [0.0]), 1: window([9.0], [2.0])}},
        ]
        run = write_run(tmp_path / "run", updates, accumulation_steps=1, microbatch_detail="sums")
        assert faults("ACC103", run) == [True, False, False]

    def test_a_mean_of_means_is_not_blamed_on_ranks(self, tmp_path: Path) -> None:
        updates = [{"on": {0: window([1.0, 9.0], [0.5, 0.5]), 1: window([4.0, 5.0], [0.5, 0.5])}}]
        assert faults("ACC103", write_run(tmp_path / "run", updates)) == [False]

    def test_one_rank_is_out_of_scope(self, tmp_path: Path) -> None:
        assert judge("ACC103", write_run(tmp_path / "run", ranks=1)) == []

    def test_ranks_that_are_missing(self, tmp_path: Path) -> None:
        """Those present prove a difference, never that there is none."""
        local = {0: window([1.0], [1.0]), 1: window([9.0], [1.0])}
        right = {0: window([1.0], [0.2]), 1: window([9.0], [1.8])}
        updates = [{"on": local | {2: None}}, {"on": right | {2: None}}]
        run = write_run(tmp_path / "run", updates, ranks=3, accumulation_steps=1)
        assert faults("ACC103", run) == [True, None]

    @pytest.mark.parametrize(
        "unknown",
        [
            {"weight_uniform": [False]},
            {"loss_weight": [None]},
            {"grad_rescale": None},
            {"valid_tokens": None},
        ],
    )
    def test_what_was_not_recorded_is_unknown(self, tmp_path: Path, unknown: dict[str, Any]) -> None:
        ranks = {0: window([1.0], [1.0]), 1: window([9.0], [1.0], microbatches=1) | unknown}
        assert faults("ACC103", write_run(tmp_path / "run", [{"on": ranks}])) == [None]

    def test_only_gradients_that_are_added_up_are_compared(self, tmp_path: Path) -> None:
        """Under local SGD each rank's update is its own, with a denominator of its own."""
        cases: dict[tuple[str, float | None, str | None], bool | None] = {
            ("ddp", 2.0, "ZfBOS"): None,
            ("ddp", 2.0, "ZfBAOS"): True,
            ("none", None, "ZFBOS"): None,
            ("none", None, "ZFBAOS"): True,
            ("none", 2.0, "ZFBOS"): True,
            ("fsdp2", 2.0, "ZFbOS"): None,
            ("fsdp2", 2.0, "ZFBOS"): True,
            ("ddp", 2.0, None): None,
        }
        for wrapper, divisor, word in cases:
            updates = [{"events": word, "on": {0: window([1.0], [1.0]), 1: window([9.0], [1.0])}}]
            run = tmp_path / f"{wrapper} {divisor} {word}"
            write_run(run, updates, wrapper=wrapper, gradient_divisor=divisor)
        assert faults_by_run("ACC103", tmp_path) == {
            " ".join(map(str, case)): [fault] for case, fault in cases.items()
        }

    def test_tensor_peers_hold_the_same_tokens(self, tmp_path: Path) -> None:
        coordinates = {
            rank: {
                "data_parallel_rank": rank // 2,
                "data_parallel_size": 2,
                "tensor_rank": rank % 2,
                "tensor_size": 2,
                "gradient_divisor": 2.0,
            }
            for rank in range(4)
        }
        ranks = {rank: window([5.0], [1.0]) for rank in range(4)}
        run = write_run(tmp_path / "run", [{"on": ranks}], ranks=4, on=coordinates)
        assert faults("ACC103", run) == [False]
