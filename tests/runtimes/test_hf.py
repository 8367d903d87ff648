"""The callback of transformers.Trainer: what it is told, what it leaves behind, and what ends a training."""

from __future__ import annotations

import copy
import functools
import gc
import itertools
import json
import logging
import math
import pickle
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer
from transformers.trainer_pt_utils import LabelSmoother

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from accumaudit.hooks import hf_trainer
from accumaudit.hooks.hf_trainer import AccumauditCallback
from accumaudit.testing import assert_clean
from tests.loops import read_records
from tests.processes import Pair
from tests.recorded import faults, marks, updates, words
from tests.runtimes import hf
from tests.runtimes.hf import On

pytestmark = pytest.mark.slow  # transformers takes seconds to import

HAS_EPOCHS: Final = hasattr(Trainer, "_run_epoch")
"""The version's loop over an epoch is a method of its own, so that all exceptions in it are seen at once."""

WATCHED: Final = [
    (Trainer, "_run_epoch" if HAS_EPOCHS else "training_step"),
    (Trainer, "get_batch_samples"),
    (Trainer, "log"),
    (LabelSmoother, "__call__"),
    (torch.autograd, "backward"),
    (torch._C._nn, "cross_entropy_loss"),
]


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    with hf.quiet():
        yield


def found(folder: Path) -> dict[str, Any]:
    """Findings of every severity, by code."""
    with accumaudit.Ledger.open(folder) as ledger:
        [report] = ledger.check().runs
    return {verdict.code: verdict for verdict in report.with_status(FAILED)}


def standing() -> list[Any]:
    return [getattr(owner, name) for owner, name in WATCHED]


# what it is told


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_healthy_training_is_clean(ranks: int, pair: Pair, tmp_path: Path) -> None:
    if ranks == 1:
        hf.healthy(str(tmp_path))
    else:
        pair.call(f"{hf.__name__}:healthy", folder=str(tmp_path))
    assert_clean(tmp_path, judged=["ACC101", "ACC102", "ACC104", "ACC106", "ACC303", "ACC802", "ACC810"])
    assert faults(tmp_path) == []
    run = read_records(tmp_path)[0]
    assert (run["runtime"], run["wrapper"]) == ("transformers", "none" if ranks == 1 else "ddp")
    assert {"transformers", "accelerate", "torch"} <= set(run["versions"])
    assert (run["accumulation_steps"], run["max_grad_norm"], run["gradient_divisor"]) == (3, 1.0, ranks)
    first = [record for record in updates(tmp_path) if record["rank"] == 0]
    assert [record["epoch"] for record in first] == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert [record["reported_global_step"] for record in first] == list(range(1, 10))
    whole, tail = ("ZFBFBFBCOS", "ZFBFBCOS") if ranks == 1 else ("ZfbfbFBCOS", "ZfbFBCOS")
    assert [record["events"] for record in first] == [whole, whole, tail] * 3
    of_rank = [mark for mark in marks(tmp_path, "end_of_data", "epoch_end", "eval") if mark["rank"] == 0]
    assert [(mark["kind"], mark["attempt_id"]) for mark in of_rank] == [
        (kind, attempt) for attempt in (3, 6, 9) for kind in ("end_of_data", "epoch_end", "eval")
    ]
    names = [mark["name"] for mark in marks(tmp_path, "checkpoint") if mark["rank"] == 0]
    assert names == [f"checkpoint-{step}" for step in (2, 4, 6, 8, 9)]
    declared = json.loads(marks(tmp_path, "declare")[0]["name"])
    assert declared == {"planned_updates": 9, "warmup_updates": 2, "peak_learning_rate": 0.01}


