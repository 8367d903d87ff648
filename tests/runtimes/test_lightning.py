"""Lightning: each way to train with it measures what it really does, and its faults are found."""

from __future__ import annotations

import logging
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import accumaudit
from accumaudit.hooks import patches
from accumaudit.hooks.lightning_callback import AccumauditCallback
from tests.processes import CHECKOUT, Pair
from tests.recorded import faults, marks, updates, words
from tests.runtimes.ledgers import Found, Judged, judged
from tests.runtimes.lightning import (
    PACKAGES,
    fit,
    fp16,
    healthy,
    library,
    loader,
    make_module,
    make_trainer,
    manual,
    quiet,
)
from tests.runtimes.rows import BATCH, EQUAL, STEPS

pytestmark = pytest.mark.slow  # lightning takes seconds to import

IMPORTS = 200.0
"""Seconds that processes may take whose first training imports the library."""
EACH_STEP = {"schedule": {"interval": "step"}}


@pytest.fixture(autouse=True)
def _calm() -> None:
    """It tells of hardware that there is none of."""
    for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)


def trained(folder: Path, **options: Any) -> Judged:
    """Train, and judge it."""
    fit(str(folder), **options)
    assert faults(folder / "run") == []
    return judged(folder / "run")


def trained_by_two(pair: Pair, folder: Path, function: str = "fit", **options: Any) -> Judged:
    """The same in two processes, whose parameters must agree."""
    first, second = pair.call(
        f"tests.runtimes.lightning:{function}", timeout=IMPORTS, folder=str(folder), **options
    )
    assert first == second
    assert faults(folder / "run") == []
    return judged(folder / "run")


def at_each_batch_end(action: Callable[..., None]) -> Any:
    """A callback of the training's own."""
    return library(f"{PACKAGES[0]}.callbacks").LambdaCallback(on_train_batch_end=action)


# Healthy runs.


@pytest.mark.parametrize("package", PACKAGES)
def test_a_healthy_run_is_silent(package: str, tmp_path: Path) -> None:
    healthy(str(tmp_path), package=package)
    run = judged(tmp_path / "run")
    assert run.findings == {}
    assert run.totals == pytest.approx([1.0] * 4, abs=1e-6)
    assert words(tmp_path / "run") == ["ZFBFBFBCOS"] * 4
    assert [update["reported_global_step"] for update in updates(tmp_path / "run")] == [1, 2, 3, 4]
    assert [update["epoch"] for update in updates(tmp_path / "run")] == [1, 1, 2, 2]
    assert all(update["samples"] == [BATCH] * STEPS for update in updates(tmp_path / "run"))
    assert all(None not in update["data_digest"] for update in updates(tmp_path / "run"))


def test_a_healthy_run_of_two_processes_is_silent(tmp_path: Path, pair: Pair) -> None:
    run = trained_by_two(pair, tmp_path, "healthy")
    assert run.findings == {}
    assert run.totals == pytest.approx([1.0] * 4, abs=1e-6)
    assert words(tmp_path / "run") == ["ZfbfbFBCOS"] * 8


def test_a_sharded_model_is_silent(tmp_path: Path, pair: Pair) -> None:
    run = trained_by_two(pair, tmp_path, "sharded")
    assert run.alarms == {}
    assert run.totals == pytest.approx([1.0] * 4, abs=1e-6)
    assert words(tmp_path / "run") == ["ZFBFBFBOS"] * 8
    with accumaudit.Ledger.open(tmp_path / "run") as ledger:
        assert {run["wrapper"] for run in ledger.runs} == {"fsdp2"}


