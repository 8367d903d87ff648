"""`stop_on`: all ranks leave at the same update, which is whole, and nothing else is different."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.amp import GradScaler

import accumaudit
from accumaudit.hooks.options import Options
from tests.loops import TinyModel, batches, token_loss
from tests.processes import Pair
from tests.recorded import faults, marks, updates
from tests.stopped_loops import FINDING, UPDATES, told, train
from tests.trainings import environment

TEXT = f"accumaudit: stopped by stop_on='error': {FINDING.text}"
TRAIN = "tests.stopped_loops:train"


class Loop:
    """A loop of windows of one, taken an update at a time."""

    def __init__(self, folder: Path, scaler: GradScaler | None = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = TinyModel()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.scaler = scaler or GradScaler("cpu", enabled=False)
        options = {"log_dir": folder, "summary": False, "stop_on": "error", **options}
        self.audit = accumaudit.attach(self.model, self.optimizer, **options)

    def micro_step(self, factor: float = 1.0) -> None:
        ids = batches(1)[0]
        self.scaler.scale(factor * token_loss(self.model(ids), ids)).backward()

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad()


def test_it_stops_before_the_next_window_and_the_update_is_whole(tmp_path: Path) -> None:
    ended = train(str(tmp_path), found_at=3)
    assert (ended["updates"], ended["scheduler"]) == (3, 3)
    assert (ended["text"], ended["codes"]) == (TEXT, ["ACC101"])
    assert [update["optimizer_update_id"] for update in updates(tmp_path)] == [1, 2, 3]
    (close,) = marks(tmp_path, "close")
    assert (close["reason"], close["finished"], close["leftover_microbatches"]) == ("exception", False, 0)
    assert faults(tmp_path) == []


def test_two_ranks_stop_at_the_same_update_and_rank_0_says_why(tmp_path: Path, pair: Pair) -> None:
    first, second = pair.call(TRAIN, folder=str(tmp_path), found_at=3)
    assert [one["updates"] for one in (first, second)] == [4, 4]
    assert [one["scheduler"] for one in (first, second)] == [4, 4]
    assert (first["text"], first["codes"]) == (TEXT, ["ACC101"])
    named = "accumaudit: stopped by stop_on='error': rank 0 has found a fault, and names it on its console"
    assert (second["text"], second["codes"]) == (named, [])
    assert first["parameters"] == second["parameters"]
    assert faults(tmp_path) == []


def test_sharded_ranks_stop_at_the_same_update_too(tmp_path: Path, pair: Pair) -> None:
    ended = pair.call(TRAIN, folder=str(tmp_path), found_at=3, sharded=True)
    assert [(one["updates"], one["scheduler"]) for one in ended] == [(4, 4)] * 2
    assert not any(one["whole"] for one in ended), "the forward that did not come had gathered them"
    assert faults(tmp_path) == []


def test_stages_of_a_pipeline_stop_as_the_step_returns(tmp_path: Path, pair: Pair) -> None:
    """Before the next forward a later stage would wait for what the one before does not send any more."""
    ended = pair.call(TRAIN, folder=str(tmp_path), found_at=2, stages=True)
    assert [(one["updates"], one["scheduler"]) for one in ended] == [(2, 2)] * 2
    assert [one["text"] is None for one in ended] == [False, False]
    assert sorted(update["optimizer_update_id"] for update in updates(tmp_path)) == [1, 1, 2, 2, 3, 3]
    assert faults(tmp_path) == []


def test_a_training_in_which_nothing_is_found_is_the_same_bit_by_bit(tmp_path: Path, pair: Pair) -> None:
    """The ranks talk at each update, and end as they would have; the window's words say nothing of it."""
    asking = pair.call(TRAIN, folder=str(tmp_path / "asking"), found_at=None)
    silent = pair.call(TRAIN, folder=str(tmp_path / "silent"), found_at=None, stop_on=None)
    assert asking == silent
    assert asking[0]["updates"] == UPDATES
    words = [[update["events"] for update in updates(tmp_path / name)] for name in ("asking", "silent")]
    assert words[0] == words[1]


def test_a_fault_of_the_last_update_ends_nothing(tmp_path: Path, pair: Pair) -> None:
    """There is no window after it; the question of that update is left unanswered on all ranks."""
    ended = pair.call(TRAIN, folder=str(tmp_path), found_at=UPDATES)
    assert [(one["updates"], one["text"]) for one in ended] == [(UPDATES, None)] * 2
    assert pair.call("torch.distributed:get_rank") == [0, 1]


