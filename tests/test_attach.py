"""Attaching and closing: errors before training, no trace afterwards, and nothing changed in between."""

from __future__ import annotations

import copy
import gc
import io
import logging
import os
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader

import accumaudit
from accumaudit.hooks import patches
from accumaudit.hooks.session import session
from tests.loops import TinyModel, Training, batches, plain, read_records


def parts(rate: float = 1e-2) -> tuple[TinyModel, torch.optim.AdamW, torch.optim.lr_scheduler.LambdaLR]:
    """A model, its optimizer and its scheduler."""
    torch.manual_seed(0)
    model = TinyModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    return model, optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    yield
    assert session.recorders == []


def hooks_of(module: nn.Module) -> list[Any]:
    """Every hook on a module and on its parameters."""
    found: list[Any] = []
    for part in module.modules():
        found += [*part._forward_pre_hooks.values(), *part._forward_hooks.values()]
    for parameter in module.parameters():
        found += [*(parameter._backward_hooks or {}).values()]
        found += [*(getattr(parameter, "_post_accumulate_grad_hooks", None) or {}).values()]
    return found


def patched() -> dict[str, Any]:
    """What stands where the hooks patch."""
    return {
        f"{patch.owner}.{patch.name}": getattr(patch.owner, patch.name)
        for patch in (*patches.PATCHES, *patches.VERSION_PATCHES)
    }


def writer_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "accumaudit-writer"]


def open_files(folder: Path) -> list[str]:
    links = [os.path.realpath(entry) for entry in Path("/proc/self/fd").iterdir()]
    return [link for link in links if link.startswith(str(folder))]


def test_attach_close_attach_leaves_no_trace(tmp_path: Path) -> None:
    """Every hook, patch, thread and file of an audit is gone when it is closed; a second one works."""
    model, optimizer, scheduler = parts()
    loader: DataLoader[Any] = DataLoader(batches(12), batch_size=None)  # type: ignore[arg-type]
    before, iterate = patched(), DataLoader.__iter__
    for launch in range(2):
        audit = accumaudit.attach(
            model, optimizer, scheduler, log_dir=tmp_path / "run", dataloader=loader, summary=False
        )
        assert hooks_of(model)
        assert writer_threads()
        assert open_files(tmp_path)
        plain(Training(model, optimizer, scheduler, audit))
        audit.close()
        assert hooks_of(model) == []
        assert patched() == before
        assert DataLoader.__iter__ is iterate
        assert not optimizer._optimizer_step_pre_hooks
        assert not optimizer._optimizer_step_post_hooks
        assert writer_threads() == []
        assert open_files(tmp_path) == []
        assert set(vars(scheduler)) == set(vars(parts()[2]))
        updates = [entry for entry in read_records(tmp_path / "run") if entry["record"] == "update"]
        assert len(updates) == 3 * (launch + 1)
    plain(Training(model, optimizer, scheduler, accumaudit.Audit(None)))
    assert len(read_records(tmp_path / "run")) == 2 * (1 + 3 + 1)


def test_closing_twice_and_telling_a_closed_audit_do_nothing(tmp_path: Path) -> None:
    """A closed audit takes every call and writes nothing."""
    model, optimizer, scheduler = parts()
    audit = accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False)
    audit.close()
    written = len(read_records(tmp_path))
    audit.close()
    audit.report(global_step=1)
    audit.mark("checkpoint", name="late")
    audit.declare(planned_updates=3)
    audit.observe_loss(torch.ones((), requires_grad=True) * 1, valid_tokens=1)
    audit.scheduler = scheduler
    audit.load_state_dict({})
    assert (audit.metrics(), audit.scheduler) == ({}, None)
    assert audit.state_dict()["optimizers"] == [{"updates": 0, "micro_steps": 0}]
    assert len(read_records(tmp_path)) == written


