"""Accelerate: each way to train with it measures what it really does, and its faults are found."""

from __future__ import annotations

import gc
import math
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import accumaudit
from accumaudit.hooks import patches
from tests.loops import read_records
from tests.processes import Pair
from tests.recorded import faults, marks, updates, words
from tests.runtimes.accelerate import Loop, fresh, healthy, train
from tests.runtimes.ledgers import Found, Judged, judged
from tests.runtimes.rows import EQUAL, STEPS

pytestmark = pytest.mark.slow  # accelerate takes seconds to import

IMPORTS = 200.0
"""Seconds that processes may take whose first training imports the library."""
ALIKE = (EQUAL, EQUAL)
SKIP: dict[str, Any] = {"half": True, "valid": ALIKE, "overflow_at": [4], "epochs": 2, "planned": 4}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "windows cross epochs": {"plugin": {"sync_with_dataloader": False}, "epochs": 2},
    "global": {"normalise": "global"},
    "bare": {"normalise": "bare"},
    "bare, alike": {"normalise": "bare", "valid": ALIKE},
    "clip in every": {"clip": "every", "valid": ALIKE},
    "each batch reduced": {"plugin": {"sync_each_batch": True}, "valid": ALIKE},
    "uneven": {"uneven": 15},
    "fused skip": {
        "half": True,
        "valid": ALIKE,
        "overflow_at": [4],
        "epochs": 2,
        "fused": True,
        "planned": 4,
    },
    "scaler's skip": {"half": True, "valid": ALIKE, "overflow_at": [4], "epochs": 2, "planned": 4},
}


class Runs:
    """Each case is trained once, in one process or in two."""

    def __init__(self, folder: Path, pair: Pair) -> None:
        self._folder, self._pair = folder, pair
        self._known: dict[tuple[str, int], Judged] = {}

    def folder(self, case: str, ranks: int) -> Path:
        return self._folder / f"{ranks} {case}" / "run"

    def judged(self, case: str, ranks: int) -> Judged:
        if (case, ranks) not in self._known:
            folder = self.folder(case, ranks)
            self.train(case, ranks, str(folder.parent))
            assert faults(folder) == []
            self._known[case, ranks] = judged(folder)
        return self._known[case, ranks]

    def train(self, case: str, ranks: int, folder: str) -> None:
        if case == "healthy" and ranks == 1:
            healthy(folder)
        elif case == "healthy":
            self._pair.call("tests.runtimes.accelerate:healthy", timeout=IMPORTS, folder=folder)
        elif ranks == 1:
            train(folder, **CASES[case])
        else:
            self._pair.call("tests.runtimes.accelerate:train", timeout=IMPORTS, folder=folder, **CASES[case])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, pair: Pair) -> Runs:
    return Runs(tmp_path_factory.mktemp("accelerate"), pair)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_healthy_run_is_silent(runs: Runs, ranks: int) -> None:
    run = runs.judged("healthy", ranks)
    assert run.findings == {}
    assert run.totals == pytest.approx([1.0] * 4, abs=1e-6)
    word = "ZFBFBFBCOS" if ranks == 1 else "ZfbfbFBCOSS"
    assert words(runs.folder("healthy", ranks)) == [word] * 4 * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_run_says_what_made_it(runs: Runs, ranks: int) -> None:
    runs.judged("healthy", ranks)
    with accumaudit.Ledger.open(runs.folder("healthy", ranks)) as ledger:
        run = next(iter(ledger.runs))
    assert run["runtime"] == "accelerate"
    assert "accelerate" in str(run["versions"])
    assert run["scheduler_steps_per_update"] == ranks
    assert run["accumulation_steps"] == STEPS
    assert run["wrapper"] == ("none" if ranks == 1 else "ddp")
    ended = marks(runs.folder("healthy", ranks), "end_of_data")
    assert [mark["attempt_id"] for mark in ended] == [2, 4] * ranks


# The table of measured weights; over two ranks.


def test_means_of_means_and_a_tail_of_the_full_divisor(runs: Runs) -> None:
    run = runs.judged("default", 2)
    assert run.totals == pytest.approx([1.0, 1.0, 0.6667], abs=5e-4)
    assert run.spread(full=2) == pytest.approx((0.535, 3.917), abs=5e-4)
    assert {code: found[:2] for code, found in run.alarms.items()} == {
        "ACC101": ("error", 3),
        "ACC102": ("error", 1),
    }


def test_windows_that_cross_epochs(runs: Runs) -> None:
    run = runs.judged("windows cross epochs", 2)
    assert run.totals == pytest.approx([1.0] * 5, abs=5e-4)
    assert run.alarms.keys() == {"ACC102", "ACC103"}
    assert run.findings["ACC206"][:2] == ("note", 3)
    assert run.findings["ACC205"][:2] == ("note", 5)
    closed = marks(runs.folder("windows cross epochs", 2), "close")
    assert [mark["leftover_microbatches"] for mark in closed] == [1, 1]
    assert words(runs.folder("windows cross epochs", 2))[2] == "Zfbfb|FBOSS"


