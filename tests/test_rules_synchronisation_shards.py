"""Rules ACC5xx where the wrapper decides at the backward and keeps shards, on hand-made ledgers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from accumaudit.engine import check_paths
from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

SHARDS: dict[str, Any] = {
    "wrapper": "fsdp2",
    "shard_size": 2,
    "replica_rank": 0,
    "replica_size": 1,
    "on": {0: {"shard_rank": 0}, 1: {"shard_rank": 1}},
}
REPLICAS: dict[str, Any] = {"wrapper": "fsdp2", "shard_rank": 0, "shard_size": 1}
"""A mesh that replicates alone."""


class TestUnshardedGradientsHeld:
    CODE = "ACC506"

    def test_micro_steps_that_are_not_reduced_are_told(self, tmp_path: Path) -> None:
        row = the_fault(self.CODE, write_run(tmp_path / "run", [{"events": "ZFbFbFbFBO"}], **SHARDS))
        assert (row.attempt, row.rank, row.severity, row.observed) == (1, None, "note", 3.0)
        assert row.message == (
            "3 of 4 micro-steps were not reduced: until the next reduction each rank held the whole "
            "gradient, 2 times its shard"
        )

    def test_it_tells_of_an_offload_that_waits(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", [{"events": "ZFbFbFbFBO"}], **SHARDS, cpu_offload=True)
        assert the_fault(self.CODE, run).message.endswith(
            ", and none of it on the CPU, to which it is offloaded otherwise"
        )

    @pytest.mark.parametrize("word", ["ZFBFBFBFBO", "fbZFBFBFBFBCOS"])
    def test_reduced_micro_steps_hold_shards(self, tmp_path: Path, word: str) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [{"events": word}], **SHARDS)) == [False]

    def test_replicas_leave_it_open_where_shards_may_be_held(self, tmp_path: Path) -> None:
        """set_requires_all_reduce(False) reduces within the shard group."""
        hybrid: dict[str, Any] = SHARDS | {
            "replica_size": 2,
            "on": {rank: {"shard_rank": rank % 2, "replica_rank": rank // 2} for rank in range(4)},
        }
        for wrapper, expected in (("fsdp2", None), ("fsdp1", True)):
            run = write_run(
                tmp_path / wrapper, [{"events": "ZFbFbFbFBO"}], 4, **hybrid | {"wrapper": wrapper}
            )
            assert faults(self.CODE, run) == [expected]

    def test_unknown(self, tmp_path: Path) -> None:
        unknown = write_run(tmp_path / "word", [{"events": None}], **SHARDS)
        assert faults(self.CODE, unknown) == [None]
        without = write_run(tmp_path / "shards", 1, **SHARDS | {"on": {}, "shard_size": None})
        assert faults(self.CODE, without) == [None]

    @pytest.mark.parametrize(
        "layout", [REPLICAS, {"wrapper": "ddp"}, {"wrapper": "deepspeed-zero1", "shard_size": 2}]
    )
    def test_out_of_scope(self, tmp_path: Path, layout: dict[str, Any]) -> None:
        assert judge(self.CODE, write_run(tmp_path / "run", [{"events": "ZFbFbFbFBO"}], **layout)) == []

    def test_a_window_of_one_micro_step_holds_nothing(self, tmp_path: Path) -> None:
        single = [{"events": "ZFBO", "microbatches": 1, "accumulation_steps": 1}]
        assert judge(self.CODE, write_run(tmp_path / "run", single, **SHARDS)) == []


class TestGradientsHeldBack:
    """FSDP2 gives the optimizer reduced gradients alone, so that replicas agree whatever is left out."""

    NEVER, FIRST = "ZFbFbFbFbO", "ZFBFbFbFbO"

    @pytest.mark.parametrize("layout", [SHARDS, REPLICAS])
    def test_an_update_without_any_reduction_is_found(self, tmp_path: Path, layout: dict[str, Any]) -> None:
        update = {"events": self.NEVER, "probe_gradient": None, "param_digest": "aa"}
        rows = judge("ACC501", write_run(tmp_path / "run", [update, update], **layout))
        assert [(row.rank, row.fault) for row in rows] == [(0, True), (1, True)] * 2
        assert rows[0].message == (
            "none of the 4 micro-steps of rank 0 was reduced: the optimizer saw no gradient of them"
        )

    @pytest.mark.parametrize("layout", [SHARDS, REPLICAS])
    def test_micro_steps_after_the_reduction_are_found(self, tmp_path: Path, layout: dict[str, Any]) -> None:
        update = {"events": self.FIRST, "param_digest": "aa"}
        rows = judge("ACC502", write_run(tmp_path / "run", [update, update], **layout))
        assert [(row.rank, row.fault) for row in rows] == [(0, True), (1, True)] * 2
        assert rows[0].message == (
            "the last 3 of 4 micro-steps of rank 0 came after the reduction: "
            "their gradients wait for the next one, and enter another update"
        )

    def test_it_explains_that_nothing_was_cleared(self, tmp_path: Path) -> None:
        """What no optimizer sees cannot be seen to be cleared."""
        held = {"events": self.NEVER.lstrip("Z"), "probe_gradient": None}
        run = write_run(tmp_path / "run", [{"events": self.NEVER, "probe_gradient": None}, held], **SHARDS)
        verdicts = {one.code: one for one in check_paths([run]).runs[0].verdicts}
        assert verdicts["ACC501"].status == "failed"
        assert verdicts["ACC203"].status != "failed"

    def test_replicas_under_fsdp1_are_averaged_as_others_are(self, tmp_path: Path) -> None:
        layout = REPLICAS | {"wrapper": "fsdp1"}
        update = {"events": self.NEVER, "param_digest": "aa"}
        assert faults("ACC501", write_run(tmp_path / "run", [update, update], **layout)) == [False] * 4


class TestGradientsNotReduced:
    CODE = "ACC505"

    def test_shards_have_nothing_to_compare(self, tmp_path: Path) -> None:
        assert faults(self.CODE, write_run(tmp_path / "run", [{}], **SHARDS)) == []

    def test_replicas_are_compared(self, tmp_path: Path) -> None:
        differing = {rank: {"probe_gradient": [1.0, float(rank)]} for rank in (0, 1)}
        run = write_run(tmp_path / "run", [{}, {"on": differing}], **REPLICAS)
        assert faults(self.CODE, run) == [False, True]