def test_copies_and_pickles_of_a_hooked_model_carry_no_hooks(tmp_path: Path) -> None:
    """deepcopy, AveragedModel, save and load of model, optimizer and scheduler work while attached."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        twin, averaged = copy.deepcopy(model), AveragedModel(model)
        buffer = io.BytesIO()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "scheduler": scheduler.state_dict()}, buffer)  # fmt: skip
        buffer.seek(0)
        state = torch.load(buffer, weights_only=True)
        whole = pickle.loads(pickle.dumps((model, copy.deepcopy(optimizer))))  # noqa: S301  (our own bytes)
        for other in (twin, averaged, whole[0]):
            other(batches(1)[0]).sum().backward()
        plain(Training(model, optimizer, scheduler, audit))
        averaged.update_parameters(model)
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        model.load_state_dict(state["model"])
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["events"].rstrip("SRE") for update in updates] == ["ZFBFBFBFBCO"] * 3
    assert "step" not in state["scheduler"]


def test_training_is_bitwise_the_same(tmp_path: Path) -> None:
    """Fifty updates end at the same bits with and without hooks."""
    finals = []
    for attached in (False, True):
        model, optimizer, scheduler = parts()
        audit = (
            accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False)
            if attached
            else accumaudit.Audit(None)
        )
        for _ in range(17):
            plain(Training(model, optimizer, scheduler, audit))
        audit.close()
        finals.append([parameter.detach().clone() for parameter in model.parameters()])
    assert all(torch.equal(bare, hooked) for bare, hooked in zip(*finals, strict=True))


def test_a_fault_in_a_hook_is_marked_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception inside a hook is told once, marked once, and reaches nobody."""
    model, optimizer, scheduler = parts()

    def broken(*_: object) -> None:
        raise ZeroDivisionError("inside a hook")

    with (
        caplog.at_level(logging.WARNING, "accumaudit"),
        accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit,
    ):
        monkeypatch.setattr("accumaudit.hooks.recorder.describe", broken)
        plain(Training(model, optimizer, scheduler, audit))
    marks = [entry["name"] for entry in read_records(tmp_path) if entry.get("kind") == "hook_error"]
    assert marks == ["ZeroDivisionError: inside a hook"]
    assert [entry.levelname for entry in caplog.records] == ["WARNING"]


def test_switched_off_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With ACCUMAUDIT=0 nothing is hooked, patched or written."""
    monkeypatch.setenv("ACCUMAUDIT", "0")
    model, optimizer, scheduler = parts()
    before = patched()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path / "run") as audit:
        assert hooks_of(model) == []
        assert patched() == before
        plain(Training(model, optimizer, scheduler, audit))
        audit.report(global_step=1)
        assert audit.metrics() == {}
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"frozen": True}, ValueError, "no trainable parameter"),
        ({"foreign": True}, ValueError, "none of the parameters of AdamW belongs to the model"),
        ({"scheduler": [None, None]}, ValueError, "1 optimizers and 2 schedulers"),
        ({"accumulation_steps": 0}, ValueError, "accumulation_steps is 0"),
        ({"loss_unit": "word"}, ValueError, "token or sample"),
        ({"reduction": "median"}, ValueError, "mean or sum"),
        ({"dataloader": [1, 2]}, TypeError, "dataloader is a list"),
        ({"scaler": object()}, TypeError, "no torch.amp.GradScaler"),
        ({"every": 0}, ValueError, "every is 0"),
        ({"ranks": [3]}, ValueError, "ranks below 1"),
        ({"ranks": "last"}, ValueError, "first, or a list"),
        ({"microbatch_detail": "none"}, ValueError, "full or sums"),
    ],
)
def test_wrong_arguments_raise_before_training(
    change: dict[str, Any], error: type[Exception], text: str, tmp_path: Path
) -> None:
    """What cannot be recorded is an error of attach, and leaves nothing behind."""
    model, optimizer, _ = parts()
    options = dict(change)
    if options.pop("frozen", False):
        model.requires_grad_(False)
    if options.pop("foreign", False):
        optimizer = torch.optim.AdamW(TinyModel().parameters())
    before = patched()
    with pytest.raises(error, match=text):
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "run", **options)
    assert hooks_of(model) == []
    assert patched() == before
    assert not (tmp_path / "run").exists()


def test_an_optimizer_is_attached_once(tmp_path: Path) -> None:
    """A second attach of the same optimizer is an error."""
    model, optimizer, _ = parts()
    with (
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "one", summary=False),
        pytest.raises(ValueError, match="attached already"),
    ):
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "two", summary=False)


def test_a_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    """The error names the file and what to do."""
    (tmp_path / "run").write_text("a file where a folder should be")
    model, optimizer, _ = parts()
    with pytest.raises(OSError, match="choose a log_dir that this process may write") as caught:
        accumaudit.attach(model, optimizer, log_dir=tmp_path / "run", summary=False)
    assert str(tmp_path / "run") in str(caught.value)
    assert hooks_of(model) == []


def test_wrong_calls_raise_where_they_are_made(tmp_path: Path) -> None:
    """Unknown marks, declarations and reductions are the caller's errors."""
    model, optimizer, _ = parts()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        with pytest.raises(ValueError, match="mark kind 'lunch' is unknown"):
            audit.mark("lunch")
        with pytest.raises(TypeError, match="'horizon' cannot be declared"):
            audit.declare(horizon=3)
        with pytest.raises(ValueError, match="reduction 'median' is unknown"):
            audit.observe_loss(torch.ones(()), valid_tokens=1, reduction="median")