def test_the_run_says_what_made_it(tmp_path: Path) -> None:
    healthy(str(tmp_path))
    with accumaudit.Ledger.open(tmp_path / "run") as ledger:
        [run] = ledger.runs
    assert run["runtime"] == "lightning"
    assert "lightning" in str(run["versions"])
    assert (run["accumulation_steps"], run["max_grad_norm"]) == (STEPS, 1.0)
    assert (run["planned_updates"], run["scheduler_class"]) == (4, "LambdaLR")
    assert [mark["attempt_id"] for mark in marks(tmp_path / "run", "end_of_data")] == [2, 4]
    assert [mark["finished"] for mark in marks(tmp_path / "run", "close")] == [True]


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"precision": "bf16-mixed", "gradient_clip_val": 1.0}, "ZFBFBFBCO"),
        ({"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"}, "ZFBFBFBCO"),
        ({"traits": {"schedule": {"interval": "epoch"}}, "max_epochs": 4}, "ZFBFBFBO"),
        ({"max_steps": 1, "max_epochs": -1}, "ZFBFBFBO"),
        ({"limit_train_batches": 3}, "ZFBFBFBO"),
    ],
    ids=["bf16", "clip by value", "schedule of epochs", "max_steps", "limit_train_batches"],
)
def test_other_healthy_runs_are_silent(options: dict[str, Any], word: str, tmp_path: Path) -> None:
    run = trained(tmp_path, valid=EQUAL, **options)
    assert run.findings == {}
    assert words(tmp_path / "run")[0] == word
    assert all(total == pytest.approx(1.0, abs=0.002) for total in run.totals)


def test_half_precision_with_a_scaler(tmp_path: Path) -> None:
    run = trained(tmp_path, valid=EQUAL, plugins=[fp16()], gradient_clip_val=1.0, traits=EACH_STEP)
    assert run.findings == {}
    assert words(tmp_path / "run") == ["ZFBFBFBUCOGS"] * 2
    seen = updates(tmp_path / "run")[0]
    assert (seen["grad_scale"], seen["probe_unscale"]) == (1024.0, 1 / 1024)


def test_a_schedule_that_is_rarely_stepped_is_no_drift(tmp_path: Path) -> None:
    rare = {"schedule": {"interval": "step", "frequency": 2}}
    assert trained(tmp_path, valid=EQUAL, traits=rare, accumulate_grad_batches=1, max_epochs=2).findings == {}


def test_an_optimizer_that_searches(tmp_path: Path) -> None:
    run = trained(
        tmp_path, valid=EQUAL[:2], traits={"optimizer": torch.optim.LBFGS}, accumulate_grad_batches=1
    )
    assert run.findings == {}
    assert all(word.startswith("ZFB(ZFB") and word.endswith(")O") for word in words(tmp_path / "run"))


def test_manual_optimization_that_accumulates(tmp_path: Path) -> None:
    manual(str(tmp_path))
    assert judged(tmp_path / "run").findings == {}
    assert words(tmp_path / "run") == ["ZFBFBFBCOS"] * 4


def test_losses_with_a_backward_each_are_one_micro_step(tmp_path: Path) -> None:
    manual(str(tmp_path), terms=True, audit={"accumulation_steps": STEPS})
    assert judged(tmp_path / "run").alarms == {}
    assert words(tmp_path / "run") == ["ZFBBFBBFBBCOS"] * 4
    assert [update["samples"] for update in updates(tmp_path / "run")] == [[BATCH] * STEPS] * 4


def test_manual_optimization_of_two_optimizers(tmp_path: Path, pair: Pair) -> None:
    manual(str(tmp_path / "1"), adversaries=True)
    runs = judged(tmp_path / "1" / "run"), trained_by_two(pair, tmp_path / "2", "manual", adversaries=True)
    for number, run in enumerate(runs, 1):
        assert run.alarms == {}
        assert run.totals == pytest.approx([1.0] * 32, abs=1e-6)
        own = words(tmp_path / str(number) / "run", 0), words(tmp_path / str(number) / "run", 1)
        assert {word.strip("o") for word in own[0] + own[1]} == {"ZFBO"}


def test_validation_and_checkpoints_between(tmp_path: Path) -> None:
    loggers = library(f"{PACKAGES[0]}.loggers")
    logger = loggers.CSVLogger(tmp_path, flush_logs_every_n_steps=1)
    run = trained(
        tmp_path,
        valid=EQUAL,
        validation=loader(EQUAL, seed=9),
        max_epochs=2,
        num_sanity_val_steps=1,
        enable_checkpointing=True,
        logger=logger,
        log_every_n_steps=1,
    )
    assert run.findings == {}
    assert words(tmp_path / "run") == ["ZFBFBFBO"] * 4
    assert [mark["attempt_id"] for mark in marks(tmp_path / "run", "eval")] == [2, 4]
    saved = [(mark["attempt_id"], mark["name"]) for mark in marks(tmp_path / "run", "checkpoint")]
    assert saved == [(2, "epoch=0-step=2.ckpt"), (4, "epoch=1-step=4.ckpt")]
    logged = Path(logger.log_dir, "metrics.csv").read_text()
    assert "accumaudit/learning_rate" in logged
    assert "val_loss" in logged