def test_metrics_join_the_logs(tmp_path: Path) -> None:
    """Every callback gets those of the last written update, and trainer_state.json keeps them."""
    recorder = hf.recording(tmp_path)
    logs_seen: list[dict[str, Any]] = []
    steps = itertools.count()

    def wait(**_kwargs: Any) -> None:
        last, patience = next(steps), time.monotonic() + 30
        while last and written() < last and time.monotonic() < patience:
            time.sleep(0.01)

    def written() -> float:
        assert recorder.audit is not None
        return recorder.audit.metrics().get("accumaudit/optimizer_update_id", 0)

    hf.make_trainer(
        tmp_path,
        callbacks=[
            On("on_log", lambda logs, **_: logs_seen.append(dict(logs))),
            recorder,
            On("on_step_end", wait),
        ],
        save_strategy="epoch",
        eval_strategy="epoch",
    ).train()
    trained = [entry for entry in logs_seen if "loss" in entry]
    assert [entry.get("accumaudit/optimizer_update_id") for entry in trained] == [None, 1, 2, 3, 4, 5]
    assert "accumaudit/grad_norm_before_clip" in trained[-1]
    assert all(math.isfinite(value) for entry in logs_seen for value in entry.values())
    assert not any("accumaudit/rank" in entry for entry in logs_seen if "loss" not in entry)
    state = json.loads((tmp_path / "out" / "checkpoint-6" / "trainer_state.json").read_text())
    kept = [entry.get("accumaudit/optimizer_update_id") for entry in state["log_history"] if "loss" in entry]
    assert kept == [None, 1, 2, 3, 4, 5]
    assert not any("Accumaudit" in name for name in state["stateful_callbacks"])


def test_input_tokens_are_named_as_such(tmp_path: Path) -> None:
    trainer = hf.make_trainer(
        tmp_path, callbacks=[hf.recording(tmp_path)], include_num_input_tokens_seen=True
    )
    trainer.train()
    counts = [record["cumulative_train_tokens"] for record in updates(tmp_path)]
    assert counts == [72, 144, 192, 264, 336, 384]
    verdicts = found(tmp_path)
    assert set(verdicts) == {"ACC807"}
    assert "input positions" in verdicts["ACC807"].finding.message


def test_a_loss_is_reported_where_it_is_that_of_one_update(tmp_path: Path) -> None:
    hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], logging_steps=2).train()
    assert [record.get("reported_loss") for record in updates(tmp_path)] == [None] * 6


def test_evaluation_and_prediction_are_none_of_it(tmp_path: Path) -> None:
    """Between updates, before the first one and after training."""
    trainer = hf.make_trainer(
        tmp_path, callbacks=[hf.recording(tmp_path)], eval_strategy="steps", eval_steps=1, eval_on_start=True
    )
    trainer.train()
    before = [record["events"] for record in updates(tmp_path)]
    trainer.evaluate()
    trainer.predict(trainer.eval_dataset)
    assert words(tmp_path) == before == ["ZFBFBFBCOS", "ZFBFBFBCOS", "ZFBFBCOS"] * 2
    assert_clean(tmp_path)


@pytest.mark.parametrize("log", ["ledger", "trainer_state.json"])
def test_early_stopping_is_no_more_than_noted(log: str, tmp_path: Path) -> None:
    stop = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=1e9)
    trainer = hf.make_trainer(
        tmp_path / "ledger",
        callbacks=[hf.recording(tmp_path / "ledger"), stop],
        num_train_epochs=10,
        eval_strategy="epoch",
        metric_for_best_model="loss",
        logging_steps=1,
    )
    trainer.train()
    trainer.save_state()
    assert len(updates(tmp_path / "ledger")) == 6
    place = tmp_path / "ledger" if log == "ledger" else tmp_path / "ledger" / "out" / log
    (run,) = check_paths([place]).runs
    noted = {
        verdict.code: verdict for verdict in run.with_status(FAILED) if verdict.code in ("ACC305", "ACC808")
    }
    assert [(code, verdict.severity) for code, verdict in noted.items()] == [("ACC808", "note")]
    assert noted["ACC808"].finding is not None
    assert "6 of 30 updates" in noted["ACC808"].finding.message
    assert noted["ACC808"].finding.message.endswith("as early stopping does")


def test_data_left_early_have_not_ended(tmp_path: Path) -> None:
    hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], max_steps=4).train()
    assert [(m["kind"], m["attempt_id"]) for m in marks(tmp_path, "end_of_data", "epoch_end")] == [
        ("end_of_data", 3),
        ("epoch_end", 3),
        ("epoch_end", 4),
    ]
    assert_clean(tmp_path)