def test_lower_severities_do_not_stop(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path, stop_on="error")
        with loop.audit:
            find()
            assert [one.code for one in loop.audit.findings()] == ["ACC101"]
            loop.micro_step()
            loop.step()
            with pytest.raises(accumaudit.FaultFoundError):
                loop.micro_step()


def test_who_goes_on_all_the_same_is_not_stopped_again(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path)
        with loop.audit:
            find()
            loop.micro_step()
            loop.step()
            with pytest.raises(accumaudit.FaultFoundError):
                loop.micro_step()
            for _ in range(3):
                loop.micro_step()
                loop.step()
    assert [update["events"] for update in updates(tmp_path)] == ["ZFBO"] * 4
    assert faults(tmp_path) == []


def test_an_evaluation_before_it_is_finished_first(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path)
        with loop.audit:
            find()
            loop.micro_step()
            loop.step()
            with torch.no_grad():
                loop.model(batches(1)[0])
            with pytest.raises(accumaudit.FaultFoundError):
                loop.micro_step()


def test_a_loop_whose_forwards_are_not_seen_is_stopped_before_the_step(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path)
        ids = batches(1)[0]
        with loop.audit:
            find()
            loop.model.compute_loss(ids).backward()
            loop.step()
            before = copy.deepcopy(loop.model.state_dict())
            loop.model.compute_loss(ids).backward()
            with pytest.raises(accumaudit.FaultFoundError):
                loop.step()
    torch.testing.assert_close(loop.model.state_dict(), before, rtol=0, atol=0)
    assert len(updates(tmp_path)) == 1
    assert faults(tmp_path) == []


def test_a_skipped_attempt_is_one_after_which_it_stops(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path, GradScaler("cpu", init_scale=4.0))
        with loop.audit:
            find()
            loop.micro_step(float("inf"))
            loop.step()
            with pytest.raises(accumaudit.FaultFoundError):
                loop.micro_step()
    assert [update["optimizer_step_skipped"] for update in updates(tmp_path)] == [True]


def test_a_compiled_model_is_stopped_too(tmp_path: Path) -> None:
    with told() as find:
        model = TinyModel()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        compiled: Any = torch.compile(model, backend="eager")
        ids = batches(1)[0]
        with accumaudit.attach(compiled, optimizer, log_dir=tmp_path, summary=False, stop_on="error"):
            token_loss(compiled(ids), ids).backward()
            find()
            optimizer.step()
            with pytest.raises(accumaudit.FaultFoundError):
                compiled(ids)


def test_a_copy_of_the_model_is_never_stopped_and_nothing_is_left_behind(tmp_path: Path) -> None:
    with told() as find:
        loop = Loop(tmp_path)
        with loop.audit:
            find()
            loop.micro_step()
            loop.step()
            copy.deepcopy(loop.model)(batches(1)[0])
        loop.micro_step()
        loop.step()
    assert not loop.model._forward_pre_hooks
    assert not loop.optimizer._optimizer_step_pre_hooks


def test_another_severity_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="accumaudit: stop_on is 'fatal'; it is error, warning or note"):
        Loop(tmp_path, stop_on="fatal")


def test_ranks_that_record_nothing_cannot_be_stopped() -> None:
    with pytest.raises(
        ValueError, match="stop_on stops all ranks alike and needs all to record: ranks='all'"
    ):
        Options(log_dir="", stop_on="error", ranks="first").writing_ranks(2)
    assert Options(log_dir="", stop_on="error", ranks="first").writing_ranks(1) is None


def test_a_rank_0_that_records_nothing_watches_nothing() -> None:
    with pytest.raises(ValueError, match=r"watch is rank 0's, which ranks=\[1\] leaves out"):
        Options(log_dir="", watch=True, ranks=[1]).writing_ranks(2)
    assert Options(log_dir="", watch=True, ranks="first").writing_ranks(2) == [0]


def test_ranks_that_cannot_talk_yet_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    with environment(WORLD_SIZE="2", RANK="0"), pytest.raises(ValueError, match="attach after init_process"):
        Loop(tmp_path / "run")
    assert not (tmp_path / "run").exists()