# The table of measured weights.


def test_means_of_means_and_a_tail_of_the_full_divisor(tmp_path: Path, pair: Pair) -> None:
    run = trained_by_two(pair, tmp_path)
    assert run.totals == pytest.approx([1.0, 1.0, 0.6667], abs=5e-4)
    assert run.spread(full=2) == pytest.approx((0.656, 4.917), abs=5e-4)
    assert {code: found[:2] for code, found in run.alarms.items()} == {
        "ACC101": ("error", 3),
        "ACC102": ("error", 1),
    }


def test_a_tail_that_limit_train_batches_makes(tmp_path: Path, pair: Pair) -> None:
    run = trained_by_two(pair, tmp_path, limit_train_batches=4)
    assert run.totals == pytest.approx([1.0, 0.3333], abs=5e-4)
    assert run.alarms["ACC101"] == Found("error", 2, 1)


def test_accumulation_that_changes_with_the_epochs(tmp_path: Path) -> None:
    changes = library(f"{PACKAGES[0]}.callbacks").GradientAccumulationScheduler({0: 2, 1: 3})
    run = trained(tmp_path, accumulate_grad_batches=1, max_epochs=2, callbacks=[changes])
    assert run.totals == pytest.approx([1.0] * 6 + [0.6667], abs=5e-4)
    assert run.alarms["ACC101"] == Found("error", 7, 1)
    assert run.alarms.keys() == {"ACC101", "ACC102"}
    assert [update["accumulation_steps"] for update in updates(tmp_path / "run")] == [2] * 4 + [3] * 3


@pytest.mark.parametrize(
    ("batches", "word", "total"),
    [((2,), "ZFBFBO", 0.6667), ((0,), "ZFBFBO", 0.6667), ((0, 1, 2), "ZO", None)],
    ids=["at the boundary", "first", "in a whole window"],
)
def test_a_step_that_returns_none(
    batches: tuple[int, ...], word: str, total: float | None, tmp_path: Path
) -> None:
    run = trained(tmp_path, valid=EQUAL, traits={"none_at": batches})
    assert words(tmp_path / "run") == [word, "ZFBFBFBO"]
    assert run.totals[0] == (None if total is None else pytest.approx(total, abs=5e-4))
    assert run.alarms == ({} if total is None else {"ACC101": Found("error", 1, 1)})


# The faults that it has.


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_schedule_advances_on_a_skip(ranks: int, tmp_path: Path, pair: Pair) -> None:
    skips = {"valid": EQUAL, "max_epochs": 2, "traits": EACH_STEP | {"overflow_at": [4]}}
    if ranks == 1:
        run = trained(tmp_path, plugins=[fp16()], **skips)
    else:
        run = trained_by_two(pair, tmp_path, "half", **skips)
    assert run.alarms == {"ACC302": Found("error", 2, 1)}
    seen = updates(tmp_path / "run")[1]
    assert (seen["optimizer_step_skipped"], seen["skip_evidence"]) == (True, "scaler")
    assert (seen["scheduler_step"], seen["optimizer_update_id"], seen["reported_global_step"]) == (2, 1, 2)


@pytest.mark.parametrize("frequency", [2, 3])
def test_a_frequency_counts_batches_and_misses_tails(frequency: int, tmp_path: Path) -> None:
    traits = {"schedule": {"interval": "step", "frequency": frequency}}
    run = trained(tmp_path, max_epochs=3, traits=traits)
    assert run.alarms.keys() == {"ACC101", "ACC102", "ACC303"}
    assert run.alarms["ACC303"].severity == "error"
    with accumaudit.Ledger.open(tmp_path / "run") as ledger:
        [message] = [row["message"] for row in ledger.findings if row["code"] == "ACC303"]
    assert message.endswith(f"from update {3 if frequency == 3 else 4} on")


