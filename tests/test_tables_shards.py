"""Norms of shards, joined over the ranks of a shard group."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records import write_run
from tests.tables import by_rank, windows

SHARDS: dict[str, Any] = {"wrapper": "fsdp1", "shard_size": 2, "replica_size": 1, "replica_rank": 0}
NORMS = "grad_norm_min, grad_norm_max, grad_norm_before_min, grad_norm_before_max"


def norms(after: float | None, before: float | None, told: str = "shard") -> dict[str, Any]:
    """What one rank measured and was told."""
    return {
        "grad_norm_after_clip": after,
        "grad_norm_after_scope": "shard",
        "grad_norm_before_clip": before,
        "grad_norm_before_scope": told,
    }


def test_the_squares_of_shards_add_up(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [by_rank(norms(3.0, 6.0), norms(4.0, 8.0))], **SHARDS)
    assert windows(run, NORMS) == [(5.0, 5.0, 10.0, 10.0)]


def test_replicas_count_once(tmp_path: Path) -> None:
    layout = SHARDS | {
        "replica_size": 2,
        "on": {rank: {"shard_rank": rank % 2, "replica_rank": rank // 2} for rank in range(4)},
    }
    ranks = by_rank(norms(3.0, 3.0), norms(4.0, 4.0), norms(3.0, 3.0), norms(4.5, 4.0))
    run = write_run(tmp_path / "run", [ranks], 4, **layout)
    assert windows(run, NORMS) == [pytest.approx((5.0, 29.25**0.5, 5.0, 5.0))]


def test_a_norm_that_all_ranks_were_told_is_the_groups_own(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [by_rank(norms(3.0, 7.0), norms(3.0, 7.0))], **SHARDS)
    assert windows(run, NORMS) == [pytest.approx((18**0.5, 18**0.5, 7.0, 7.0))]


def test_a_norm_of_everything_stands_beside_norms_of_shards(tmp_path: Path) -> None:
    ranks = by_rank(norms(3.0, 5.0, "global"), norms(4.0, 5.0, "global"))
    assert windows(write_run(tmp_path / "run", [ranks], **SHARDS), NORMS) == [(5.0, 5.0, 5.0, 5.0)]


def test_a_shard_that_is_missing_leaves_it_unknown(tmp_path: Path) -> None:
    silent = by_rank(norms(3.0, 3.0), norms(None, None))
    absent = {"on": {0: norms(3.0, 3.0), 1: None}}
    run = write_run(tmp_path / "run", [silent, absent], **SHARDS)
    assert windows(run, NORMS) == [(None,) * 4] * 2


def test_replicas_of_tensor_groups_count_once(tmp_path: Path) -> None:
    places = {
        rank: {"tensor_rank": rank % 2, "data_parallel_rank": rank // 2, "replica_rank": rank // 2}
        for rank in range(4)
    }
    layout: dict[str, Any] = {
        "wrapper": "fsdp2",
        "shard_size": 1,
        "replica_size": 2,
        "tensor_size": 2,
        "on": places,
    }
    ranks = by_rank(norms(3.0, 3.0), norms(4.0, 4.0), norms(3.0, 3.0), norms(4.0, 4.0))
    run = write_run(tmp_path / "run", [ranks], 4, data_parallel_size=2, **layout)
    assert windows(run, NORMS) == [(5.0, 5.0, 5.0, 5.0)]


def test_gradients_may_be_parted_where_parameters_are_not(tmp_path: Path) -> None:
    layout: dict[str, Any] = {"wrapper": "deepspeed-zero2", "shard_size": 1, "replica_size": 2}
    run = write_run(tmp_path / "run", [by_rank(norms(3.0, 3.0), norms(4.0, 4.0))], **layout)
    assert windows(run, NORMS) == [(5.0, 5.0, 5.0, 5.0)]


def test_shards_of_tensor_groups_are_shards_too(tmp_path: Path) -> None:
    layout = SHARDS | {"shard_size": 1, "data_parallel_size": 1, "data_parallel_rank": 0, "tensor_size": 2}
    layout["on"] = {0: {"tensor_rank": 0}, 1: {"tensor_rank": 1}}
    run = write_run(tmp_path / "run", [by_rank(norms(3.0, 3.0), norms(4.0, 4.0))], **layout)
    assert windows(run, NORMS) == [(5.0, 5.0, 5.0, 5.0)]
