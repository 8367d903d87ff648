"""A fault that trainings really have: accelerate does not notice that a fused optimizer has skipped.

GradScaler calls a fused optimizer in any case, and the kernel does nothing where it was told of an
overflow. accelerate 1.15 asks whether step() was called, takes the attempt for an update, and lets the
schedule move on (huggingface/accelerate#4242).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator  # type: ignore[import-untyped]  # it ships no types
from accelerate.state import AcceleratorState, GradientState  # type: ignore[import-untyped]  # likewise
from torch import Tensor
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader

import accumaudit
from accumaudit.engine import check_paths
from accumaudit.engine.findings import FAILED
from tests.loops import TOKENS, TinyModel, batches, read_records, token_loss

pytestmark = pytest.mark.slow  # accelerate takes seconds to import

STEPS = 2
UPDATES = 6
OVERFLOW = 3
"""The attempt in which a gradient is infinite."""
SCALE = 1024.0


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    """accelerate keeps its state for the whole process."""
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


@dataclass
class Attempt:
    """What is true of an attempt, seen beside the hooks."""

    moved: bool
    scale: float
    scale_after: float
    schedule_moved: bool
    said_to_be_skipped: bool


def half_precision_on_a_cpu() -> Accelerator:
    """accelerate makes scalers for accelerators alone; it takes one that is there."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=STEPS)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    accelerator.native_amp = True
    accelerator.state._mixed_precision = "fp16"
    return accelerator


def train(folder: Path, *, fused: bool) -> list[Attempt]:
    """As its documentation has it, with an overflow in one window."""
    torch.manual_seed(0)
    accelerator = half_precision_on_a_cpu()
    model: Any = TinyModel()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=fused)
    scheduler: Any = LambdaLR(optimizer, lambda step: 1 / (1 + step))
    loader: Any = DataLoader(torch.cat(batches(STEPS * UPDATES)), batch_size=2)  # type: ignore[arg-type]  # its rows
    model, optimizer, scheduler, loader = accelerator.prepare(model, optimizer, scheduler, loader)
    attempts = []
    with accumaudit.attach(
        model,
        optimizer.optimizer,
        scheduler.scheduler,
        scaler=accelerator.scaler,
        log_dir=folder,
        accumulation_steps=STEPS,
        dataloader=loader,
        summary=False,
    ) as audit:
        audit.declare(planned_updates=UPDATES)
        for place, ids in enumerate(loader):
            with accelerator.accumulate(model):
                logits = model(ids)
                if place == STEPS * OVERFLOW - 1:
                    logits.register_hook(lambda gradient: torch.full_like(gradient, math.inf))
                accelerator.backward(token_loss(logits, ids) / TOKENS)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                before = state(model, accelerator, scheduler)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
                if accelerator.sync_gradients:
                    attempts.append(compare(before, state(model, accelerator, scheduler), accelerator))
    return attempts


def state(model: TinyModel, accelerator: Accelerator, scheduler: Any) -> tuple[Tensor, float, int]:
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    return weights, accelerator.scaler.get_scale(), scheduler.scheduler.last_epoch


def compare(before: Any, after: Any, accelerator: Accelerator) -> Attempt:
    return Attempt(
        moved=not torch.equal(before[0], after[0]),
        scale=before[1],
        scale_after=after[1],
        schedule_moved=after[2] > before[2],
        said_to_be_skipped=accelerator.optimizer_step_was_skipped,
    )


def findings(folder: Path) -> dict[str, tuple[int, int | None, str]]:
    [run] = check_paths([folder]).runs
    return {
        verdict.code: (verdict.finding.count, verdict.finding.examples[0].attempt_id, verdict.severity)
        for verdict in run.with_status(FAILED)
        if verdict.finding is not None
    }


def test_a_skip_inside_a_fused_kernel_that_accelerate_takes_for_an_update(tmp_path: Path) -> None:
    attempts = train(tmp_path / "run", fused=True)
    skipped = attempts[OVERFLOW - 1]
    assert not skipped.moved
    assert (skipped.scale, skipped.scale_after) == (SCALE, SCALE / 2)
    assert skipped.schedule_moved
    assert not skipped.said_to_be_skipped
    assert all(attempt.moved for attempt in attempts if attempt is not skipped)
    updates = [entry for entry in read_records(tmp_path / "run") if entry["record"] == "update"]
    healthy, seen = "ZFBFBUCOGS", updates[OVERFLOW - 1]
    assert [entry["events"] for entry in updates] == [healthy, healthy, "ZFBFBUCXGS", *[healthy] * 3]
    assert [entry["optimizer_update_id"] for entry in updates] == [1, 2, 2, 3, 4, 5]
    assert (seen["optimizer_step_skipped"], seen["skip_evidence"]) == (True, "found_inf")
    assert (seen["grad_scale"], seen["grad_scale_after"]) == (SCALE, SCALE / 2)
    assert findings(tmp_path / "run") == {"ACC302": (1, OVERFLOW, "error")}


def test_accelerate_holds_the_schedule_where_the_scaler_itself_skips(tmp_path: Path) -> None:
    attempts = train(tmp_path / "run", fused=False)
    skipped = attempts[OVERFLOW - 1]
    assert not skipped.moved
    assert (skipped.schedule_moved, skipped.said_to_be_skipped) == (False, True)
    updates = [entry for entry in read_records(tmp_path / "run") if entry["record"] == "update"]
    assert updates[OVERFLOW - 1]["events"] == "ZFBFBUCXG"
    assert updates[OVERFLOW - 1]["skip_evidence"] == "scaler"
    assert findings(tmp_path / "run") == {}