# What every adapter keeps.


@pytest.mark.parametrize("options", [{}, {"precision": "bf16-mixed", "gradient_clip_val": 0.1}])
def test_parameters_are_the_same_bit_by_bit(options: dict[str, Any], tmp_path: Path, pair: Pair) -> None:
    assert fit(str(tmp_path / "1"), **options) == fit(str(tmp_path / "1"), audited=False, **options)
    both = [
        pair.call(
            "tests.runtimes.lightning:fit", timeout=IMPORTS, folder=str(tmp_path / "2"), audited=on, **options
        )
        for on in (True, False)
    ]
    assert both[0] == both[1]


def test_a_search_moves_the_same_with_and_without(tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "valid": EQUAL[:2],
        "traits": {"optimizer": torch.optim.LBFGS},
        "accumulate_grad_batches": 1,
    }
    assert fit(str(tmp_path), **options) == fit(str(tmp_path), audited=False, **options)


def test_the_end_of_training_leaves_no_trace(tmp_path: Path) -> None:
    kind = library().Trainer
    before = vars(kind)["save_checkpoint"]
    seen: list[Any] = []
    callback = AccumauditCallback(tmp_path / "run", summary=False)
    look = at_each_batch_end(lambda *_: seen.append(vars(kind)["save_checkpoint"]))
    trainer = make_trainer(tmp_path, callbacks=[callback, look])
    module = make_module()
    with quiet():
        trainer.fit(module, loader(EQUAL))
    assert seen[0] is not before
    assert vars(kind)["save_checkpoint"] is before
    assert not patches._class_patches
    optimizer = trainer.optimizers[0]
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in module.modules())
    assert not any(parameter._post_accumulate_grad_hooks for parameter in module.parameters())
    assert callback.audit.recorder is None


def test_passed_twice_it_records_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, other = (AccumauditCallback(tmp_path / "run", summary=False) for _ in range(2))
    trainer = make_trainer(tmp_path, callbacks=[first, first, other])
    with quiet(), caplog.at_level(logging.WARNING, "accumaudit"):
        trainer.fit(make_module(), loader(EQUAL))
    assert words(tmp_path / "run") == ["ZFBFBFBO"] * 2
    assert len(list((tmp_path / "run").glob("rank-*/*.jsonl"))) == 1
    assert [record.message for record in caplog.records] == [
        "accumaudit: this callback was passed twice; the trainer calls it once",
        "accumaudit: these optimizers are recorded already; this callback does nothing",
    ]


def test_a_trainer_that_fits_twice(tmp_path: Path) -> None:
    callback = AccumauditCallback(summary=False)
    trainer = make_trainer(tmp_path, callbacks=[callback])
    module = make_module()
    with quiet():
        trainer.fit(module, loader(EQUAL))
        trainer.fit_loop.max_epochs = 2
        trainer.fit(module, loader(EQUAL))
    assert len(list((tmp_path / "accumaudit").glob("rank-*/*.jsonl"))) == 2
    assert words(tmp_path / "accumaudit") == ["ZFBFBFBO"] * 4
    assert judged(tmp_path / "accumaudit").alarms == {}


def test_an_exception_ends_the_record(tmp_path: Path) -> None:
    def fail(*arguments: Any) -> None:
        if arguments[-1] == 4:
            raise RuntimeError("of the loop")

    with pytest.raises(RuntimeError, match="of the loop"):
        fit(str(tmp_path), callbacks=[at_each_batch_end(fail)])
    [closed] = marks(tmp_path / "run", "close")
    assert (closed["reason"], closed["finished"], closed["leftover_microbatches"]) == ("exception", False, 2)
    assert not patches._class_patches


def test_switched_off_it_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCUMAUDIT", "0")
    fit(str(tmp_path))
    assert not (tmp_path / "run").exists()


def test_what_it_cannot_record_ends_no_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "run").write_text("a file")
    with caplog.at_level(logging.WARNING, "accumaudit"):
        fit(str(tmp_path))
    assert "this training is not recorded" in caplog.text