def test_the_recipe_for_tokens_is_right(runs: Runs) -> None:
    run = runs.judged("global", 2)
    assert run.totals == pytest.approx([1.0] * 3, abs=5e-4)
    assert run.spread(full=3) == pytest.approx((1.0, 1.0), abs=5e-4)
    assert run.findings == {}


def test_a_backward_that_divides_nothing(runs: Runs) -> None:
    assert runs.judged("bare", 2).totals == pytest.approx([3.0, 3.0, 2.0], abs=5e-4)
    run = runs.judged("bare, alike", 2)
    assert run.totals == pytest.approx([3.0, 3.0], abs=5e-4)
    assert run.alarms == {"ACC104": Found("error", 1, 2)}


# What else goes wrong.


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_clip_in_every_micro_step(runs: Runs, ranks: int) -> None:
    assert runs.judged("clip in every", ranks).alarms == {"ACC401": Found("error", 1, 2 * ranks)}


def test_reducing_every_batch_costs_communication_alone(runs: Runs) -> None:
    run = runs.judged("each batch reduced", 2)
    assert run.findings == {"ACC504": Found("note", 1, 2)}
    assert run.totals == pytest.approx([1.0, 1.0], abs=5e-4)


def test_rows_that_are_given_twice_so_that_ranks_are_even(runs: Runs) -> None:
    run = runs.judged("uneven", 2)
    assert run.findings["ACC811"] == Found("note", 3, 1)
    ended = marks(runs.folder("uneven", 2), "end_of_data")
    assert [mark["repeated_samples"] for mark in ended] == [3, 3]
    assert "ACC811" not in runs.judged("uneven", 1).findings


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_skip_inside_a_fused_kernel_that_is_taken_for_an_update(runs: Runs, ranks: int) -> None:
    # huggingface/accelerate#4242: whether step() was called is asked, and the kernel skips by itself.
    run = runs.judged("fused skip", ranks)
    assert run.alarms == {"ACC302": Found("error", 2, 1)}
    seen = updates(runs.folder("fused skip", ranks))[1]
    assert (seen["optimizer_step_skipped"], seen["skip_evidence"]) == (True, "found_inf")
    assert (seen["grad_scale"], seen["grad_scale_after"]) == (1024.0, 512.0)
    assert seen["scheduler_step"] == 2 * ranks


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_schedule_is_held_where_the_scaler_itself_skips(runs: Runs, ranks: int) -> None:
    assert runs.judged("scaler's skip", ranks).findings == {}
    seen = updates(runs.folder("scaler's skip", ranks))[1]
    assert seen["events"].endswith("XG")
    assert seen["skip_evidence"] == "scaler"
    assert seen["scheduler_step"] == ranks


def test_the_runtime_says_nothing_of_a_fused_skip(tmp_path: Path) -> None:
    said, moved = [], []

    def note(loop: Loop) -> None:
        said.append(loop.accelerator.optimizer_step_was_skipped)
        moved.append(loop.scheduler.scheduler.last_epoch)

    with fresh(gradient_accumulation_steps=STEPS) as accelerator:
        from tests.runtimes.accelerate import data_of, fp16

        fp16(accelerator)
        loop = Loop(accelerator, tmp_path / "run", data=data_of([EQUAL]), overflow_at=[4], fused=True)
        loop.after_update = note
        loop.train()
    assert said == [False, False]
    assert moved == [1, 2]


# What every adapter keeps.


@pytest.mark.parametrize("case", ["default", "fused skip"])
def test_parameters_are_the_same_bit_by_bit(case: str, tmp_path: Path, pair: Pair) -> None:
    recorded = train(str(tmp_path), **CASES[case])
    assert recorded == train(str(tmp_path), audited=False, **CASES[case])
    assert all(map(math.isfinite, recorded))
    both = [
        pair.call(
            "tests.runtimes.accelerate:train",
            timeout=IMPORTS,
            folder=str(tmp_path / "2"),
            audited=on,
            **CASES[case],
        )
        for on in (True, False)
    ]
    assert both[0] == both[1]


def test_closing_leaves_no_trace(tmp_path: Path) -> None:
    from accelerate import Accelerator  # type: ignore[import-untyped]  # it ships no types
    from accelerate.data_loader import DataLoaderStateMixin  # type: ignore[import-untyped]  # likewise

    owners = {Accelerator: ("_do_sync", "backward", "save_state"), DataLoaderStateMixin: ("begin", "end")}
    before = [vars(owner)[name] for owner, names in owners.items() for name in names]
    with fresh() as accelerator:
        loop = Loop(accelerator, tmp_path / "run")
        attributes = [set(vars(thing)) for thing in (accelerator, loop.optimizer, loop.scheduler, loop.data)]
        with loop.attach():
            during = [vars(owner)[name] for owner, names in owners.items() for name in names]
        assert [
            set(vars(thing)) for thing in (accelerator, loop.optimizer, loop.scheduler, loop.data)
        ] == attributes
        assert not loop.model._forward_hooks
        assert not loop.model._forward_pre_hooks
        assert not loop.optimizer.optimizer._optimizer_step_pre_hooks
        assert not loop.optimizer.optimizer._optimizer_step_post_hooks
    assert not any(one is another for one, another in zip(before, during, strict=True))
    assert [vars(owner)[name] for owner, names in owners.items() for name in names] == before
    assert not patches._class_patches