def test_labels_that_are_no_tokens_tell_no_weight(tmp_path: Path) -> None:
    """A regression's are numbers: the loss that the model returns is a mean of squares."""
    trainer = hf.make_trainer(
        tmp_path,
        callbacks=[hf.recording(tmp_path, labels="labels")],
        model=hf.regressor,
        make_rows=hf.measured,
    )
    trainer.train()
    assert all(record["weight_source"] is None for record in updates(tmp_path))
    assert_clean(tmp_path)


def test_options_are_those_of_attach(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="acumulation_steps"):
        AccumauditCallback(acumulation_steps=3)
    with pytest.raises(ValueError, match="microbatch_detail"):
        AccumauditCallback(microbatch_detail="none")
    with pytest.raises(TypeError, match="give no dataloader"):
        AccumauditCallback(dataloader=[1])


# several launches


def test_a_resumed_training_counts_on(tmp_path: Path) -> None:
    for resume in (False, True):
        options: dict[str, Any] = {
            "num_train_epochs": 2,
            "save_strategy": "steps",
            "save_steps": 2,
            "warmup_steps": 1,
        }
        stop = On("on_step_end", lambda **_: interrupt(), step=None if resume else 5)
        callbacks = [hf.recording(tmp_path), *([] if resume else [stop])]
        trainer = hf.make_trainer(tmp_path, callbacks=callbacks, **options)
        if resume:
            trainer.train(resume_from_checkpoint=True)
        else:
            with pytest.raises(KeyboardInterrupt):
                trainer.train()
    ids = [record["optimizer_update_id"] for record in updates(tmp_path)]
    assert sorted(ids) == [1, 2, 3, 4, 5, 5, 6]
    with accumaudit.Ledger.open(tmp_path) as ledger:
        rows = list(ledger.sql("SELECT launch, optimizer_update_id AS id, epoch FROM windows ORDER BY id"))
        closed = [
            row["reason"]
            for row in ledger.sql("SELECT reason FROM marks WHERE kind = 'close' ORDER BY place")
        ]
    assert [(row["launch"], row["id"], row["epoch"]) for row in rows] == [
        *((1, step, 1 if step < 4 else 2) for step in range(1, 5)),
        (2, 5, 2),
        (2, 6, 2),
    ]
    assert sorted(closed) == ["closed", "exception"]
    assert [mark["attempt_id"] for mark in marks(tmp_path, "resume")] == [0]
    assert_clean(tmp_path)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_optimizer_without_a_count_goes_on_from_the_trainers(tmp_path: Path) -> None:
    options: dict[str, Any] = {"optim": "sgd", "save_strategy": "steps", "save_steps": 3}
    hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], max_steps=3, **options).train()
    trainer = hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], **options)
    trainer.train(resume_from_checkpoint=True)
    assert sorted(record["optimizer_update_id"] for record in updates(tmp_path)) == [1, 2, 3, 4, 5, 6]


def test_train_called_twice(tmp_path: Path) -> None:
    """The second call begins a schedule anew, with the optimizer of the first."""
    trainer = hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], save_strategy="epoch")
    trainer.train()
    trainer.train()
    assert sorted(record["optimizer_update_id"] for record in updates(tmp_path)) == list(range(1, 13))
    assert_clean(tmp_path)
    assert faults(tmp_path) == []


# what it leaves behind


def test_everything_is_undone(tmp_path: Path) -> None:
    before = standing()
    trainer = hf.make_trainer(
        tmp_path,
        callbacks=[hf.recording(tmp_path), On("on_step_end", lambda **_: during.append(standing()))],
        label_smoothing_factor=0.1,
    )
    during: list[Any] = []
    trainer.train()
    assert all(a is not b for a, b in zip(before, during[0], strict=True))
    assert all(a is b for a, b in zip(before, standing(), strict=True))
    assert hf_trainer._trainings == []
    for module in trainer.model.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    optimizer = trainer.optimizer.optimizer
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(parameter._post_accumulate_grad_hooks for parameter in trainer.model.parameters())


class Experiment:
    """Trains in a method of its own, and deletes what it has trained."""

    def run(self, folder: Path) -> list[object]:
        trainer = hf.make_trainer(folder, callbacks=[hf.recording(folder)], max_steps=1)
        trainer.train()
        kept = [weakref.ref(each) for each in (trainer, trainer.model, trainer.optimizer.optimizer)]
        del trainer
        gc.collect()
        return [each() for each in kept]