def test_counts_go_on_after_a_resume(tmp_path: Path) -> None:
    """Update ids continue from state_dict, and from the optimizer's own count without it."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path / "a", summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
        state = audit.state_dict()
    for folder, given in (("b", state), ("c", None)):
        with accumaudit.attach(
            model, optimizer, scheduler, log_dir=tmp_path / folder, summary=False
        ) as audit:
            if given is not None:
                audit.load_state_dict(given)
            plain(Training(model, optimizer, scheduler, audit))
    ids = {
        folder: [
            entry["optimizer_update_id"] for entry in read_records(tmp_path / folder) if "events" in entry
        ]
        for folder in "abc"
    }
    assert ids == {"a": [1, 2, 3], "b": [4, 5, 6], "c": [7, 8, 9]}


def test_a_scheduler_made_later_is_watched(tmp_path: Path) -> None:
    """audit.scheduler = ... makes its steps part of the words from then on."""
    model, optimizer, _ = parts()
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False) as audit:
        scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
        audit.scheduler = scheduler
        plain(Training(model, optimizer, scheduler, audit))
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBFBFBFBCOS"] * 3
    assert [update["scheduler_step"] for update in updates] == [1, 2, 3]


class OwnSchedule:
    """A scheduler of the loop's own, which keeps nothing that could be looked at."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def step(self) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] *= 0.9


class CountingSchedule(OwnSchedule):
    """One that keeps last_epoch."""

    last_epoch = 0

    def step(self) -> None:
        self.last_epoch += 1
        super().step()


@pytest.mark.parametrize("kind", [OwnSchedule, CountingSchedule])
def test_schedulers_of_the_loop_s_own_are_seen(kind: type[OwnSchedule], tmp_path: Path) -> None:
    """A class of the user's is watched, by last_epoch or by a patch that is undone."""
    model, optimizer, _ = parts()
    scheduler = kind(optimizer)
    step = kind.step
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
    assert kind.step is step
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBFBFBFBCOS"] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda o: torch.optim.lr_scheduler.SequentialLR(
            o,
            [torch.optim.lr_scheduler.LinearLR(o), torch.optim.lr_scheduler.ExponentialLR(o, 0.9)],
            milestones=[2],
        ),
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.1, 100),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 100),
        lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 100),
        lambda o: torch.optim.lr_scheduler.ChainedScheduler([torch.optim.lr_scheduler.StepLR(o, 100)]),
        lambda o: torch.optim.lr_scheduler.StepLR(o, 100),
    ],
    ids=["sequential", "one cycle", "cosine", "warm restarts", "chained", "step"],
)
def test_every_scheduler_of_torch_is_seen(make: Any, tmp_path: Path) -> None:
    """One S an update, whatever the class keeps."""
    model, optimizer, _ = parts()
    scheduler = make(optimizer)
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBFBFBFBCOS"] * 3


def test_epochs_and_the_end_of_data_are_marked(tmp_path: Path) -> None:
    """Iterations of the dataloader are epochs; its end inside a window is part of the word."""
    model, optimizer, scheduler = parts()
    loader: DataLoader[Any] = DataLoader(batches(6), batch_size=None)  # type: ignore[arg-type]
    with accumaudit.attach(
        model, optimizer, scheduler, log_dir=tmp_path, dataloader=loader, summary=False
    ) as audit:
        training = Training(model, optimizer, scheduler, audit)
        for _ in range(2):
            for place, ids in enumerate(loader, 1):
                training.loss(ids).backward()
                if place == 4:
                    training.step()
            training.step()
    records = read_records(tmp_path)
    updates = [entry for entry in records if entry["record"] == "update"]
    assert [update["events"] for update in updates] == ["ZFBFBFBFBCOS", "ZFBFB|COS"] * 2
    assert [update["epoch"] for update in updates] == [1, 1, 2, 2]
    marks = [(entry["kind"], entry["attempt_id"]) for entry in records if entry["record"] == "mark"]
    assert sorted(marks) == [("close", 4), ("end_of_data", 1), ("end_of_data", 3), ("epoch_end", 2)]