def test_nothing_is_kept_of_a_training_that_is_over(tmp_path: Path) -> None:
    with fresh(gradient_accumulation_steps=STEPS) as accelerator:
        loop = Loop(accelerator, tmp_path / "run")
        loop.train()
    kept = [weakref.ref(each) for each in (loop.inner, loop.optimizer.optimizer, loop.audit)]
    del loop, accelerator
    gc.collect()
    assert [each() for each in kept] == [None, None, None]


def test_attaching_twice_is_an_error(tmp_path: Path) -> None:
    with fresh() as accelerator:
        loop = Loop(accelerator, tmp_path / "run")
        with loop.attach(), pytest.raises(ValueError, match="attached already"):
            loop.attach()


def test_an_engine_of_deepspeed_is_refused(tmp_path: Path) -> None:
    from accelerate.utils import DistributedType  # type: ignore[import-untyped]  # likewise

    with fresh() as accelerator:
        loop = Loop(accelerator, tmp_path / "run")
        accelerator.state.distributed_type = DistributedType.DEEPSPEED
        with pytest.raises(ValueError, match="attach_deepspeed"):
            loop.attach()


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUMAUDIT", "0")
    train(str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_a_version_without_a_method_loses_its_field_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator
    from accelerate.data_loader import DataLoaderShard, DataLoaderStateMixin

    monkeypatch.delattr(Accelerator, "save_state")
    # The data loader calls it: another class has it in that version.
    monkeypatch.setattr(DataLoaderShard, "end", DataLoaderStateMixin.end, raising=False)
    monkeypatch.delattr(DataLoaderStateMixin, "end")
    train(str(tmp_path))
    told = [mark["name"] for mark in marks(tmp_path / "run", "not_recorded")]
    assert [text.partition(" has ")[2] for text in told] == [
        "no Accelerator.save_state: no record of checkpoints",
        "no DataLoaderStateMixin.end: no record of ends of the data",
    ]
    assert words(tmp_path / "run") == ["ZFBFBFBOS", "ZFBFBFBOS", "ZFBFBOS"]
    assert faults(tmp_path / "run") == []


def test_accumulation_that_changes_while_it_trains(tmp_path: Path) -> None:
    def change(loop: Loop) -> None:
        loop.accelerator.gradient_accumulation_steps = 2

    with fresh(gradient_accumulation_steps=STEPS) as accelerator:
        loop = Loop(accelerator, tmp_path / "run")
        loop.after_update = change
        loop.train()
    seen = [(update["accumulation_steps"], update["microbatches"]) for update in updates(tmp_path / "run")]
    assert seen == [(3, 3), (2, 1), (2, 2), (2, 2)]


@pytest.mark.parametrize("ranks", [2])
def test_a_batch_that_is_split_over_the_ranks(ranks: int, tmp_path: Path, pair: Pair) -> None:
    pair.call("tests.runtimes.accelerate:split", folder=str(tmp_path))
    run = judged(tmp_path / "run")
    assert run.alarms == {}
    assert words(tmp_path / "run") == ["ZfbfbFBOS"] * 2 * ranks


def test_a_run_that_is_resumed_goes_on_counting(tmp_path: Path) -> None:
    with fresh(gradient_accumulation_steps=STEPS) as accelerator:
        first = Loop(accelerator, tmp_path / "run")
        with first.attach() as audit:
            accelerator.register_for_checkpointing(audit)
            first.epoch()
            accelerator.save_state(str(tmp_path / "state"))
    with fresh(gradient_accumulation_steps=STEPS) as accelerator:
        second = Loop(accelerator, tmp_path / "run")
        with second.attach() as audit:
            accelerator.register_for_checkpointing(audit)
            accelerator.load_state(str(tmp_path / "state"))
            second.epoch()
    counted = [(update["optimizer_update_id"], update["epoch"]) for update in updates(tmp_path / "run")]
    assert sorted(counted) == [(1, 1), (2, 1), (3, 1), (4, 2), (5, 2), (6, 2)]
    assert [mark["name"] for mark in marks(tmp_path / "run", "checkpoint")] == ["state"]
    state = torch.load(tmp_path / "state" / "custom_checkpoint_0.pkl", weights_only=True)
    assert state["optimizers"] == [{"updates": 3, "micro_steps": 8}]
    assert judged(tmp_path / "run").alarms.keys() == {"ACC101", "ACC102"}


def test_its_device_mesh_is_the_layout(tmp_path: Path) -> None:
    with fresh() as accelerator:
        loop = Loop(accelerator, tmp_path)
        names, place = ("dp_shard", "cp"), [0, 0]
        accelerator.state.device_mesh = SimpleNamespace(
            mesh_dim_names=names, shape=(1, 1), get_coordinate=lambda: place
        )
        loop.attach().close()
    (run,) = [entry for entry in read_records(tmp_path) if entry["record"] == "run"]
    assert (run["data_parallel_size"], run["context_rank"], run["context_size"]) == (1, 0, 1)
