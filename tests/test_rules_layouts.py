"""Ranks of tensor, context, sequence and pipeline groups, in hand-made ledgers: which are compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.records import Record, write_run
from tests.tables import query, windows
from tests.verdicts import faults, judge, the_fault

pytestmark = pytest.mark.slow  # a ledger read for each of many small questions


def staged(folder: Path, update: dict[str, Any], **run_fields: Any) -> Path:
    """A run of two stages of two data ranks each; the loss is that of ranks 2 and 3."""
    on: dict[int, Record] = {
        rank: {"pipeline_rank": rank // 2, "pipeline_size": 2, "data_parallel_rank": rank % 2}
        for rank in range(4)
    }
    fields = {"data_parallel_size": 2, "replica_size": 2, "gradient_divisor": 2.0, **run_fields}
    return write_run(folder / "run", [update], 4, on=on, **fields)


class TestStagesOfAPipeline:
    @pytest.mark.parametrize(
        ("code", "word", "found"),
        [
            ("ACC501", "ZffbfbfbBO", {False}),
            ("ACC501", "ZffbfbfbbO", {True}),
            ("ACC502", "ZffbfbfbBO", {False}),
            ("ACC502", "ZffbfBfbbO", {True}),
            ("ACC503", "ZFFbFbFbBO", set()),
            ("ACC504", "ZFFBFBFBBO", set()),
        ],
    )
    def test_ddp_decides_at_the_backward(
        self, code: str, word: str, found: set[bool], tmp_path: Path
    ) -> None:
        """The schedule runs forwards ahead, and leaves no_sync for the last backward."""
        assert {*faults(code, staged(tmp_path, {"events": word}))} == found

    def test_ranks_of_a_stage_have_the_same_gradients(self, tmp_path: Path) -> None:
        other, apart = {"probe_gradient": [5.0, 1.0]}, {"probe_gradient": [5.0, 2.0]}
        word = {"events": "ZffbfbfbBO", "probe_gradient": [1.0, 2.0]}
        assert faults("ACC604", staged(tmp_path / "right", {**word, "on": {2: other, 3: other}})) == [False]
        assert faults("ACC604", staged(tmp_path / "wrong", {**word, "on": {2: other, 3: apart}})) == [True]

    def test_local_denominators_are_found(self, tmp_path: Path) -> None:
        light = {"valid_tokens": [8.0] * 4, "loss_weight": [0.25] * 4}
        heavy = {"valid_tokens": [2.0] * 4, "loss_weight": [0.25] * 4}
        run = staged(tmp_path, {"events": "ZffbfbfbBO", "on": {2: light, 3: heavy}})
        assert the_fault("ACC103", run).message == "a token on rank 3 counts 4.00 times one on rank 2"

    def test_windows_of_stages_may_differ_in_size(self, tmp_path: Path) -> None:
        """Several stages on one rank make more backwards of the same micro-batches."""
        more: Record = {"microbatches": 8}
        stage = {0: more, 1: more}
        assert faults("ACC606", staged(tmp_path / "right", {"on": stage})) == [False, False]
        found = faults("ACC606", staged(tmp_path / "wrong", {"on": {0: more}}))
        assert sorted(map(str, found)) == ["False", "True"]

    def test_what_other_stages_go_backward_from_is_no_loss(self, tmp_path: Path) -> None:
        first = {"loss_unobserved": 1.0, "loss_terms": None}
        run = staged(tmp_path, {"total_weight": 8.0, "on": {0: first, 1: first}})
        assert windows(run, "loss_unobserved") == [(0.0,)]
        assert the_fault("ACC104", run).severity == "error"


@pytest.mark.parametrize("divisor", [2.0, 4.0])
def test_data_ranks_with_the_same_data_are_found_beside_context_ranks(divisor: float, tmp_path: Path) -> None:
    """Whether DDP spans the context ranks too, or they are reduced otherwise."""
    on: dict[int, Record] = {
        rank: {"context_rank": rank % 2, "context_size": 2, "data_parallel_rank": rank // 2}
        for rank in range(4)
    }
    updates: list[Record] = [
        {"on": {rank: {"data_digest": [f"{n}.{step}.{rank % 2}" for step in range(4)]} for rank in range(4)}}
        for n in range(4)
    ]
    run = write_run(tmp_path / "run", updates, 4, on=on, data_parallel_size=2, gradient_divisor=divisor)
    assert [(row.fault, row.severity) for row in judge("ACC608", run)] == [(True, "warning")] * 4


class TestUnknownLayout:
    """DDP reduces over two of four ranks, and nothing tells what the others are."""

    FIELDS: dict[str, Any] = {  # noqa: RUF012
        "data_parallel_rank": None,
        "data_parallel_size": None,
        "replica_size": 2,
        "gradient_divisor": 2.0,
    }

    @pytest.mark.parametrize(
        ("code", "here", "there"),
        [
            ("ACC602", {}, {"optimizer_step_skipped": True}),
            ("ACC603", {}, {"learning_rate": 0.5}),
            ("ACC606", {}, {"microbatches": 3}),
            ("ACC607", {"grad_scale": 2.0}, {"grad_scale": 4.0}),
            ("ACC609", {}, {"optimizer_state_step": 7}),
        ],
    )
    def test_ranks_are_not_compared(self, code: str, here: Record, there: Record, tmp_path: Path) -> None:
        update = {**here, "on": {2: there, 3: there}}
        assert {*faults(code, write_run(tmp_path / "run", [update], 4))} == {True}
        assert {*faults(code, write_run(tmp_path / "unknown", [update], 4, **self.FIELDS))} == {None}

    @pytest.mark.parametrize("code", ["ACC604", "ACC605", "ACC608"])
    def test_parameters_gradients_and_data_are_not_compared(self, code: str, tmp_path: Path) -> None:
        own = {"param_digest": "aa", "probe_gradient": [1.0], "data_digest": ["1", "2", "3", "4"]}
        updates = [{**own, "on": {2: {**own, "param_digest": "bb", "probe_gradient": [9.0]}}}] * 3
        run = write_run(tmp_path / "run", updates, 4, **self.FIELDS)
        assert not {*faults(code, run)} & {True, False}

    def test_nothing_is_weighed(self, tmp_path: Path) -> None:
        run = write_run(tmp_path / "run", 1, 4, **self.FIELDS)
        assert windows(run, "token_ranks, complete, total_weight") == [(None, None, None)]
        assert query(run, "SELECT DISTINCT parameter_part FROM runs") == [(None,)]


def test_a_rank_whose_part_is_not_known_has_no_replica(tmp_path: Path) -> None:
    """Its run line was lost, and with it which part of the tensors it has."""
    on: dict[int, Record] = {rank: {"tensor_rank": rank, "param_digest": str(rank)} for rank in range(2)}
    fields: dict[str, Any] = {"tensor_size": 2, "data_parallel_rank": 0, "data_parallel_size": 1}
    update = {"on": {rank: {"param_digest": str(rank)} for rank in range(2)}}
    run = write_run(tmp_path / "run", [update] * 2, on=on, replica_size=1, **fields)
    path = run / "rank-00/00001.aaaa.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))
    assert query(run, "SELECT parameter_part FROM runs ORDER BY rank") == [("0/0/0",), (None,)]
    assert faults("ACC605", run) == []