def test_what_the_loop_tells_is_written(tmp_path: Path) -> None:
    """Reports go to the update they follow, tensors and numbers alike; declarations become marks."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(
        model, optimizer, scheduler, log_dir=tmp_path, accumulation_steps=4, summary=False
    ) as audit:
        audit.declare(planned_updates=3)
        training = Training(model, optimizer, scheduler, audit)
        for place, ids in enumerate(batches(8), 1):
            loss = training.loss(ids)
            loss.backward()
            if place % 4 == 0:
                training.step()
                audit.report(global_valid_tokens=torch.tensor(56), global_step=place // 4, loss=loss)
                audit.mark("checkpoint", name=f"step {place}")
    updates = [entry for entry in read_records(tmp_path) if entry["record"] == "update"]
    assert [update["reported_global_step"] for update in updates] == [1, 2]
    assert [update["global_valid_tokens_in_update"] for update in updates] == [56, 56]
    assert all(isinstance(update["reported_loss"], float) for update in updates)
    marks = [entry for entry in read_records(tmp_path) if entry["record"] == "mark"]
    assert [(mark["kind"], mark.get("name")) for mark in marks] == [
        ("declare", '{"planned_updates": 3}'),
        ("checkpoint", "step 4"),
        ("checkpoint", "step 8"),
        ("close", None),
    ]
    assert audit.metrics() == {}


def test_metrics_are_flat_numbers(tmp_path: Path) -> None:
    """The last written update, for a logger."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
        training = Training(model, optimizer, scheduler, audit)
        training.loss(batches(1)[0]).backward()
        deadline = time.monotonic() + 30
        while audit.metrics().get("accumaudit/optimizer_update_id") != 3 and time.monotonic() < deadline:
            time.sleep(0.01)
        metrics = audit.metrics()
    assert metrics["accumaudit/optimizer_update_id"] == 3
    assert all(isinstance(value, float) for value in metrics.values())


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_jit_scripts_work_while_attached_and_after(tmp_path: Path) -> None:
    """A scripted loss finds the operator behind the patch."""
    model, optimizer, _ = parts()
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    expected = nn.CrossEntropyLoss()(logits, labels)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        during = torch.jit.script(nn.CrossEntropyLoss())(logits, labels)
    after = torch.jit.script(nn.NLLLoss())(torch.log_softmax(logits, -1), labels)
    assert torch.equal(during, expected)
    assert torch.allclose(after, expected)


def test_functional_transforms_work_while_attached(tmp_path: Path) -> None:
    """torch.func.grad and vmap through a loss give what they give without."""
    model, optimizer, _ = parts()
    labels = torch.tensor([0, 1])

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(logits, labels)

    logits = torch.randn(5, 2, 3)
    expected = torch.func.vmap(torch.func.grad(loss))(logits)
    with accumaudit.attach(model, optimizer, log_dir=tmp_path, summary=False):
        assert torch.equal(torch.func.vmap(torch.func.grad(loss))(logits), expected)
    assert not [entry for entry in read_records(tmp_path) if entry.get("kind") == "hook_error"]


def test_hooks_need_nothing_but_torch() -> None:
    """They import and record where duckdb, pandas, pyarrow, click and rich are blocked."""
    script = """
import sys
for name in ("duckdb", "pandas", "pyarrow", "click", "rich"):
    sys.modules[name] = None
import tempfile, torch, accumaudit
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tempfile.TemporaryDirectory() as folder, accumaudit.attach(model, optimizer, log_dir=folder):
    for _ in range(4):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_gradients_are_released(tmp_path: Path) -> None:
    """A closed audit keeps no parameter alive."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path, summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
    import weakref

    reference = weakref.ref(model)
    del model, optimizer, scheduler
    gc.collect()
    assert reference() is None


def test_the_state_outlives_the_audit_and_an_empty_one_is_no_fault(tmp_path: Path) -> None:
    """A checkpoint may be written after the end, or by a run that recorded nothing."""
    model, optimizer, scheduler = parts()
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path / "a", summary=False) as audit:
        plain(Training(model, optimizer, scheduler, audit))
    assert audit.state_dict()["optimizers"] == [{"updates": 3, "micro_steps": 12}]
    with accumaudit.attach(model, optimizer, scheduler, log_dir=tmp_path / "b", summary=False) as audit:
        audit.load_state_dict({})
    assert [entry for entry in read_records(tmp_path / "b") if entry.get("kind") == "hook_error"] == []