@pytest.mark.parametrize("options", [{"every": 0}, {"dataloader": []}, {"labels": "y"}, {"accumulation": 3}])
def test_wrong_options_are_told_where_they_are_given(options: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        AccumauditCallback(**options)


class Named(AccumauditCallback):
    """Made with other arguments."""

    def __init__(self, name: str) -> None:
        super().__init__(f"runs/{name}", every=2)
        self.name = name


def test_a_callback_of_ones_own_is_copied_as_it_is() -> None:
    callback = Named("first")
    for copied in (deepcopy(callback), pickle.loads(pickle.dumps(callback))):  # noqa: S301  # made here
        assert isinstance(copied, Named)
        assert vars(copied) | {"_audit": None} == vars(callback) | {"_audit": None}


def test_a_copy_records_nothing_by_itself(tmp_path: Path) -> None:
    library()
    callback = AccumauditCallback(tmp_path / "run", every=2)
    for copied in (deepcopy(callback), pickle.loads(pickle.dumps(callback))):  # noqa: S301  # made here
        assert type(copied) is type(callback)
        assert copied._options == {"every": 2}
        assert copied.audit.recorder is None


@pytest.mark.parametrize("package", PACKAGES)
def test_it_is_a_callback_of_every_package_that_is_imported(package: str) -> None:
    imported = library(package)
    assert isinstance(AccumauditCallback(), imported.Callback)


def test_it_needs_one_package_alone() -> None:
    code = (
        "import sys, warnings; warnings.simplefilter('ignore'); import pytorch_lightning;"
        "from accumaudit.hooks.lightning_callback import AccumauditCallback;"
        "assert isinstance(AccumauditCallback(), pytorch_lightning.Callback);"
        "assert 'lightning.pytorch' not in sys.modules"
    )
    environment = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=IMPORTS)


def checkpoint_of(folder: Path) -> Path:
    """A checkpoint saved while it is recorded."""
    saving = library(f"{PACKAGES[0]}.callbacks").ModelCheckpoint(dirpath=folder / "saved")
    fit(str(folder), valid=EQUAL, traits=EACH_STEP, enable_checkpointing=True, callbacks=[saving])
    [saved] = (folder / "saved").glob("*.ckpt")
    return saved


def test_a_checkpoint_loads_where_accumaudit_is_not(tmp_path: Path) -> None:
    saved = checkpoint_of(tmp_path)
    code = (
        "import sys; sys.modules['accumaudit'] = None; import torch;"
        f"print(torch.load({str(saved)!r}, weights_only=True)['accumaudit']['optimizers'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        timeout=IMPORTS,
    )
    assert done.stdout.strip() == "[{'updates': 2, 'micro_steps': 6}]"
    fit(str(tmp_path), valid=EQUAL, traits=EACH_STEP, max_epochs=2, ckpt_path=str(saved), audited=False)


def test_a_run_that_is_resumed_goes_on_counting(tmp_path: Path) -> None:
    saved = checkpoint_of(tmp_path)
    run = trained(tmp_path, valid=EQUAL, traits=EACH_STEP, max_epochs=2, ckpt_path=str(saved))
    assert run.alarms == {}
    counted = [(update["optimizer_update_id"], update["epoch"]) for update in updates(tmp_path / "run")]
    assert sorted(counted) == [(1, 1), (2, 1), (3, 2), (4, 2)]
    assert [mark["name"] for mark in marks(tmp_path / "run", "resume")] == [saved.name]


def test_a_version_that_lacks_something_loses_its_field_and_no_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = library().Trainer
    for name in ("save_checkpoint", "estimated_stepping_batches", "is_last_batch"):
        monkeypatch.delattr(kind, name)
    fit(str(tmp_path), valid=EQUAL)
    told = [mark["name"].partition(" has ")[2] for mark in marks(tmp_path / "run", "not_recorded")]
    assert told == [
        "no Trainer.estimated_stepping_batches: no record of planned_updates",
        "no Trainer.is_last_batch: no record of ends of the data",
        "no Trainer.save_checkpoint: no record of checkpoints",
    ]
    assert words(tmp_path / "run") == ["ZFBFBFBO"] * 2
    assert faults(tmp_path / "run") == []