def test_nothing_is_kept_of_a_training_that_is_over(tmp_path: Path) -> None:
    assert Experiment().run(tmp_path) == [None, None, None]


def test_the_folder_is_in_the_trainers_own(tmp_path: Path) -> None:
    hf.make_trainer(tmp_path, callbacks=[AccumauditCallback(summary=False)], max_steps=1).train()
    assert len(updates(tmp_path / "out" / "accumaudit")) == 1


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUMAUDIT", "0")
    before, during = standing(), []
    callbacks = [hf.recording(tmp_path), On("on_step_end", lambda **_: during.append(standing()))]
    trainer = hf.make_trainer(tmp_path, callbacks=callbacks, max_steps=2)
    trainer.train()
    assert during == [before, before]
    assert not list(tmp_path.glob("rank-*"))


def test_checkpoints_load_where_accumaudit_is_not_installed(tmp_path: Path) -> None:
    hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], save_strategy="epoch").train()
    script = """
import sys
sys.modules["accumaudit"] = None
from pathlib import Path
import torch
from transformers import LlamaForCausalLM, TrainerState
folder = Path(sys.argv[1])
LlamaForCausalLM.from_pretrained(folder)
print(TrainerState.load_from_json(str(folder / "trainer_state.json")).global_step)
for file in ("optimizer.pt", "scheduler.pt", "training_args.bin"):
    torch.load(folder / file, weights_only=False)
"""
    folder = tmp_path / "out" / "checkpoint-6"
    done = subprocess.run(
        [sys.executable, "-c", script, str(folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "6"


def test_a_copy_waits_for_a_training_of_its_own(tmp_path: Path) -> None:
    callback = hf.recording(tmp_path)
    copies: list[Any] = []

    def take(**_kwargs: Any) -> None:
        copies.append(copy.deepcopy(callback))
        copies.append(pickle.loads(pickle.dumps(callback)))  # noqa: S301 - our own

    hf.make_trainer(tmp_path, callbacks=[callback, On("on_step_end", take)], max_steps=1).train()
    assert [copied.audit for copied in copies] == [None, None]
    hf.make_trainer(tmp_path / "other", callbacks=[copies[0]], max_steps=1).train()
    assert len(updates(tmp_path)) == 2


# two of them, exceptions, other versions


@pytest.mark.parametrize("same", [True, False])
def test_two_callbacks_are_one_recorder(same: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    callback = hf.recording(tmp_path)
    other = callback if same else hf.recording(tmp_path)
    with caplog.at_level(logging.WARNING, logger="accumaudit"):
        hf.make_trainer(tmp_path, callbacks=[callback, other], save_strategy="epoch").train()
    told = [record.getMessage() for record in caplog.records if record.name == "accumaudit"]
    assert len(told) == 1
    assert "two AccumauditCallbacks" in told[0]
    assert words(tmp_path) == ["ZFBFBFBCOS", "ZFBFBFBCOS", "ZFBFBCOS"] * 2
    assert len(marks(tmp_path, "checkpoint")) == len(marks(tmp_path, "epoch_end")) == 2
    assert [record["epoch"] for record in updates(tmp_path)] == [1, 1, 1, 2, 2, 2]
    assert_clean(tmp_path)


@pytest.mark.parametrize("place", ["forward", "on_step_end", "on_train_begin"])
def test_an_exception_ends_the_record(place: str, tmp_path: Path) -> None:
    """Inside the loop at once; outside it when another training begins."""
    before, armed = standing(), [True]

    def fail(*_args: Any, **_kwargs: Any) -> None:
        if armed:
            raise RuntimeError("out of luck")

    callbacks = [hf.recording(tmp_path), *([On(place, fail)] if place != "forward" else [])]
    trainer = hf.make_trainer(tmp_path, callbacks=callbacks)
    if place == "forward":
        trainer.model.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        trainer.train()
    seen = place == "forward" or (place == "on_step_end" and HAS_EPOCHS)
    assert (standing() == before) is seen
    armed.clear()
    trainer.train()
    assert standing() == before
    assert sorted((mark["reason"], mark["finished"]) for mark in marks(tmp_path, "close")) == [
        ("closed", True),
        ("exception", False),
    ]
    assert len(updates(tmp_path)) == 6 + (place == "on_step_end")
    assert faults(tmp_path) == []


@pytest.mark.skipif(not HAS_EPOCHS, reason="the version's loop is one method, which runs already")
@pytest.mark.parametrize("place", ["_evaluate", "_finalize_training"])
def test_an_exception_before_and_after_the_epochs_ends_the_record(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: Any, **_kwargs: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Trainer, place, fail)
    before = standing()
    trainer = hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], max_steps=1, eval_on_start=True)
    if place != "_evaluate":
        trainer.args.eval_on_start = False
    with pytest.raises(KeyboardInterrupt):
        trainer.train()
    assert standing() == before
    assert [mark["reason"] for mark in marks(tmp_path, "close")] == ["exception"]


@pytest.mark.skipif(not HAS_EPOCHS, reason="the version's loop is one method, which runs already")
def test_a_callback_that_is_kept_keeps_no_model(tmp_path: Path) -> None:
    callback = hf.recording(tmp_path)

    def fail(**_kwargs: Any) -> None:
        raise KeyboardInterrupt

    trainer = hf.make_trainer(tmp_path, callbacks=[callback, On("on_step_end", fail)])
    with pytest.raises(KeyboardInterrupt) as raised:
        trainer.train()
    model = weakref.ref(trainer.model)
    del trainer, raised
    gc.collect()
    assert model() is None


def test_a_trainer_inside_anothers_training(tmp_path: Path) -> None:
    def inside(**_kwargs: Any) -> None:
        folder = tmp_path / "inner"
        hf.make_trainer(folder, callbacks=[hf.recording(folder)], max_steps=1).train()

    outer = tmp_path / "outer"
    callbacks = [hf.recording(outer), On("on_step_end", inside, step=2)]
    hf.make_trainer(outer, callbacks=callbacks, num_train_epochs=1).train()
    assert words(tmp_path / "inner") == ["ZFBFBFBCOS"]
    assert [word.replace("o", "") for word in words(outer)] == ["ZFBFBFBCOS", "ZFBFBFBCOS", "ZFBFBCOS"]
    assert_clean(outer)


class Renamed(Trainer):
    """A version whose class has no such method."""

    get_batch_samples = property(lambda self: functools.partial(Trainer.get_batch_samples, self))


def test_a_version_without_a_method_trains_on(tmp_path: Path) -> None:
    hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], trainer=Renamed).train()
    [mark] = marks(tmp_path, "not_recorded")
    assert "Renamed.get_batch_samples: no record of the tokens that it counts" in mark["name"]
    assert words(tmp_path) == ["ZFBFBFBCOS", "ZFBFBFBCOS", "ZFBFBCOS"] * 2
    assert "global_valid_tokens_in_update" not in updates(tmp_path)[0]


