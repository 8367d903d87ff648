"""ACC405 on hand-made ledgers: ranks that clip their shard of the gradient by its own norm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions

CODE = "ACC405"
SHARDS: dict[str, Any] = {
    "wrapper": "fsdp1",
    "shard_size": 2,
    "replica_rank": 0,
    "replica_size": 1,
    "on": {0: {"shard_rank": 0}, 1: {"shard_rank": 1}},
}
"""Two ranks that hold a shard each."""
TWICE: dict[str, Any] = {
    "wrapper": "fsdp1",
    "shard_size": 2,
    "replica_size": 2,
    "on": {rank: {"shard_rank": rank % 2, "replica_rank": rank // 2} for rank in range(4)},
}
"""Four ranks: two replicas of two shards."""


def shard(norm: float | None, own: float, limit: float | None = 3.0, **more: Any) -> dict[str, Any]:
    """What a rank wrote: the norm that its clip returned, of a shard whose norm is `own`."""
    coefficient = 1.0 if limit is None or not norm else min(1.0, limit / norm)
    call = {
        "micro_step": 4,
        "kind": "norm",
        "limit": limit,
        "norm": norm,
        "coefficient": coefficient,
        "largest": 0.1,
        "complete": True,
    }
    return {
        "clips": [call | more],
        "events": "ZFBFBFBFBOS" if limit is None else "ZFBFBFBFBCOS",
        "grad_norm_before_clip": norm,
        "grad_norm_before_scope": "shard",
        "grad_norm_after_clip": own * coefficient,
        "grad_norm_after_scope": "shard",
    }


def run_of(folder: Path, *attempts: Sequence[dict[str, Any]], **layout: Any) -> Path:
    """A run whose attempts are what each rank wrote."""
    updates = [{"on": dict(enumerate(ranks))} for ranks in attempts]
    return write_run(folder / "run", updates, len(attempts[0]), **(layout or SHARDS))


def test_shards_that_are_clipped_by_their_own_norms_are_found(tmp_path: Path) -> None:
    """The example of the rule's page."""
    row = the_fault(CODE, run_of(tmp_path, [shard(3.0, 3.0), shard(4.0, 4.0)]))
    assert (row.attempt, row.rank, row.severity) == (1, None, "error")
    assert [row.observed, row.expected] == pytest.approx([4.0, 5.0])
    assert row.message == (
        "each rank clipped at 3 by the norm of its own shard, 3 to 4; the whole gradient's is 5: "
        "shards were scaled by 0.75 to 1 where all should be by 0.6"
    )


def test_a_clip_that_no_shard_reached_is_found_where_the_whole_gradient_does(tmp_path: Path) -> None:
    row = the_fault(CODE, run_of(tmp_path, [shard(2.0, 2.0), shard(2.5, 2.5)]))
    assert row.severity == "error"
    assert row.message.endswith(": shards were scaled by 1 to 1 where all should be by 0.937")


def test_a_clip_that_nothing_reached_is_a_warning(tmp_path: Path) -> None:
    row = the_fault(CODE, run_of(tmp_path, [shard(1.0, 1.0), shard(2.0, 2.0)]))
    assert row.severity == "warning"
    assert row.message.endswith("the whole gradient's is 2.24, and nothing was shortened here")


def test_a_rank_whose_shard_is_empty_has_a_norm_of_its_own(tmp_path: Path) -> None:
    nothing = shard(0.0, 0.0, complete=False) | {"events": "ZFBFBFBFBOS"}
    row = the_fault(CODE, run_of(tmp_path, [shard(4.0, 4.0), nothing]))
    assert (row.observed, row.expected) == (4.0, 4.0)


def test_each_replica_is_a_group_of_its_own(tmp_path: Path) -> None:
    local = [shard(3.0, 3.0), shard(4.0, 4.0)]
    whole = [shard(5.0, 3.0), shard(5.0, 4.0)]
    assert faults(CODE, run_of(tmp_path / "right", [*whole, *whole], **TWICE)) == [False]
    row = the_fault(CODE, run_of(tmp_path / "wrong", [*local, *local], **TWICE))
    assert row.expected == pytest.approx(5.0)


RIGHT = {
    "the norm of all shards": [shard(5.0, 3.0), shard(5.0, 4.0)],
    "the same, by its own method": [
        shard(5.0, 3.0) | {"grad_norm_before_scope": "global"},
        shard(5.0, 4.0) | {"grad_norm_before_scope": "global"},
    ],
    "a limit that is not reached": [shard(1.0, 0.6), shard(1.0, 0.8)],
    "rounding": [shard(5.0, 3.0), shard(5.0001, 4.0)],
}


@pytest.mark.parametrize("name", RIGHT)
def test_it_leaves_alone(name: str, tmp_path: Path) -> None:
    assert faults(CODE, run_of(tmp_path, RIGHT[name])) == [False]


UNKNOWN = {
    "norms of something else": [shard(3.0, 6.0), shard(4.0, 6.0)],
    "a norm that is not known": [shard(None, 3.0, coefficient=0.6), shard(4.0, 4.0)],
    "no clips in the record": [shard(3.0, 3.0) | {"clips": None}, shard(4.0, 4.0) | {"clips": None}],
    "no norms at the step": [
        shard(3.0, 3.0) | {"grad_norm_after_clip": None},
        shard(4.0, 4.0) | {"grad_norm_after_clip": None},
    ],
    "some of the parameters": [shard(3.0, 3.0, complete=False), shard(4.0, 4.0, complete=False)],
    "a clip by value": [shard(None, 3.0, kind="value"), shard(None, 4.0, kind="value")],
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown(name: str, tmp_path: Path) -> None:
    assert faults(CODE, run_of(tmp_path, UNKNOWN[name])) == [None]


def test_a_rank_without_a_record_leaves_it_open(tmp_path: Path) -> None:
    updates = [{"on": {0: shard(3.0, 3.0), 1: None}}]
    assert faults(CODE, write_run(tmp_path / "run", updates, 2, **SHARDS)) == [None]


OUT_OF_SCOPE: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]] = {
    "a norm that is logged": ([shard(3.0, 3.0, None), shard(4.0, 4.0, None)], SHARDS),
    "a skipped step": ([shard(3.0, 3.0) | {"skipped": True}, shard(4.0, 4.0) | {"skipped": True}], SHARDS),
    "no shards": ([shard(3.0, 3.0), shard(4.0, 4.0)], SHARDS | {"shard_size": 1}),
    "replicas under DDP": ([shard(3.0, 3.0), shard(4.0, 4.0)], {"wrapper": "ddp"}),
}


@pytest.mark.parametrize("name", OUT_OF_SCOPE)
def test_out_of_scope(name: str, tmp_path: Path) -> None:
    ranks, layout = OUT_OF_SCOPE[name]
    updates = [{"on": dict(enumerate(ranks)), "skipped": "skipped" in name}]
    assert judge(CODE, write_run(tmp_path / "run", updates, 2, **layout)) == []