def test_what_cannot_be_attached_is_trained_all_the_same(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "rank-00").write_text("not a folder")
    trainer = hf.make_trainer(tmp_path, callbacks=[hf.recording(tmp_path)], max_steps=1)
    assert trainer.train().global_step == 1
    assert "this training is not recorded" in caplog.text


# scaled losses


@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch"])
def test_a_skip_inside_a_fused_kernel(optim: str, tmp_path: Path) -> None:
    """accelerate takes the attempt for an update where the kernel skips, and Trainer moves the schedule."""
    hf.train_scaled(optim, str(tmp_path))
    records, fused = updates(tmp_path), optim == "adamw_torch_fused"
    healthy = "ZFBFBFBUCOGS"
    skipped = "ZFBFBFBUCXGS" if fused else "ZFBFBFBUCXG"
    assert [record["events"] for record in records[:2]] == [healthy, skipped]
    assert records[1]["skip_evidence"] == ("found_inf" if fused else "scaler")
    assert [record["optimizer_update_id"] for record in records] == [1, 1, 2, 3, 4, 5]
    assert all(math.fsum(record["loss_weight"]) == pytest.approx(1.0, abs=1e-5) for record in records)
    verdicts = found(tmp_path)
    assert set(verdicts) == ({"ACC302", "ACC804"} if fused else {"ACC804"})
    if fused:
        [example] = verdicts["ACC302"].finding.examples
        assert (verdicts["ACC302"].severity, example.attempt_id) == ("error", 2)
